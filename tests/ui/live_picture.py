# SPDX-License-Identifier: Apache-2.0
"""`make pictures`: the terminal of `kubectl ebpflb live` with a small shop's traffic."""

import asyncio
from collections import Counter, defaultdict
from typing import Any

from msgspec import convert

from ebpflb.kubectl.live.app import LiveApp
from ebpflb.kubectl.live.sight import Looked, Sight
from ebpflb.model.flow import Flow, ServiceRate
from tests.ui.flows import of_node
from tests.ui.shop import NODES, SECONDS, traffic
from tests.unit.kubectl.answers import backend, service
from tests.unit.kubectl.live.keys import Keys

_SIZE = (150, 20)
_DRAWING_SECONDS = 0.5
_OPEN = {"shop/web": 212, "shop/cart": 40, "shop/redis": 96, "payments/api": 7}
_TROUBLES = {"no_endpoint": "no endpoint", "source_range": "outside source ranges"}
_NO_CLUSTER: Any = None


class ShopSight(Sight):
    """What the shop's agents would tell."""

    where = f"all namespaces, {len(NODES)} nodes of kind-test"

    def services(self) -> Looked[list[ServiceRate]]:
        of_each = defaultdict[str, list[Flow]](list)
        for flow in _flows():
            if flow.service:
                of_each[f"{flow.service.namespace}/{flow.service.name}"].append(flow)
        rates = [_rate(name, flows) for name, flows in of_each.items()]
        return Looked(convert(rates, list[ServiceRate]), "")


def _flows() -> list[Flow]:
    return [of_node(node, flow) for _, node, flow in traffic()]


def _rate(name: str, flows: list[Flow]) -> Any:
    namespace, _, short = name.partition("/")
    every, failed = Counter[str](), Counter[str]()
    for flow in flows:
        if flow.backend:
            every[flow.backend.pod] += 1
            failed[flow.backend.pod] += flow.verdict == "failed"
    backends = [
        backend(
            f"10.1.2.{number}",
            count / SECONDS,
            pod=pod,
            failed=failed[pod] / SECONDS,
            trouble="refuses connections" if failed[pod] > count // 4 else "",
        )
        for number, (pod, count) in enumerate(sorted(every.items()), 10)
    ]
    verdicts = Counter(flow.verdict for flow in flows)
    of_backends = [f"{each['pod']} {each['trouble']}" for each in backends if each["trouble"]]
    reasons = {_TROUBLES[flow.reason] for flow in flows if flow.reason in _TROUBLES}
    return service(
        *backends,
        namespace=namespace,
        name=short,
        active=_OPEN.get(name, 0),
        far=sum(_is_far(flow) for flow in flows) / every.total() if backends else None,
        largest_share=max(every.values()) / every.total() if backends else None,
        even_share=1 / len(every) if backends else None,
        troubles=[*sorted(reasons), *of_backends],
        **{name: verdicts[name] / SECONDS for name in ("failed", "refused", "dropped")},
        original_bytes=sum(flow.bytes.original for flow in flows if flow.bytes) / SECONDS,
        reply_bytes=sum(flow.bytes.reply for flow in flows if flow.bytes) / SECONDS,
    )


def _is_far(flow: Flow) -> bool:
    return flow.backend is not None and flow.backend.node != flow.node


async def _drawn() -> str:
    """The first screen, as SVG."""
    app = LiveApp(ShopSight(_NO_CLUSTER, "", 1.0))
    async with app.run_test(size=_SIZE) as pilot:
        keys = Keys(app, pilot)
        await keys.until(lambda: keys.rows("services"))
        # Columns get as wide as their rows a moment later.
        await pilot.pause(_DRAWING_SECONDS)
        return app.export_screenshot(title="kubectl ebpflb live")


def live_picture() -> str:
    """As SVG."""
    return asyncio.run(_drawn())

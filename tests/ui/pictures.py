# SPDX-License-Identifier: Apache-2.0
"""`make pictures`: a small shop's traffic, on the page of `kubectl ebpflb ui` and in `live`."""

import time
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import convert

from ebpflb.kubectl.ui.aside import Heard
from ebpflb.kubectl.ui.traffic import EdgeTraffic
from ebpflb.model.flow import Flow, LostFlows, ServiceRate
from tests.ui.browser import Browser
from tests.ui.flows import of_node
from tests.ui.live_picture import live_picture
from tests.ui.page import page_over
from tests.ui.shop import NODES, SECONDS, traffic
from tests.unit.kubectl.answers import backend, service

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
_BAD_LINE = "?client=workload%3Ashop%2Freport&via=service%3Ashop%2Finvoices"
_EXPLAIN = "document.querySelector('#panel .flows button').click()"
_IS_EXPLAINED = "document.querySelector('#panel pre').textContent.includes('agree')"
_NODES_ARE_KNOWN = (
    "document.querySelector('#nodes summary').textContent === '6 nodes; node-c2 does not answer'"
)
# Of the past, open connections are unknown.
_IS_COMPLETE = (
    "location.search.includes('until')"
    " || /[0-9]/.test(document.querySelector('.active b').textContent)"
)
# How long before now the window of the past begins.
_AGO = 3 * 3600
_ACTIVE = {"shop/web": 212, "shop/cart": 40, "shop/redis": 96, "payments/api": 7}


def main() -> None:
    """Make them all again."""
    begin = time.time() // 60 * 60 - SECONDS
    now = [begin]
    live = EdgeTraffic(lambda: now[0])
    for second, node, flow in traffic():
        now[0] = begin + second
        live.add(of_node(node, flow))
    kept = partial(_kept, begin - _AGO)
    until = datetime.fromtimestamp(begin - _AGO + SECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with page_over(*NODES, traffic=live, rates=_rates, flows=kept) as page, Browser() as browser:
        for node in NODES[:-1]:
            page.agents.send(node, "")
        page.agents.fail(NODES[-1], "the pod is not running (CrashLoopBackOff)")
        for name, query, scheme in (
            ("map-light", "", "light"),
            ("line-dark", _BAD_LINE, "dark"),
            ("table-light", "?view=table", "light"),
            ("past-light", f"?window=300&until={until}", "light"),
        ):
            browser.prefer(scheme)
            browser.open(f"{page.url}{query}")
            browser.wait(_NODES_ARE_KNOWN)
            browser.wait(_IS_COMPLETE)
            if query == _BAD_LINE:
                browser.run(_EXPLAIN)
                browser.wait(_IS_EXPLAINED)
            browser.picture(FOLDER / f"ui-{name}.png")
    (FOLDER / "live.svg").write_text(live_picture())


def _rates() -> Heard[list[ServiceRate]]:
    made = [
        service(
            backend("10.1.0.1"), namespace=name.split("/")[0], name=name.split("/")[1], active=n
        )
        for name, n in _ACTIVE.items()
    ]
    return Heard(convert(made, list[ServiceRate]))


def _kept(begin: float, _: object) -> Heard[list[Flow | LostFlows]]:
    found: list[Flow | LostFlows] = []
    for second, node, flow in islice(traffic(), 0, None, 4):
        moment = datetime.fromtimestamp(begin + second, UTC)
        found.append(of_node(node, {**flow, "time": f"{moment:%Y-%m-%dT%H:%M:%S}.000000000Z"}))
    return Heard(found, (), {"the pod is not running (CrashLoopBackOff)": {NODES[-1]}})


if __name__ == "__main__":
    main()

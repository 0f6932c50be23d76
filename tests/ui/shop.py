# SPDX-License-Identifier: Apache-2.0
"""Five minutes of a small shop's traffic, for pictures; the same every time."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.ui.flows import dropped, failed, flow, refused

NODES = ("node-a1", "node-a2", "node-b1", "node-b2", "node-c1", "node-c2")
SECONDS = 300


class Talk(NamedTuple):
    """Client, server and requests per second. failing: the share that fails."""

    client: str | None
    service: str
    pods: int
    each_second: float
    failing: float = 0.0


_TALKS = (
    Talk(None, "ingress/gateway", 3, 26),
    Talk("ingress/gateway-6d8f7c9b4", "shop/web", 4, 24),
    Talk("shop/web-7d4b9c6f5", "shop/cart", 3, 14),
    Talk("shop/web-7d4b9c6f5", "shop/catalog", 4, 20),
    Talk("shop/web-7d4b9c6f5", "shop/search", 2, 6, 0.25),
    Talk("shop/cart-5f6c8d7b9", "payments/api", 2, 5),
    Talk("shop/cart-5f6c8d7b9", "shop/redis", 1, 18),
    Talk("shop/catalog-8b7c6d5f4", "shop/postgres", 1, 11),
    Talk("payments/api-9c8b7d6f5", "payments/ledger", 2, 4),
    Talk("shop/web-7d4b9c6f5", "kube-system/kube-dns", 2, 32),
    Talk("payments/api-9c8b7d6f5", "kube-system/kube-dns", 2, 6),
    Talk("monitoring/prometheus", "monitoring/exporter", 6, 3),
    Talk("monitoring/grafana-5d7f8c6b9", "monitoring/prometheus", 1, 1),
)


def traffic() -> Iterator[tuple[float, str, dict[str, Any]]]:
    """Seconds, node, flow, in their order."""
    chance = random.Random(1)
    for second in range(SECONDS):
        for talk in _TALKS:
            swing = chance.uniform(0.6, 1.4) * talk.each_second
            for _ in range(int(swing) + (chance.random() < swing % 1)):
                yield second, chance.choice(NODES), _talk(talk, chance)
        yield from ((second, *each) for each in _trouble(second, chance))


def _talk(talk: Talk, chance: random.Random) -> dict[str, Any]:
    number = chance.randrange(talk.pods)
    node = NODES[hash_of(talk.service, number) % len(NODES)]
    outside = {"address": f"198.51.100.{chance.randrange(1, 200)}", "port": 40000}
    pod = f"{talk.client}-x2x4z" if talk.client != "monitoring/prometheus" else f"{talk.client}-0"
    given = {
        "service": talk.service,
        "client": {"address": "10.1.0.4", "port": chance.randrange(32768, 60999), "pod": pod},
        "frontend": {"address": f"10.96.0.{10 + hash_of(talk.service, 0) % 200}", "port": 80},
        "backend": {
            "address": f"10.1.2.{10 + number}",
            "port": 8080,
            "pod": f"{talk.service}-6c8f9d7b5-{'bcdfgh'[number] * 5}",
            "node": node,
            "zone": f"zone-{node[5]}",
        },
    }
    if talk.client is None:
        given |= {"client": outside, "source": "elsewhere", "path": "tc"}
    if number == 0 and chance.random() < talk.failing * talk.pods:
        return _ends(failed(seconds=1.0), given)
    times: dict[str, Any] = {
        "seconds": chance.lognormvariate(-4, 1),
        "rtt_seconds": chance.lognormvariate(-8, 0.6),
        "bytes": {"original": chance.randrange(200, 900), "reply": chance.randrange(500, 30000)},
    }
    return _ends(flow(**times), given)


def _trouble(second: int, chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    if second > 180 and chance.random() < 0.6:
        client = {"address": "10.1.3.7", "port": 41000, "pod": "shop/report-29401440-k8d9f"}
        yield "node-b1", _ends(refused(), {"client": client, "service": "shop/invoices"})
    if chance.random() < 0.3:
        client = {"address": "203.0.113.9", "port": 50000}
        given = {"client": client, "service": "payments/admin", "source": "elsewhere"}
        yield "node-c1", _ends(dropped(), given)


def _ends(made: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Adds the Service and the ends of `given`; without a backend there are none."""
    namespace, _, name = given["service"].partition("/")
    ends = {**given, "service": {"namespace": namespace, "name": name, "port": "http"}}
    return {
        **made,
        **{key: value for key, value in ends.items() if key != "backend" or key in made},
    }


def hash_of(text: str, number: int) -> int:
    """The same in every run."""
    return sum(text.encode()) * 7 + number * 3

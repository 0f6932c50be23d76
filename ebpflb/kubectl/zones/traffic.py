# SPDX-License-Identifier: Apache-2.0
"""What clients in one zone exchange with backends in another, or in the same."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

from ebpflb.cli.options import check_served
from ebpflb.kubectl.asking import AgentQuestion, AskedAgents
from ebpflb.kubectl.rates import RatesOfCluster
from ebpflb.kubectl.zones.known import KnownZones
from ebpflb.kubectl.zones.prices import PriceOf
from ebpflb.model.compact.rates import BACKEND_SUMS, THOUSANDTHS

HOURS_OF_MONTH = 730
_SECONDS_OF_HOUR = 3600
_GB = 1e9
_NOTHING: Sequence[int] = (0,) * len(BACKEND_SUMS)


@dataclass(frozen=True, slots=True)
class ZoneTraffic:
    """From a client's zone to a backend's, and back, per second; "" is a zone that is not known.

    crosses: whether both are known, and differ. Costs are None unless it does, and has a price.
    """

    client_zone: str
    backend_zone: str
    crosses: bool
    connections: float
    original_bytes: float
    reply_bytes: float
    cost_per_hour: float | None
    cost_per_month: float | None

    @property
    def bytes(self) -> float:
        """In both directions."""
        return self.original_bytes + self.reply_bytes


def between_zones(
    cluster: AskedAgents,
    question: AgentQuestion,
    service: str,
    zones: KnownZones,
    price_of: PriceOf,
) -> list[ZoneTraffic]:
    """Most bytes first. A client counts for the node at which it enters.

    question: `top`. service: NAMESPACE/NAME of the only one, empty for all; ConfigError if it is
    not served.
    """
    found = defaultdict[tuple[str, str], Sequence[int]](lambda: _NOTHING)
    served = set[str]()
    for agent, rows in cluster.ask_compact(question, RatesOfCluster().read):
        client_zone = zones.of_nodes.get(agent.node, "")
        for port, row in rows:
            namespace = port.form.name.namespace
            name = f"{namespace}/{port.form.name.service}"
            served.add(name)
            for (address, _), numbers in port.carried(row) if service in ("", name) else ():
                pair = client_zone, zones.of_backends.get((namespace, address), "")
                found[pair] = list(map(add, found[pair], numbers))
    check_served(service, served.intersection({service}), served)
    traffic = [_traffic(*pair, sums, price_of) for pair, sums in found.items()]
    carrying = [each for each in traffic if each.connections or each.bytes]
    return sorted(carrying, key=lambda each: (-each.bytes, each.client_zone, each.backend_zone))


def _traffic(client: str, backend: str, sums: Sequence[int], price_of: PriceOf) -> ZoneTraffic:
    rates = {name: each / THOUSANDTHS for name, each in zip(BACKEND_SUMS, sums, strict=True)}
    crosses = "" not in (client, backend) and client != backend
    price = price_of(frozenset((client, backend))) if crosses else None
    gb_per_hour = (rates["original_bytes"] + rates["reply_bytes"]) * _SECONDS_OF_HOUR / _GB
    cost = None if price is None else price * gb_per_hour
    return ZoneTraffic(
        client,
        backend,
        crosses,
        rates["connections"],
        rates["original_bytes"],
        rates["reply_bytes"],
        cost,
        None if cost is None else cost * HOURS_OF_MONTH,
    )

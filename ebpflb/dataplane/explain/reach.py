# SPDX-License-Identifier: Apache-2.0
"""What prevents connections to an endpoint, as far as this node can see."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from ebpflb.dataplane.explain.steps import RouteTo
from ebpflb.dataplane.kernel.rtnetlink import Neighbour, Rtnetlink, device_name, read_neighbours
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, SocketAddress, format_address, parse_address
from ebpflb.model.flow import Flow
from ebpflb.words.connections import BACKEND_REFUSED, FAILED, NO_ANSWER

NO_ROUTE = "no route leads there"
# A single lost SYN is retransmitted before this.
_PATIENCE_SECONDS = 3.0
_FAILED = {
    NO_ANSWER: "did not answer its last connection",
    BACKEND_REFUSED: "refused its last connection",
}


class Silent(NamedTuple):
    """Neighbours that do not answer, by device and address."""

    places: Collection[tuple[int, Address]]

    @classmethod
    def now(cls) -> "Silent":
        """Those of the calling thread's namespace. ProbeError."""
        try:
            with Rtnetlink() as netlink:
                found = read_neighbours(netlink)
        except OSError as error:
            raise ProbeError(f"cannot list neighbours: {error}") from error
        return cls.of(found)

    @classmethod
    def of(cls, neighbours: Collection[Neighbour]) -> "Silent":
        """Those among the given neighbours."""
        return cls({(each.ifindex, each.address) for each in neighbours if not each.is_answering})


def trouble(address: Address, route: RouteTo, silent: Silent) -> str:
    """Why packets do not reach it; "" if nothing is known."""
    way = route(address)
    if way is None:
        return NO_ROUTE
    hop = way.gateway or address
    if not way.is_local and (way.ifindex, hop) in silent.places:
        return f"the next hop {format_address(hop)} on {device_name(way.ifindex)} does not answer"
    return ""


def last_failures(flows: Iterable[Flow]) -> Mapping[SocketAddress, str]:
    """The backends whose last connection failed, and how.

    `flows`: ended ones, oldest first.
    """
    last = {
        SocketAddress(parse_address(flow.backend.address), flow.backend.port): flow
        for flow in flows
        if flow.backend
    }
    return {
        place: _FAILED[flow.ended]
        for place, flow in last.items()
        if flow.verdict == FAILED and flow.ended in _FAILED
    }


def unanswered(flows: Iterable[Mapping[str, Any]]) -> Mapping[SocketAddress, str]:
    """The backends that do not answer a client; `flows`: its own at tc."""
    return {
        SocketAddress(parse_address(flow["backend"]), flow["backend_port"]): (
            f"has not accepted this client's connection for {flow['age']:.0f} s"
        )
        for flow in flows
        if flow["state"] == "opening" and flow["age"] >= _PATIENCE_SECONDS
    }

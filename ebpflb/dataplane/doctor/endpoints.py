# SPDX-License-Identifier: Apache-2.0
"""Endpoints that packets cannot reach: without a route, behind a silent neighbour, or VIPs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.explain.lookups import Lookups, backend_key
from ebpflb.dataplane.explain.reach import NO_ROUTE, Silent, trouble
from ebpflb.dataplane.explain.steps import RouteTo
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.layout.records import USABLE, BackendRecord
from ebpflb.model.address import Address, format_address

ENDPOINTS = "endpoints"

# Each one is a query to the kernel that takes about 0.5 ms.
_MOST = 1000
_VIP = AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_EXTERNAL
_A_VIP = "a Service's own address is an endpoint"
_ADVICE = {
    _A_VIP: "endpoints must be pods or machines: kube-proxy cannot reach it either",
    NO_ROUTE: "`ip route get ADDRESS`: clients are told that it is unreachable",
}
_LOOK = "`ip neigh`: that machine is down or on another network; clients get no answer"


def check_endpoints(maps: MapSet, route: RouteTo, silent: Silent) -> list[Finding]:
    """The endpoints that Services use on this node. MapError."""
    addresses = _in_use(maps)
    asked = addresses[:_MOST]
    found = list(judge_endpoints(Lookups(maps), asked, route, silent))
    more = f", of {len(addresses)}" if len(addresses) > _MOST else ""
    return all_well(ENDPOINTS, f"{len(asked)} addresses have a route{more}", found)


def judge_endpoints(
    lookups: Lookups, addresses: Iterable[Address], route: RouteTo, silent: Silent
) -> Iterator[Finding]:
    """One finding for each kind of problem."""
    places = defaultdict[str, list[str]](list)
    for address in addresses:
        flags = lookups.addr_flags_of(address)
        is_vip = flags & _VIP and not flags & AddrFlag.LB_ADDR_NODE
        if what := _A_VIP if is_vip else trouble(address, route, silent):
            places[what].append(format_address(address))
    for what, where in sorted(places.items()):
        advice = _ADVICE.get(what, _LOOK)
        yield Finding(Severity.WARNING, ENDPOINTS, examples(where), what, advice)


def _in_use(maps: MapSet) -> list[Address]:
    records = (BackendRecord.unpack(value) for _, value in maps["lb_backends"].items())
    return sorted({backend_key(each).address for each in records if each.flags & USABLE})

# SPDX-License-Identifier: Apache-2.0
"""The way of a new connection through the hooks, on the live maps: what each would do, and why."""

from collections.abc import Iterator

from ebpflb.dataplane.explain.explained import Client, ClientKind, Fate, RouteTo, Side, Step
from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.explain.socket_hooks import at_socket
from ebpflb.dataplane.explain.tc_hooks import Asked, at_tc
from ebpflb.dataplane.explain.words import ended
from ebpflb.dataplane.kernel.routes import device_name
from ebpflb.dataplane.layout.enums import DeviceKind, DropReason
from ebpflb.model.plan import FrontendKey


def walk(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> tuple[Step, ...]:
    """Every hook that the connection meets, until one translates it or ends it."""
    steps = []
    for step in _ways(lookups, client, target, route):
        steps.append(step)
        if step.fate is not Fate.PASSES:
            break
    return tuple(steps)


def _ways(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> Iterator[Step]:
    if client.kind is not ClientKind.OUTSIDE:
        yield at_socket(lookups, client, target)
    if client.kind is not ClientKind.HOST:
        yield at_ingress(lookups, client, target, route)
    yield at_egress(lookups, client, target, route)


def at_ingress(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> Step:
    """lb_pod_ingress or lb_host_ingress: where the client's packets come to this node."""
    is_pod = client.kind is ClientKind.POD
    kind = DeviceKind.LB_DEVICE_WORKLOAD if is_pod else DeviceKind.LB_DEVICE_HOST
    device = lookups.device(client.ifindex) if client.ifindex else None
    name = device_name(client.ifindex) if client.ifindex else "an unknown device"
    place = f"tc ingress of {name}"
    if device is None or device.kind != kind:
        whose = "--workload-devices" if is_pod else "--host-devices"
        return Step(place, Fate.PASSES, f"none of our programs is there ({whose})")
    side = Side.THIS_NODE if is_pod else Side.ELSEWHERE
    return at_tc(Asked(lookups, client, target, route), place, side)


def at_egress(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> Step:
    """lb_host_egress: what leaves the node and was not translated so far."""
    way = route(target.address)
    if way is None:
        return Step("routing", Fate.PASSES, "this node has no route there")
    if way.is_local:
        return Step("routing", Fate.PASSES, "an address of this node: up to whoever listens there")
    place = f"tc egress of {device_name(way.ifindex)}"
    device = lookups.device(way.ifindex)
    if device is None or device.kind != DeviceKind.LB_DEVICE_HOST:
        return Step(place, Fate.PASSES, "no program of ours translates there; goes on as it is")
    is_own = client.kind is ClientKind.HOST
    if lookups.is_unused(target.address) and not (is_own and lookups.is_known(target.address)):
        return ended(place, None, DropReason.LB_DROP_UNUSED_ADDRESS)
    if not is_own:
        return Step(place, Fate.PASSES, "goes on as it is")
    return at_tc(Asked(lookups, client, target, route), place, Side.THIS_NODE)

# SPDX-License-Identifier: Apache-2.0
"""New TCP connections from outside through a NodePort, compared with direct ones to the pod.

Both pass a node as a router: the direct path passes the pod's own, so that a pod on another node
than the NodePort's costs one hop more. The cost of that hop is measured separately.
"""

from collections.abc import Iterator

from ebpflb.dataplane.layout.enums import SettingFlag
from ebpflb.dataplane.layout.structs import LbSettings
from ebpflb.lab import Lab
from tests.bench.harness import labs, ways
from tests.bench.harness.labs import Pair
from tests.bench.harness.load import Goal
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Way
from tests.e2e.harness.in_force import pinned_maps

NEAR_TARGET = 0.97
FAR_TARGET = 0.80

_NO_REDIRECTS = "for each in /proc/sys/net/ipv4/conf/*/send_redirects; do echo 0 > $each; done"
_FAR = 1
_SETTINGS = bytes(4)
_BY_KERNEL = "pod on the other node, routed by the kernel"


def run(options: Options) -> Iterator[Row]:
    """The NodePort of the first node, the pod there and on the other one."""
    with labs.pair(services=2, targets=[0, _FAR]) as pair:
        near = Way("pod on that node", "client", 0, labs.node_port(0), NEAR_TARGET)
        far = Way("pod on the other node", "client", _FAR, labs.node_port(_FAR), FAR_TARGET)
        for way in (near, far):
            yield from ways.compare("nodeport", pair, way, ways.CONNECT_RATE, options)
        for figure in (ways.CONNECT_RATE, ways.PUSH_RATE):
            yield _routed(pair.ours, figure, options)
        yield _hop(pair.other, options)
        yield _against_hop(pair, options)


def _routed(lab: Lab, figure: ways.Figure, options: Options) -> Row:
    """The cost of routing masqueraded packets in the kernel (forwarding: stack)."""
    settings = pinned_maps(lab.node(labs.NODES[0]))["lb_settings"]

    def switch(on: bool) -> None:
        value = LbSettings.from_buffer_copy(settings.lookup(_SETTINGS) or b"")
        value.flags &= ~SettingFlag.LB_SETTING_VIA_STACK
        value.flags |= SettingFlag.LB_SETTING_VIA_STACK * on
        settings.update(_SETTINGS, bytes(value))

    way = Way(f"{_BY_KERNEL}, {figure.unit}", "client", _FAR, labs.node_port(_FAR), target=None)
    try:
        return ways.switched("nodeport", lab, way, figure, switch, options)
    finally:
        switch(on=False)


def _hop(lab: Lab, options: Options) -> Row:
    """The direct path without programs, both directions through the first node as well.

    The routes are kept.
    """
    first, second = (lab.node(name) for name in labs.NODES)
    pod, client = labs.pod(lab, _FAR), lab.client
    first.exec(["sh", "-c", _NO_REDIRECTS])

    def switch(on: bool) -> None:
        router = first if on else second
        client.exec(["ip", "route", "replace", pod.ipv4, "via", router.ipv4])
        second.exec(["ip", "route", "flush", "exact", client.ipv4])
        if on:
            second.exec(["ip", "route", "add", client.ipv4, "via", first.ipv4])

    way = Way("one hop more, nothing attached", "client", _FAR, labs.straight(_FAR), target=None)
    return ways.switched("nodeport", lab, way, ways.CONNECT_RATE, switch, options)


def _against_hop(pair: Pair, options: Options) -> Row:
    """The NodePort, and the same nodes in the same order without programs."""

    def goal(lab: Lab) -> Goal:
        return (labs.node_port if lab is pair.ours else labs.straight)(_FAR)(lab)

    way = Way("pod on the other node, against that hop", "client", _FAR, goal, target=None)
    return ways.in_both("nodeport", pair, way, ways.CONNECT_RATE, options)

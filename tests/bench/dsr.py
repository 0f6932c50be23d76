# SPDX-License-Identifier: Apache-2.0
"""New TCP connections from outside through a NodePort whose pod is on the other node: with direct
server return, compared with masquerading, and with a plain extra hop without programs.
"""

from collections.abc import Iterator

from ebpflb.lab import Lab
from tests.bench.harness import labs, ways
from tests.bench.harness.agent import pinned_maps
from tests.bench.harness.labs import Pair
from tests.bench.harness.load import Goal
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Way
from tests.e2e.harness.waiting import wait_until

HOP_TARGET = 1.0

_FIGURES = {
    "connections": ways.CONNECT_RATE,
    "from the client": ways.PUSH_RATE,
    "to the client": ways.PULL_RATE,
}

_FAR = 1
_NO_REDIRECTS = "for each in /proc/sys/net/ipv4/conf/*/send_redirects; do echo 0 > $each; done"


def run(options: Options) -> Iterator[Row]:
    """The pod's node replies directly to the client."""
    with labs.bare_pair() as pair, labs.served(pair.ours, 1, [_FAR], ["--dsr", "all"]):
        targets = pinned_maps(pair.ours.node(labs.NODES[0]))["lb_pod_nodes"]
        wait_until(lambda: list(targets.items()), "the way to the other node is known")
        found = list(targets.items())

        def switch(on: bool) -> None:
            if on:
                targets.update_batch(found)
            else:
                targets.delete_batch([key for key, _ in found])

        for what, figure in _FIGURES.items():
            case = f"{what}, against masquerading"
            way = Way(case, "client", _FAR, labs.node_port(_FAR), target=None)
            yield ways.switched("dsr", pair.ours, way, figure, switch, options)
        switch(on=True)
        yield _against_hop(pair, options)
        if sorted(targets.items()) != sorted(found):
            raise BenchError("the way to the other node has changed meanwhile")


def _against_hop(pair: Pair, options: Options) -> Row:
    """The same nodes without programs: requests and replies through both of them."""
    first, second = (pair.other.node(name) for name in labs.NODES)
    pod, client = labs.pod(pair.other, _FAR), pair.other.client
    first.exec(["sh", "-c", _NO_REDIRECTS])
    client.exec(["ip", "route", "replace", pod.ipv4, "via", first.ipv4])
    second.exec(["ip", "route", "add", client.ipv4, "via", first.ipv4])

    def goal(lab: Lab) -> Goal:
        return (labs.node_port if lab is pair.ours else labs.straight)(_FAR)(lab)

    way = Way("connections, against a plain hop more", "client", _FAR, goal, HOP_TARGET)
    return ways.in_both("dsr", pair, way, ways.CONNECT_RATE, options)

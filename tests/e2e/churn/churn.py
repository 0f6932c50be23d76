# SPDX-License-Identifier: Apache-2.0
"""Rounds of churn on a lab with agents: objects and devices are created, changed and all deleted.

Meanwhile a permanent Service has traffic, with DSR in every other round, and no connection fails.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from ebpflb.dataplane.kernel.maps import used
from ebpflb.lab import Lab, LabConfig, LabNode
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.churn.footprint import MEMORY, OPEN_MAPS, Footprint, footprint, growth
from tests.e2e.churn.network import ChangingDevices
from tests.e2e.churn.objects import Objects, draw_node, draw_service, redraw_slices
from tests.e2e.harness.cluster import Cluster, built, lab_name, started
from tests.e2e.harness.in_force import pinned_maps, wait_in_force
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.waiting import wait_until

STEPS = 60
# Short timeouts, so that whatever waits for flows to end finishes soon.
_OPTIONS = (
    "--dsr=annotated",
    "--conntrack-udp-timeout=2s",
    "--conntrack-udp-timeout-stream=4s",
    "--conntrack-tcp-timeout-close-wait=5s",
)
_MOST_SERVICES, _MOST_NODES = 24, 8
# Seconds. Many Services may make maps grow more than once, which loads programs each time.
_GROWN_AFTER = 300.0
# Every this many steps, everything must be in force.
_STEPS_TO_WAIT = 20
# The agent looks at flows and at pins every 5 s, and frees replaced objects after a grace period.
_PATIENCE = 90.0
# Bytes that one step may log.
_MOST_SAID = 2_000


class Checkpoint(NamedTuple):
    """The footprint of each node after a round, and the bytes that its agent logged during it."""

    held: dict[str, Footprint]
    said: dict[str, int]


class Churn:
    """A lab on which rounds are played. checkpoints: one after each round so far."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.checkpoints: list[Checkpoint] = []
        self._stay = [self._staying(has_dsr) for has_dsr in ("false", "true")]
        self._objects: dict[str, Objects] = {}
        self._devices = [
            ChangingDevices(node, cluster.lab.pods_on(node.name)[-1]) for node in cluster.nodes
        ]
        for node in cluster.nodes:
            wait_until(partial(self._has_tunnels, node), "the other node has answered")
        begin = {node.name: footprint(node) for node in cluster.nodes}
        self._have_room()
        # Maps replaced by larger ones stay open until Python collects them.
        self._begin = {
            node.name: {**begin[node.name], OPEN_MAPS: footprint(node)[OPEN_MAPS]}
            for node in cluster.nodes
        }

    @property
    def _lab(self) -> Lab:
        return self.cluster.lab

    def _staying(self, has_dsr: str) -> ServiceSpec:
        spec = self.cluster.new(annotations={"dsr": has_dsr})
        return self.cluster.serve(spec, self._lab.pods)

    def _has_tunnels(self, node: LabNode) -> bool:
        """Whether those to the pods of the permanent Service with DSR are there."""
        others = [pod for pod in self._lab.pods if pod.node != node.name]
        return used(pinned_maps(node)["lb_pod_nodes"]) == sum(len(pod.addresses) for pod in others)

    def _have_room(self) -> None:
        """Grow the maps enough for anything that may be drawn, then delete it all again."""
        chance = Random(0)
        for number in range(_MOST_SERVICES):
            self._write(f"churn-{number}.yaml", draw_service(self._lab, chance, number))
        wait_in_force(self.cluster.nodes, _GROWN_AFTER)
        self.clear()
        wait_in_force(self.cluster.nodes)

    def play(self, seed: int, steps: int = STEPS) -> Checkpoint:
        """Play one round; AssertionError for a failed connection, and for growth at the end.

        No node may hold more than before the first round; of memory, than after the second one.
        """
        chance = Random(seed)
        before = self._said()
        with none_fails(self.cluster, self._stay[seed % 2], held=True) as loads:
            for number in range(steps):
                self._step(chance)
                if number % _STEPS_TO_WAIT == _STEPS_TO_WAIT - 1:
                    wait_in_force(self.cluster.nodes, _GROWN_AFTER)
                    loads.go_on()
            self.clear()
            wait_in_force(self.cluster.nodes, _GROWN_AFTER)
            loads.go_on()
        held = {each.name: self._settled(each) for each in self.cluster.nodes}
        said = {name: size - before[name] for name, size in self._said().items()}
        assert max(said.values()) <= _MOST_SAID * steps, f"bytes that were logged: {said}"
        self.checkpoints.append(Checkpoint(held, said))
        return self.checkpoints[-1]

    def _settled(self, node: LabNode) -> Footprint:
        """A node's footprint, once it is no larger than before the first round.

        Its memory is compared with that after the second one.
        """
        most = dict(self._begin[node.name])
        if len(self.checkpoints) > 1:
            most[MEMORY] = self.checkpoints[1].held[node.name][MEMORY]
        else:
            del most[MEMORY]
        grown: dict[str, tuple[int, int]] = {}

        def is_level() -> bool:
            grown.clear()
            grown.update(growth(most, footprint(node)))
            return not grown

        try:
            wait_until(is_level, "what a node holds levels off", _PATIENCE)
        except pytest.fail.Exception:
            raise AssertionError(f"{node.name} holds more, before and now: {grown}") from None
        return footprint(node)

    def clear(self) -> None:
        """Delete whatever rounds created and did not delete."""
        for name in list(self._objects):
            self._remove(name)
        for devices in self._devices:
            devices.clear()

    def _said(self) -> dict[str, int]:
        return {name: agent.log.stat().st_size for name, agent in self.cluster.agents.items()}

    def _step(self, chance: Random) -> None:
        kind = chance.choices(("service", "slices", "device", "node"), (6, 2, 3, 2))[0]
        if kind == "service":
            number = chance.randrange(_MOST_SERVICES)
            self._switch(
                f"churn-{number}.yaml", draw_service(self._lab, chance, number), chance, again=3
            )
        elif kind == "node":
            number = chance.randrange(_MOST_NODES)
            objects = draw_node(self._lab, chance, number)
            self._switch(f"churn-node-{number}.yaml", objects, chance, again=2)
        elif kind == "device":
            chance.choice(self._devices).change(chance)
        elif services := sorted(name for name in self._objects if "node" not in name):
            name = chance.choice(services)
            self._write(name, redraw_slices(self._lab, chance, self._objects[name]))

    def _switch(self, name: str, objects: Objects, chance: Random, again: int) -> None:
        """Create it, or change it, or delete it once in `again` times."""
        if name in self._objects and not chance.randrange(again):
            self._remove(name)
        else:
            self._write(name, objects)

    def _write(self, name: str, objects: Objects) -> None:
        self._objects[name] = objects
        self._lab.write_manifests(objects, name)

    def _remove(self, name: str) -> None:
        del self._objects[name]
        self._lab.remove_manifests(name)


@contextmanager
def churning(logs: Path, options: Sequence[str] = ()) -> Iterator[Churn]:
    """Two nodes with an agent each, and both families."""
    with (
        built(LabConfig(lab_name(), pods=2)) as lab,
        started(lab, logs, [*_OPTIONS, *options]) as cluster,
    ):
        yield Churn(cluster)

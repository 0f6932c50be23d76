# SPDX-License-Identifier: Apache-2.0
"""Rounds of churn on a lab with agents: everything comes, changes and goes, and all of it is gone.

Meanwhile there is traffic to a Service that stays, with DSR in every other round, without a
connection that fails.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from ebpflb.lab import Lab, LabConfig, LabNode
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.churn.footprint import MEMORY, OPEN_MAPS, Footprint, footprint, growth
from tests.e2e.churn.network import ChangingDevices
from tests.e2e.churn.objects import Objects, draw_node, draw_service, redraw_slices
from tests.e2e.harness.cluster import Cluster, built, lab_name, started
from tests.e2e.harness.in_force import wait_in_force
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.waiting import wait_until

STEPS = 60
# Flows end soon, so that what waits for them does, too.
_OPTIONS = (
    "--dsr=annotated",
    "--conntrack-udp-timeout=2s",
    "--conntrack-udp-timeout-stream=4s",
    "--conntrack-tcp-timeout-close-wait=5s",
)
_MOST_SERVICES, _MOST_NODES = 24, 8
# Seconds. Many Services may make maps grow more than once, which loads programs each time.
_GROWN_AFTER = 300.0
# So often everything must be in force in between.
_STEPS_TO_WAIT = 20
# The agent looks at flows every 5 s, and at pins; after a grace period it frees what was replaced.
_PATIENCE = 90.0
# What one step may say in the log, in bytes.
_MOST_SAID = 2_000


class Checkpoint(NamedTuple):
    """After a round, by node, and how much the agents have said in it, in bytes."""

    held: dict[str, Footprint]
    said: dict[str, int]


class Churn:
    """A lab on which rounds are played. checkpoints: after each round so far."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.checkpoints: list[Checkpoint] = []
        self._stay = [self._staying(has_dsr) for has_dsr in ("false", "true")]
        self._objects: dict[str, Objects] = {}
        self._devices = [
            ChangingDevices(node, cluster.lab.pods_on(node.name)[-1]) for node in cluster.nodes
        ]
        begin = {node.name: footprint(node) for node in cluster.nodes}
        self._have_room()
        # Maps that were replaced by larger ones stay open until Python collects them.
        self._begin = {
            node.name: {**begin[node.name], OPEN_MAPS: footprint(node)[OPEN_MAPS]}
            for node in cluster.nodes
        }

    @property
    def _lab(self) -> Lab:
        return self.cluster.lab

    def _staying(self, has_dsr: str) -> ServiceSpec:
        spec = self.cluster.new()
        objects = self._lab.service(spec, self._lab.pods)
        objects[0]["metadata"]["annotations"] = {"ebpflb.io/dsr": has_dsr}
        self.cluster.write(spec, objects)
        return spec

    def _have_room(self) -> None:
        """Have maps that are large enough for whatever is drawn; nothing of it stays."""
        chance = Random(0)
        for number in range(_MOST_SERVICES):
            self._write(f"churn-{number}.yaml", draw_service(self._lab, chance, number))
        wait_in_force(self.cluster.nodes, _GROWN_AFTER)
        self.clear()
        wait_in_force(self.cluster.nodes)

    def play(self, seed: int, steps: int = STEPS) -> Checkpoint:
        """One round; AssertionError for what does not hold, at its end also for what has grown.

        No node may hold more than before the first round, and than after the second in memory.
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
        """What a node holds, once that is no more than before the first round.

        Of memory: than after the second one.
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
        """Remove all that rounds have made and not removed."""
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
        """Make it, or change it, or remove it once in `again` times."""
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

# SPDX-License-Identifier: Apache-2.0
"""The rounds of `make fuzz ARGS=churn` with other seeds, and proof that they detect growth."""

from collections.abc import Iterator
from random import Random

import pytest

from tests.e2e.churn.churn import Churn, churning
from tests.e2e.churn.footprint import footprint, growth
from tests.e2e.churn.objects import draw_service
from tests.e2e.harness.in_force import wait_in_force

SEEDS = (1, 2)
STEPS = 20


@pytest.fixture(scope="module")
def churn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Churn]:
    with churning(tmp_path_factory.mktemp("churn")) as churn:
        yield churn


def test_deleted_objects_leave_nothing_in_an_agent_or_in_the_kernel(churn: Churn):
    for seed in SEEDS:
        churn.play(seed, STEPS)
    assert len(churn.checkpoints) == len(SEEDS)


def test_growth_is_detected(churn: Churn):
    node = churn.cluster.lab.node("node1")
    before = footprint(node)
    objects = draw_service(churn.cluster.lab, Random(1), 0)
    churn.cluster.lab.write_manifests(objects, "left.yaml")
    try:
        wait_in_force([node])
        grown = growth(before, footprint(node))
    finally:
        churn.cluster.lab.remove_manifests("left.yaml")
        wait_in_force([node])
    for name in ("lb_frontends", "lb_descs", "lb_names", "lb_dest_filter", "lb_addrs"):
        assert f"entries of {name}" in grown

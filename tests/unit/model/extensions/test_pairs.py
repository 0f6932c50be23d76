# SPDX-License-Identifier: Apache-2.0
"""Every value of every annotation of a Service beside every value of every other one."""

import ast
from itertools import combinations

import pytest

from ebpflb.model.address import Family
from ebpflb.model.ending.endings import EndReason
from ebpflb.model.extensions.limits import OpenLimit
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.extensions.syntax import OF_SERVICES
from ebpflb.model.plan import FrontendType, IfEmpty
from ebpflb.model.service import TrafficPolicy
from ebpflb.words import annotations as words
from ebpflb.words.backup import BackupUse
from tests.pairs.document import PAGE, ROOT, render
from tests.pairs.effects import EFFECTS, EVEN, SHARES, is_seen
from tests.pairs.table import TABLE, Together, is_hidden
from tests.pairs.world import ELSEWHERE, LENT, LENT_ELSEWHERE, SPARE, World, place, slices

PAIRS = list(combinations(OF_SERVICES, 2))
SPILLING = {words.BACKUP: SPARE.name, words.SPILL_AT: "10"}


def short(name: str) -> str:
    return name.removeprefix(words.PREFIX)


def test_every_annotation_has_an_effect_to_be_seen():
    assert list(EFFECTS) == list(OF_SERVICES)


@pytest.mark.parametrize("name", EFFECTS, ids=short)
def test_an_effect_is_seen_with_the_annotation_and_not_without(name: str):
    effect = EFFECTS[name]
    for value in effect.values:
        assert is_seen(name, value, {}), value
        assert not effect.is_seen(effect.needs, value) or value == "random", value
        for needed in effect.needs:
            left = {each: text for each, text in effect.needs.items() if each != needed}
            assert not effect.is_seen({**left, name: value}, value)


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=short)
def test_both_effects_are_seen_unless_the_table_says_otherwise(first: str, second: str):
    for one, other in ((first, second), (second, first)):
        for value in EFFECTS[one].values:
            for beside in EFFECTS[other].values:
                seen = is_seen(one, value, {other: beside})
                assert seen != is_hidden(one, other, beside), (one, value, other, beside)


def test_the_table_has_each_pair_once_in_order():
    found = [(each.first, each.second) for each in TABLE]
    assert found == [pair for pair in PAIRS if pair in found]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{short(row.first)}-{short(row.second)}")
def test_every_row_has_a_proof(row: Together):
    path, _, test = row.proof.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert test in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def test_the_page_is_what_the_table_says():
    assert PAGE.read_text() == render()


# What the table says of pairs, and other tests do not show


def spilling(**more: str) -> World:
    world = World({**SPILLING, **more})
    names = {port.name for port in world.service.ports}
    world.changes.backups.observe(dict.fromkeys(names, 10), 0.0)
    return world


def label(world: World, *versions: str) -> None:
    """The pods of the backup."""
    for number, version in zip(LENT, versions, strict=True):
        world.changes.set(PodLabels("default", f"pod-{number}", (("version", version),)))


def shares(world: World) -> set[tuple[float, ...]]:
    return {each.shares for each in world.choices()}


def test_endpoints_of_the_backup_have_the_limit_too():
    limited = {words.MAX_CONNECTIONS: "7"}
    for world in (spilling(**limited), World({words.BACKUP: SPARE.name, **limited}, ready=False)):
        places = {each.address for choice in world.choices() for each in choice.backends}
        assert {place(number, family).address for number in LENT for family in Family} <= places
        assert {each.limits.per_endpoint for each in world.plan()} == {OpenLimit(7)}


def test_without_a_share_the_backup_alone_is_even():
    world = World({words.BACKUP: SPARE.name, words.WEIGHTS: SHARES}, ready=False)
    assert shares(world) == {(0.5, 0.5)}
    assert "the weights have no effect" in next(each.text for each in world.changes.problems())
    label(world, "v1", "v2")
    assert shares(world) == {(0.75, 0.25)}
    assert not world.changes.problems()


def test_a_backup_with_a_share_of_its_own_helps():
    world = spilling(**{words.WEIGHTS: f"{SHARES},version=spare:40"})
    label(world, "spare", "other")
    assert shares(world) == {(0.1875, 0.125, 0.1875, 0.5)}


def test_what_spills_over_is_evened_out_over_both():
    def ended(world: World) -> list[EndReason]:
        return world.ended((1, 2, 3) * 10, age=100.0, idle=60.0)

    assert not ended(World({**SPILLING, words.REBALANCE: EVEN}))
    assert ended(spilling(**{words.REBALANCE: EVEN})) == [EndReason.UNEVEN] * 18


def test_connections_at_the_backup_get_too_old():
    for given in (SPILLING, {words.BACKUP: SPARE.name}):
        world = World({**given, words.MAX_CONNECTION_AGE: "1h"})
        assert world.ended(LENT, age=3601.0, idle=2.0) == [EndReason.AGE] * 4


def test_an_endpoint_of_the_backup_is_gone_when_the_backup_is():
    world = World({words.BACKUP: SPARE.name, words.ON_ENDPOINT_GONE: "reset"})
    assert not world.ended(LENT, age=5.0, idle=0.0)
    for piece in slices(SPARE, LENT[:1]):
        world.changes.set(piece)
    assert world.ended(LENT, age=5.0, idle=0.0) == [EndReason.GONE] * 2
    alone = World({words.ON_ENDPOINT_GONE: "reset"})
    assert alone.ended(LENT, age=5.0, idle=0.0) == [EndReason.GONE] * 4


def outside(world: World) -> set[tuple[int, IfEmpty, BackupUse]]:
    """Of clients outside at external and load-balancer IPs."""
    vips = (FrontendType.EXTERNAL_IP, FrontendType.LOAD_BALANCER)
    return {
        (len(each.others.backends), each.others.if_empty, each.backup)
        for each in world.plan()
        if each.type in vips
    }


def test_packets_pass_where_the_backup_has_no_endpoint_either():
    def local(*, ready: bool) -> World:
        given = {words.BACKUP: SPARE.name, words.NO_LOCAL_ENDPOINT: "pass"}
        return World(given, policy=TrafficPolicy.LOCAL, numbers=(ELSEWHERE,), ready=ready)

    assert outside(local(ready=True)) == {(0, IfEmpty.PASS, BackupUse.NONE)}
    world = local(ready=False)
    assert outside(world) == {(len(LENT), IfEmpty.PASS, BackupUse.ONLY)}
    for piece in slices(SPARE, (LENT_ELSEWHERE,)):
        world.changes.set(piece)
    assert outside(world) == {(0, IfEmpty.PASS, BackupUse.ONLY)}

# SPDX-License-Identifier: Apache-2.0
"""From one generation of maps and programs to the next: what is created, shared, copied,
removed.
"""

import ctypes
from collections.abc import Mapping
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import open_maps
from ebpflb.dataplane.layout import structs
from ebpflb.dataplane.layout.capacity import (
    COUNT_MAPS,
    FLOW_MAPS,
    MAPS,
    NODE_MAPS,
    SERVICE_MAPS,
    SIZED_MAPS,
    Sizes,
)
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.layout.structs import LbTuple, u8, u64
from ebpflb.dataplane.load import loader, pins
from ebpflb.dataplane.load.loader import Build, Loader, pinned_sizes
from ebpflb.dataplane.load.pins import Generation, Pins
from ebpflb.errors import CompileError
from ebpflb.model.address import Protocol
from tests.bpf.harness.datapath import Datapath, Verdict
from tests.bpf.harness.loading import SIZES, Loaded
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, End, Kind
from tests.bpf.load.loading import (
    LARGER_TABLE,
    TAKEN_OVER,
    contents,
    element,
    fill,
    finish,
    load,
    make_maps,
    refuse,
    shared,
    sizes_of,
    start,
)

GROWN = SIZES.grown()


def fail(text: str, defines: Mapping[str, str], programs: Path) -> None:
    """A compiler that fails half way through."""
    make_maps(text, defines, programs)
    raise CompileError("broken")


def change_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "source_text", lambda: "another program")


def directories(root: Pins) -> set[str]:
    """The directories of generations, without links or what every bpffs has."""
    return {path.name for path in root.root.iterdir() if "-" in path.name}


# Starting


def test_a_first_start_makes_every_map_in_the_wanted_size(root: Pins):
    generation = start(root)
    assert {path.name for path in generation.maps.iterdir()} == set(MAPS)
    assert pinned_sizes(generation) == SIZES
    assert root.current() == generation


def test_a_generation_does_not_count_before_it_is_finished(root: Pins):
    generation = load(root)
    assert root.current() is None
    assert not generation.is_complete


def test_a_second_start_compiles_nothing(root: Pins):
    generation = start(root)
    again = load(root, compiler=refuse)
    finish(root, again)
    assert again == generation
    assert directories(root) == {generation.directory.name}


def test_smaller_sizes_compile_nothing(root: Pins):
    start(root, GROWN)
    assert pinned_sizes(load(root, SIZES, refuse)) == GROWN


@pytest.mark.parametrize(
    "lacks", ["has_set_retval", "has_coarse_clock", "has_fib_mtu", "has_sock_ops"]
)
def test_another_kernel_feature_compiles_again(root: Pins, lacks: str):
    first = start(root)
    features = {"has_set_retval": True, lacks: False}
    second = Loader(root, Build(**features), compiler=make_maps).load(SIZES)
    assert second != first


def test_pins_without_a_note_of_their_making_are_not_used(root: Pins):
    first = start(root)
    open_maps(first.maps)["lb_meta"].update(bytes(4), bytes(44))
    second = load(root)
    assert second != first
    assert not shared(first, second)


# New programs


def test_new_programs_share_the_maps_of_services_and_flows(
    root: Pins, monkeypatch: pytest.MonkeyPatch
):
    first = start(root)
    before = fill(first, TAKEN_OVER)
    change_source(monkeypatch)
    second = load(root)
    assert second.number == first.number + 1
    assert shared(first, second) == set(TAKEN_OVER)
    assert contents(second, TAKEN_OVER) == before


def test_the_old_generation_goes_when_the_new_one_is_finished(
    root: Pins, monkeypatch: pytest.MonkeyPatch
):
    first = start(root)
    before = fill(first, FLOW_MAPS)
    change_source(monkeypatch)
    second = start(root)
    assert directories(root) == {second.directory.name}
    assert contents(second, FLOW_MAPS) == before


# Growth


def test_larger_maps_keep_what_was_in_the_smaller_ones(root: Pins):
    first = start(root)
    before = fill(first, SERVICE_MAPS)
    second = start(root, GROWN)
    assert contents(second, SERVICE_MAPS) == before
    assert pinned_sizes(second) == GROWN


def test_a_frontend_with_the_first_index_stays(root: Pins):
    maps = open_maps(start(root).maps)
    key, first = element(maps, "lb_frontends", 1)[0], bytes(maps["lb_frontends"].value_size)
    maps["lb_frontends"].update(key, first)
    assert open_maps(start(root, GROWN).maps)["lb_frontends"].lookup(key) == first


def test_growth_for_services_leaves_the_flows_where_they_are(root: Pins):
    first = start(root)
    second = load(root, GROWN)
    assert shared(first, second) == {*FLOW_MAPS, *COUNT_MAPS}


def test_one_larger_map_of_services_moves_them_all(root: Pins):
    first = start(root)
    second = load(root, Sizes(**{**sizes_of(SIZES), "slots": 2 * SIZES.slots}))
    assert not shared(first, second) & set(SERVICE_MAPS)


class ShorterConntrack(ctypes.Structure):
    """struct lb_conntrack, eight bytes less."""

    _fields_ = (("bytes", u8 * (ctypes.sizeof(structs.LbConntrack) - 8)),)


def test_nothing_else_is_compiled_for_maps_of_another_size(root: Pins):
    compiled = []

    def compiler(text: str, defines: Mapping[str, str], programs: Path) -> None:
        compiled.append({**defines, "LB_PIN_MAPS": ""})
        make_maps(text, defines, programs)

    start(root, SIZES, compiler)
    assert pinned_sizes(load(root, GROWN, compiler)) == GROWN
    first, second = compiled
    assert first == second
    assert Sizes().defines().items() <= first.items()


def with_shorter(root: Pins, monkeypatch: pytest.MonkeyPatch, table: str) -> Generation:
    """Maps as created by a version whose entries of this table are eight bytes shorter."""
    with monkeypatch.context() as before:
        spec = MAPS[table]._replace(value=ShorterConntrack)
        for specs in (FLOW_MAPS, MAPS, SIZED_MAPS):
            before.setitem(specs, table, spec)
        made = start(root)
    change_source(monkeypatch)
    return made


@pytest.fixture
def earlier(root: Pins, monkeypatch: pytest.MonkeyPatch) -> Generation:
    return with_shorter(root, monkeypatch, "lb_conntrack")


def test_a_flow_table_that_must_be_copied_gets_the_wanted_size(root: Pins, earlier: Generation):
    before = fill(earlier, FLOW_MAPS)
    second = load(root, LARGER_TABLE)
    assert shared(earlier, second) == set(TAKEN_OVER) - {"lb_conntrack"}
    assert pinned_sizes(second) == LARGER_TABLE
    after = contents(second, FLOW_MAPS)
    assert after["lb_conntrack"] == {
        key: value + bytes(8) for key, value in before.pop("lb_conntrack").items()
    }
    assert before.items() <= after.items()


def flow(port: int) -> bytes:
    return bytes(LbTuple(sport=port))


def test_flows_that_begin_while_hooks_move_are_taken_over(
    root: Pins, monkeypatch: pytest.MonkeyPatch
):
    old = open_maps(with_shorter(root, monkeypatch, "lb_ct_stream").maps)["lb_ct_stream"]
    second = load(root)
    new = open_maps(second.maps)["lb_ct_stream"]
    old.update(flow(1), b"1" * old.value_size)
    finish(root, second)
    assert new.lookup(flow(1)) == b"1" * old.value_size + bytes(8)


def test_what_the_new_programs_wrote_is_not_overwritten(root: Pins, earlier: Generation):
    old = open_maps(earlier.maps)["lb_conntrack"]
    old.update(flow(1), b"1" * old.value_size)
    second = load(root)
    new = open_maps(second.maps)["lb_conntrack"]
    new.update(flow(1), b"2" * new.value_size)
    finish(root, second)
    assert new.lookup(flow(1)) == b"2" * new.value_size


SMALLER = {"lb_reply_filter": u8, "lb_dest_filter": u8, "lb_addr_flags": u64}


@pytest.mark.parametrize(
    ("name", "when"), [*((name, "before") for name in SMALLER), ("lb_reply_filter", "meanwhile")]
)
def test_what_smaller_elements_had_set_stays_set(
    root: Pins, monkeypatch: pytest.MonkeyPatch, name: str, when: str
):
    spec = MAPS[name]._replace(value=SMALLER[name])
    with monkeypatch.context() as earlier:
        for specs in (SERVICE_MAPS, FLOW_MAPS, MAPS, SIZED_MAPS):
            if name in specs:
                earlier.setitem(specs, name, spec)
        old = open_maps(start(root).maps)[name]
    element = bytes(4), b"\1".ljust(old.value_size, b"\0")
    if when == "before":
        old.update(*element)
    change_source(monkeypatch)
    second = load(root)
    if when == "meanwhile":
        old.update(*element)
    finish(root, second)
    ((_, value),) = contents(second, {name: None})[name].items()
    assert value.strip(b"\0") == b"\1" == value[:1]


# Other layouts


def test_a_new_layout_keeps_the_flows_and_no_services(root: Pins, monkeypatch: pytest.MonkeyPatch):
    first = start(root)
    before = fill(first, TAKEN_OVER)
    for module in (pins, loader):
        monkeypatch.setattr(module, "LAYOUT_VERSION", structs.LAYOUT_VERSION + 1)
    change_source(monkeypatch)
    second = start(root)
    assert second.layout == first.layout + 1
    assert contents(second, FLOW_MAPS) == {name: before[name] for name in FLOW_MAPS}
    assert not any(contents(second, SERVICE_MAPS).values())
    assert directories(root) == {second.directory.name}


def test_a_new_layout_of_flows_begins_without_any(root: Pins, monkeypatch: pytest.MonkeyPatch):
    first = start(root)
    fill(first, TAKEN_OVER)
    monkeypatch.setattr(loader, "FLOW_VERSION", structs.FLOW_VERSION + 1)
    change_source(monkeypatch)
    second = load(root)
    assert shared(first, second) == {*SERVICE_MAPS, *COUNT_MAPS}
    assert not any(contents(second, FLOW_MAPS).values())


def test_what_belongs_to_the_node_is_written_again(root: Pins, monkeypatch: pytest.MonkeyPatch):
    first = start(root)
    kept = {"lb_meta", "lb_netns", "lb_pod_cgroups"}
    names = {name: spec for name, spec in NODE_MAPS.items() if name not in kept}
    fill(first, names)
    change_source(monkeypatch)
    assert not any(contents(load(root), names).values())


def test_a_map_that_the_old_generation_lacks_is_made(root: Pins, monkeypatch: pytest.MonkeyPatch):
    first = start(root)
    before = fill(first, SERVICE_MAPS)
    (first.maps / "lb_sockets").unlink()
    (first.maps / "lb_netns").unlink()
    change_source(monkeypatch)
    second = start(root)
    assert {path.name for path in second.maps.iterdir()} == set(MAPS)
    assert contents(second, SERVICE_MAPS) == before


# Interruptions


def test_an_interrupted_start_is_ignored_and_removed(root: Pins, monkeypatch: pytest.MonkeyPatch):
    first = start(root)
    with monkeypatch.context() as patch:
        change_source(patch)
        unfinished = load(root)
    assert load(root, compiler=refuse) == first
    finish(root, first)
    assert directories(root) == {first.directory.name}
    assert not unfinished.directory.exists()


def test_after_an_interruption_the_next_start_begins_from_the_last_complete_one(
    root: Pins, monkeypatch: pytest.MonkeyPatch
):
    first = start(root)
    before = fill(first, FLOW_MAPS)
    change_source(monkeypatch)
    load(root)
    second = start(root)
    assert contents(second, FLOW_MAPS) == before
    assert directories(root) == {second.directory.name}


def test_a_compile_that_fails_leaves_nothing_behind(root: Pins):
    first = start(root)
    with pytest.raises(CompileError):
        load(root, GROWN, fail)
    assert root.current() == first
    assert directories(root) == {first.directory.name}


def test_starts_that_are_killed_do_not_pile_up(root: Pins, monkeypatch: pytest.MonkeyPatch):
    first = start(root)
    change_source(monkeypatch)
    for _ in range(3):
        load(root)
    assert len(directories(root)) == 2
    assert first.directory.name in directories(root)


# The real compiler


def test_the_real_programs_are_pinned_and_see_the_services_that_were_there(
    root: Pins, machine: Node
):
    kind = Kind(IPV4, Protocol.UDP)
    first = start(root)
    old = Datapath(Loaded(open_maps(first.maps), {}))
    old.address(kind.net.cluster_ip, AddrFlag.LB_ADDR_CLUSTER_IP)
    real = Loader(root, Build(has_set_retval=False))
    second = real.load(SIZES)
    assert {path.name for path in second.progs.iterdir()} == set(PROGRAMS)

    programs = {"lb_pod_ingress": libbpf.obj_get(second.progs / "lb_pod_ingress")}
    new = Datapath(Loaded(open_maps(second.maps), programs))
    frame = kind.frame(End(kind.net.pod, 40000), End(kind.net.cluster_ip, 80))
    with machine.entered():
        assert new.run("lb_pod_ingress", frame).verdict is Verdict.REDIRECT
    assert shared(first, second) == set(TAKEN_OVER)
    real.finish(second)
    assert Loader(root, Build(has_set_retval=False), compiler=refuse).load(SIZES) == second

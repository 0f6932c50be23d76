# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from ebpflb.dataplane.attach import links
from ebpflb.dataplane.attach.attachments import attachments
from ebpflb.dataplane.attach.devices import snapshot
from ebpflb.dataplane.attach.hooks import Applied, HookPlaces, Hooks, detach_all
from ebpflb.dataplane.attach.links import CGROUP_HOOKS, Change, LoadedProgram
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.kernel.namespaces import own_cookie
from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.layout import structs
from ebpflb.dataplane.layout.enums import DeviceFlag, DeviceKind, NetnsFlag
from ebpflb.dataplane.layout.structs import LbAddr
from ebpflb.errors import AttachError, MapError, PinError, ProbeError
from ebpflb.lab.processes import remove_cgroup
from ebpflb.model.address import parse_address
from ebpflb.model.pod import PodSockets
from tests.bpf.attach import tiny
from tests.bpf.attach.network import Network, entered, ip, tc
from tests.bpf.harness.numbers import number
from tests.e2e.harness.waiting import wait_until
from tests.memory_maps import memory_maps

HOST = structs.LbNetns(flags=NetnsFlag.LB_NETNS_HOST)
MAC = "02:00:00:00:07:00"


class _Defaults:
    host_devices = nodeport_addresses = ()
    workload_devices: tuple[str, ...] = ()
    bind_address = ""


class Node(NamedTuple):
    """A node with an uplink `eth0`, a pod behind `veth1`, and programs that accept every packet."""

    places: HookPlaces
    maps: MapSet
    network: Network
    pod: Path

    @contextmanager
    def hooks(self, probe: Probe | None = None) -> Iterator[Hooks]:
        with (
            links.HeldLinks() as held,
            Hooks(self.places, self.maps, probe or Probe(), held) as hooks,
        ):
            yield hooks

    def apply(self, probe: Probe | None = None, workload_devices: tuple[str, ...] = ()) -> Applied:
        settings = _Defaults()
        settings.workload_devices = workload_devices
        with self.hooks(probe) as hooks:
            return hooks.apply(snapshot(settings))

    def pins(self) -> set[str]:
        return {path.name for path in self.places.links.iterdir()}

    def netns(self) -> dict[int, structs.LbNetns]:
        return {
            int.from_bytes(key, "little"): structs.LbNetns.from_buffer_copy(value)
            for key, value in self.maps["lb_netns"].items()
        }

    def pod_cgroups(self) -> set[int]:
        return {number(key) for key, _ in self.maps["lb_pod_cgroups"].items()}

    def devices(self) -> dict[int, structs.LbDevice]:
        return {
            int.from_bytes(key, "little"): structs.LbDevice.from_buffer_copy(value)
            for key, value in self.maps["lb_devices"].items()
        }

    def uplinks(self) -> dict[int, structs.LbUplink]:
        found = (structs.LbUplink.from_buffer_copy(v) for _, v in self.maps["lb_uplinks"].items())
        return {each.ifindex: each for each in found if each.ifindex}


@pytest.fixture
def node(network: Network, bpffs: Path, cgroup: Path) -> Iterator[Node]:
    places = HookPlaces(bpffs / "progs", bpffs / "links", cgroup)
    places.links.mkdir()
    tiny.pin_programs(places.progs)
    ip(f"link add eth0 index 70 address {MAC} type veth peer name far")
    ip("addr add 192.0.2.1/24 dev eth0")
    pod = network.add_pod("veth1")
    ip("tuntap add tun0 mode tun")
    yield Node(places, memory_maps(), network, pod)
    assert not detach_all(places.links).errors


def index(name: str) -> int:
    (device,) = (d for d in snapshot(_Defaults()).devices.values() if d.name == name)
    return device.ifindex


def cookie_of(pod: Path) -> int:
    with entered(pod):
        return own_cookie()


def test_everything_is_attached_and_written(node):
    done = node.apply()
    names = {"lb_devices", "lb_uplinks", "lb_netns", "eth0", "veth1", "tun0", *CGROUP_HOOKS}
    assert (done.changes.keys(), done.errors) == (names, {})
    sides = {
        f"tcx_{side}_{index(n)}"
        for side in ("ingress", "egress")
        for n in ("eth0", "tun0", "veth1")
    }
    assert node.pins() == sides | CGROUP_HOOKS.keys()
    covered = structs.LbNetns(NetnsFlag.LB_NETNS_COVERED, index("veth1"))
    assert node.netns() == {own_cookie(): HOST, cookie_of(node.pod): covered}
    source = LbAddr.from_buffer_copy(parse_address("192.0.2.1"))
    host, ethernet = DeviceKind.LB_DEVICE_HOST, DeviceFlag.LB_DEVICE_ETHERNET
    devices, tunnel, pod = node.devices(), index("tun0"), index("veth1")
    assert devices == {
        70: structs.LbDevice(host, ethernet, 1500, source, mac=mac(MAC)),
        tunnel: structs.LbDevice(host, 0, 1500, source),
        pod: structs.LbDevice(
            DeviceKind.LB_DEVICE_WORKLOAD, ethernet, 1500, source, mac=devices[pod].mac
        ),
    }
    assert node.uplinks() == {
        70: structs.LbUplink(70, 0, source, mac=mac(MAC)),
        tunnel: structs.LbUplink(tunnel, 0, source),
    }


def test_pods_that_another_generation_covers_are_marked_before_any_hook_moves(node):
    # As with another layout: nothing is copied.
    after = node._replace(maps=memory_maps())
    opted_out = parse_address("10.1.0.1")
    with entered(node.pod):
        ip("addr add 10.1.0.1/32 dev lo")
    with after.hooks() as hooks:
        hooks.pods = PodSockets(tc_only=frozenset({opted_out}))
        hooks.mark_known_pods(snapshot(_Defaults()))
        assert after.netns() == {own_cookie(): HOST}
        node.apply()
        hooks.mark_known_pods(snapshot(_Defaults()))
        flags = NetnsFlag.LB_NETNS_COVERED | NetnsFlag.LB_NETNS_TC_ONLY
        marked = structs.LbNetns(flags, index("veth1"))
        assert after.netns() == {own_cookie(): HOST, cookie_of(node.pod): marked}
        assert hooks.has_tc_only_pods


def mac(text: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(text.replace(":", "")))


@contextmanager
def own_cgroup_at(path: Path) -> Iterator[None]:
    path.mkdir(parents=True)
    try:
        yield
    finally:
        remove_cgroup(path.parent)


def test_the_cgroups_of_covered_pods_are_known(node):
    """From the moment the pod is known until no program covers it."""
    uid = "5a0c1b2d-0001-4002-8003-00000000000a"
    group = node.places.cgroup / "kubepods" / f"pod{uid}"
    with entered(node.pod):
        ip("addr add 10.1.0.1/24 dev eth0")
    with own_cgroup_at(group), node.hooks() as hooks:
        assert not hooks.apply(snapshot(_Defaults())).errors
        assert not hooks.look_into_pods(PodSockets(uids={parse_address("10.1.0.2"): uid}))
        assert hooks.look_into_pods(PodSockets(uids={parse_address("10.1.0.1"): uid}))
        hooks.apply(snapshot(_Defaults()))
        assert node.pod_cgroups() == {group.stat().st_ino}
        assert not hooks.look_into_pods(hooks.pods)
        ip("link del veth1")
        hooks.apply(snapshot(_Defaults()))
        assert node.pod_cgroups() == set()


def test_uplinks_follow_addresses_and_devices(node):
    node.apply()
    other = "02:00:00:00:07:01"
    ip("addr del 192.0.2.1/24 dev eth0\naddr add 192.0.2.2/24 dev eth0\nlink del tun0")
    ip(f"link set eth0 address {other}")
    assert node.apply().changes["lb_uplinks"] is Change.REPLACED
    source = LbAddr.from_buffer_copy(parse_address("192.0.2.2"))
    assert node.uplinks() == {70: structs.LbUplink(70, 0, source, mac=mac(other))}


def test_each_device_runs_the_programs_of_its_kind(node):
    node.apply()
    expected = {"eth0": "lb_host_ingress", "tun0": "lb_l3_ingress", "veth1": "lb_pod_ingress"}
    for name, program in expected.items():
        loaded = LoadedProgram.open(node.places.progs / program)
        loaded.close()
        assert tiny.link_of(node.places.links / f"tcx_ingress_{index(name)}")[1] == loaded.identity


def test_what_a_program_reads_is_there_before_it_runs(node, monkeypatch):
    seen = []

    def note(pin: Path, *others) -> Change:
        seen.append((pin.name, [*node.netns().values()], len(node.devices()), len(node.uplinks())))
        return Change.ATTACHED

    monkeypatch.setattr(links, "attach_cgroup", note)
    monkeypatch.setattr(links, "attach_tcx", note)
    node.apply()
    socket_hooks = len(CGROUP_HOOKS)
    assert seen[:socket_hooks] == [(name, [HOST], 0, 0) for name in CGROUP_HOOKS]
    assert [after for _, *after in seen[socket_hooks:]] == [[[HOST], 3, 2]] * 6
    assert len(node.netns()) == 2


def test_a_second_pass_does_nothing(node):
    with node.hooks() as hooks:
        for expected in (False, True, True):
            done = hooks.apply(snapshot(_Defaults()))
            assert (not done.changes) is expected
            assert not done.errors


def test_another_agent_finds_everything_attached(node):
    node.apply()
    assert node.apply().changes == {}


def test_new_programs_replace_all_old_ones_in_place(node, bpffs):
    node.apply()
    before = {name: tiny.link_of(node.places.links / name) for name in node.pins()}
    newer = node._replace(places=node.places._replace(progs=bpffs / "newer"))
    tiny.pin_programs(newer.places.progs)
    done = newer.apply()
    assert set(done.changes.values()) == {Change.REPLACED}
    after = {name: tiny.link_of(node.places.links / name) for name in node.pins()}
    assert {name: link for name, (link, _) in before.items()} == {
        name: link for name, (link, _) in after.items()
    }
    assert all(before[name][1] != after[name][1] for name in before)


def test_a_pod_that_goes_takes_its_entries_along(node):
    second = node.network.add_pod("veth2")
    gone = cookie_of(second)
    node.apply()
    ifindex = index("veth2")
    assert gone in node.netns()
    ip("link del veth2")
    done = node.apply()
    assert done.errors == {}
    assert gone not in node.netns()
    assert ifindex not in node.devices()
    assert not any(name.endswith(f"_{ifindex}") for name in node.pins())


def test_a_device_that_is_no_workload_any_more_is_let_go(node):
    node.apply()
    done = node.apply(workload_devices=("other*",))
    assert Change.DETACHED in done.changes.values()
    assert node.netns() == {own_cookie(): HOST}
    assert node.devices().keys() == {70, index("tun0")}


def test_what_a_program_reads_goes_after_it_and_its_mark_before(node, monkeypatch):
    node.apply()
    ifindex = index("veth1")
    seen = []

    def note(pin: Path) -> bool:
        seen.append((len(node.netns()), ifindex in node.devices()))
        return True

    monkeypatch.setattr(links, "detach", note)
    node.apply(workload_devices=("other*",))
    monkeypatch.undo()
    assert seen == [(1, True)] * 2
    assert ifindex not in node.devices()


@pytest.mark.parametrize("lacking", [{Feature.TCX_LINK}, set()], ids=["clsact", "tcx"])
def test_all_is_detached_by_pins_and_names_alone(node, lacking):
    node.apply(Probe(without=lacking))
    done = detach_all(node.places.links)
    assert set(done.changes.values()) == {Change.DETACHED}
    assert node.pins() == set()
    assert "clsact" not in tc("qdisc show")
    assert detach_all(node.places.links).changes == {}
    assert detach_all(node.places.links / "nowhere").changes == {}


def test_clsact_serves_where_tcx_is_missing_and_tcx_takes_over(node):
    node.apply(Probe(without={Feature.TCX_LINK}))
    assert node.pins() == CGROUP_HOOKS.keys() | {f"clsact_{ifindex}" for ifindex in node.devices()}
    done = node.apply()
    assert done.changes == dict.fromkeys(("eth0", "tun0", "veth1"), Change.ATTACHED)
    assert "clsact" not in tc("qdisc show")


def test_links_of_another_version_are_removed(node):
    node.apply()
    (node.places.links / "lb_connect4").rename(node.places.links / "lb_older")
    done = node.apply()
    assert done.changes == {"lb_connect4": Change.ATTACHED, "lb_older": Change.DETACHED}


def put_foreign_objects(node: Node) -> None:
    """In place of each kind of link, and next to it."""
    for name in ("lb_connect4", f"tcx_ingress_{index('veth1')}", "lb_older"):
        (node.places.links / name).unlink(missing_ok=True)
        with owned(libbpf.map_create(MapType.ARRAY, "theirs", 4, 4, 1)) as fd:
            libbpf.obj_pin(fd, node.places.links / name)
    for name in ("lb_connect6", f"tcx_egress_{index('veth1')}"):
        (node.places.links / name).unlink()
        (node.places.links / name).mkdir()


def link_ids(node: Node) -> dict[str, int]:
    found = {}
    for path in node.places.links.iterdir():
        with owned(libbpf.obj_get(path)) as fd:
            found[path.name] = libbpf.link_info(fd).id
    return found


def test_what_is_no_link_is_replaced_by_the_one_that_was_there(node):
    with node.hooks() as hooks:
        hooks.apply(snapshot(_Defaults()))
        before = link_ids(node)
        put_foreign_objects(node)
        assert attachments(node.places.links, None)
        assert hooks.apply(snapshot(_Defaults())).errors == {}
        assert link_ids(node) == before


def test_what_is_no_link_is_replaced_by_one_once_the_kernel_has_detached_the_last(node):
    node.apply()
    put_foreign_objects(node)
    wait_until(lambda: node.apply().errors == {}, "links are there")
    assert node.apply().changes == {}
    assert {each.hook for each in attachments(node.places.links, None)} >= {"connect4", "connect6"}


def test_what_is_no_link_does_not_keep_the_others_from_being_detached(node):
    node.apply()
    put_foreign_objects(node)
    assert detach_all(node.places.links).errors == {}
    assert node.pins() == set()


def test_a_broken_device_is_reported_and_keeps_no_other_from_its_programs(node):
    tc("qdisc add dev veth1 ingress")
    done = node.apply(Probe(without={Feature.TCX_LINK}))
    assert done.errors.keys() == {"veth1"}
    assert isinstance(done.errors["veth1"], AttachError)
    assert {"eth0", "tun0"} <= done.changes.keys()
    assert node.netns() == {own_cookie(): HOST}
    tc("qdisc del dev veth1 ingress")
    assert node.apply(Probe(without={Feature.TCX_LINK})).errors == {}
    assert cookie_of(node.pod) in node.netns()


def test_a_device_that_went_since_the_snapshot_is_no_error(node):
    state = snapshot(_Defaults())
    ip("link del veth1")
    with node.hooks() as hooks:
        done = hooks.apply(state)
    assert done.errors == {}
    assert "veth1" not in done.changes


def test_a_pod_with_one_device_that_cannot_be_served_is_not_covered(node):
    ip(f"link add veth2 type veth peer name eth1 netns {node.pod.name}")
    tc("qdisc add dev veth2 ingress")
    done = node.apply(Probe(without={Feature.TCX_LINK}))
    assert done.errors.keys() == {"veth2"}
    assert node.netns() == {own_cookie(): HOST}


def test_a_full_map_is_reported_and_the_rest_goes_on(node):
    maps = {**node.maps, "lb_devices": _Full(node.maps["lb_devices"])}
    done = node._replace(maps=maps).apply()
    assert done.errors.keys() == {"lb_devices"}
    assert CGROUP_HOOKS.keys() <= done.changes.keys()


def test_a_cgroup_that_is_missing_is_reported_for_each_hook(node):
    places = node.places._replace(cgroup=node.places.cgroup / "nowhere")
    done = node._replace(places=places).apply()
    assert done.errors.keys() == CGROUP_HOOKS.keys()
    assert {"eth0", "veth1"} <= done.changes.keys()


def test_a_kernel_without_cookies_costs_only_the_namespaces(node, monkeypatch):
    def refuse() -> int:
        raise ProbeError("no cookies")

    monkeypatch.setattr("ebpflb.dataplane.attach.device_maps.own_cookie", refuse)
    done = node.apply()
    assert done.errors.keys() == {"lb_netns"}
    assert {"eth0", "veth1", "lb_connect4"} <= done.changes.keys()


def test_a_missing_program_is_named(node):
    (node.places.progs / "lb_pod_egress").unlink()
    with pytest.raises(PinError, match=r"lb_pod_egress: cannot open the program: .*No such file"):
        node.apply()


def test_tcx_that_was_asked_for_and_is_missing_is_refused(node):
    probe = Probe(without={Feature.TCX_LINK})
    with pytest.raises(ProbeError, match="tcx is not available: switched off"):
        Hooks(node.places, node.maps, probe, links.HeldLinks(), "tcx")


class _Full:
    """A map that accepts no elements."""

    def __init__(self, inner) -> None:
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def update_batch(self, elements) -> None:
        raise MapError("lb_devices", "update", 7)

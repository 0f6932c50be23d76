# SPDX-License-Identifier: Apache-2.0
"""The agent's kernel side, with a network, a cgroup and a bpffs for each test."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ebpflb.agent.dataplane.node import NodeDataplane
from ebpflb.cli import main
from ebpflb.config.settings import Settings, load_settings
from ebpflb.dataplane.attach.devices import NetworkWatch
from ebpflb.dataplane.attach.links import CGROUP_HOOKS
from ebpflb.dataplane.attach.strays import find_strays
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.load.pins import Pins, remove_pin
from ebpflb.dataplane.view.dump import used_entries
from ebpflb.errors import ConfigError, LoadError, PinError
from ebpflb.lab.namespaces import detach
from ebpflb.model.address import Family, parse_address
from tests.bpf.attach.network import Network, ip
from tests.bpf.attach.sets import attach_set
from tests.unit.dataplane.desired import backends, by_service, frontend, named

WEB = by_service(frontend(choice=backends("10.1.0.1"), service=named("web")))
OTHER = by_service(frontend("10.96.0.2", service=named("other")))


@pytest.fixture
def settings(network: Network, bpffs: Path, cgroup: Path) -> Settings:
    """Settings of a node with an uplink and one pod."""
    ip("link add eth0 type veth peer name wire\nlink set eth0 up\nlink set wire up")
    ip("addr add 192.0.2.1/24 dev eth0")
    network.add_pod("veth0")
    given = {"manifests": "/m", "node-name": "a", "cgroup-root": str(cgroup)}
    return load_settings({**given, "bpffs-root": str(bpffs / "pins")}, {})


@pytest.fixture
def make(settings: Settings) -> Iterator[Callable[[], NodeDataplane]]:
    """Makes kernels and closes them at the end."""
    with ExitStack() as stack:

        def make() -> NodeDataplane:
            kernel = NodeDataplane(settings)
            stack.callback(kernel.close)
            return kernel

        yield make


def run(settings: Settings, *arguments: str) -> Result:
    environ = {"EBPFLB_BPFFS_ROOT": str(settings.bpffs_root)}
    return CliRunner().invoke(main, arguments, env=environ)


def shown(settings: Settings, *arguments: str) -> Any:
    """What a command prints as JSON."""
    return json.loads(run(settings, *arguments, "-o", "json").stdout)


def addresses(settings: Settings) -> list[str]:
    return [each["key"] for each in shown(settings, "maps", "dump", "lb_addrs")["lb_addrs"]]


def loaded(settings: Settings) -> Any:
    """The state of the pins as `ebpflb status` reports it."""
    return shown(settings, "status", "--metrics-bind-address", "")["loaded"]


def places(settings: Settings) -> set[tuple[str, str]]:
    """Device hooks that run the current programs."""
    hooks = loaded(settings)["hooks"]
    return {(each["hook"], each["place"]) for each in hooks if each["current"]}


def served(settings: Settings) -> list[str]:
    return [each["service"] for each in shown(settings, "maps", "dump")]


def test_from_nothing_to_cleaned_up(settings, make):
    kernel = make()
    assert kernel.start(WEB, keep_others=False) == {}
    found = loaded(settings)
    assert (found["generation"], found["missing_hooks"]) == (f"{settings.bpffs_root}/1-1", [])
    assert len([each for each in found["hooks"] if each["place"].startswith("cgroup ")]) == 10
    assert {place for hook, place in places(settings) if hook == "tcx egress"} == {"eth0", "veth0"}
    assert served(settings) == ["web"]
    assert run(settings, "maps", "list").exit_code == 0
    assert kernel.usage["lb_frontends"][0] == 1
    assert used_entries(kernel.maps, "lb_devices") == 2
    assert "another agent uses these pins" in run(settings, "cleanup").output
    with pytest.raises(PinError, match="another agent uses these pins"):
        make()
    kernel.close()

    kernel = make()
    assert kernel.start(OTHER, keep_others=True) == {}
    assert served(settings) == ["other", "web"]
    assert kernel.resync(OTHER, keep_others=False) == {}
    assert served(settings) == ["other"]
    kernel.close()

    output = run(settings, "cleanup").output
    assert "removed hook connect4 cgroup" in output
    assert "removed hook tcx ingress veth0" in output
    assert "removed pins 1-1\nremoved pins links\n" in output
    assert not settings.bpffs_root.exists()
    assert run(settings, "cleanup").output == "nothing to remove\n"


def test_devices_and_addresses_are_followed(settings, make, network):
    kernel, changed = make(), threading.Event()
    kernel.start(WEB, keep_others=False)
    watching = NetworkWatch(changed.set)
    try:
        network.add_pod("veth1")
        ip("addr add 192.0.2.9/24 dev eth0")
        assert changed.wait(60)
    finally:
        watching.stop()
    assert kernel.follow_network(repair=False) == {}
    assert ("tcx ingress", "veth1") in places(settings)
    assert "192.0.2.9" in addresses(settings)
    ip("link del veth1")
    kernel.follow_network(repair=False)
    assert ("tcx ingress", "veth1") not in places(settings)


def test_growing_moves_all_hooks_and_keeps_what_was_there(settings, make):
    kernel = make()
    kernel.start(WEB, keep_others=False)
    assert kernel.grow({**WEB, **OTHER}, keep_others=False) == {}
    found = loaded(settings)
    assert found["generation"].endswith("/1-2")
    assert found["missing_hooks"] == []
    assert ("tcx egress", "eth0") in places(settings)
    assert served(settings) == ["other", "web"]
    assert [path.name for path in settings.bpffs_root.iterdir()] == ["1-2", "links"]
    assert {each["name"]: each["max"] for each in found["maps"]}["lb_slots"] == 16384
    assert kernel.apply({**WEB, next(iter(OTHER)): ()}) == {}
    kernel.grow(WEB, keep_others=False)
    with pytest.raises(LoadError, match="large enough already"):
        kernel.grow(WEB, keep_others=False)
    assert served(settings) == ["web"]


def test_what_was_replaced_is_freed_and_idle_addresses_are_forgotten(settings, make, monkeypatch):
    monkeypatch.setattr("ebpflb.agent.dataplane.generation.GRACE_SECONDS", 0.0)
    kernel, ready = make(), threading.Event()
    kernel.start(WEB, keep_others=False)
    kernel.apply({next(iter(WEB)): ()})
    used = kernel.usage["lb_backends"][0]
    kernel.prepare_collect(ready.set)
    assert ready.wait(60)
    kernel.collect()
    assert kernel.apply({}) == {}
    assert kernel.usage["lb_backends"][0] == used - 1
    assert kernel.expire().finished
    assert "10.96.0.1" not in addresses(settings)


def test_what_is_no_cgroup_is_said_before_anything_is_touched(settings):
    for path, problem in ((Path("/proc"), "not a cgroup v2"), (Path("/nowhere"), "No such file")):
        with pytest.raises(ConfigError, match=f"--cgroup-root {path}: {problem}"):
            NodeDataplane(replace(settings, cgroup_root=path))
    assert not settings.bpffs_root.exists()


def test_options_of_sockets_are_in_the_maps(settings):
    for given, expected in (
        ({}, {"localhost"}),
        ({"localhost_nodeports": False}, set()),
        ({"nodeport_addresses": ("primary",)}, set()),
        ({"nodeport_addresses": ("127.0.0.0/8",)}, {"localhost"}),
        ({"nodeport_addresses": ("primary", "localhost")}, {"localhost"}),
        ({"localhost_nodeports": False, "socket_lb": "host"}, {"socket_host"}),
    ):
        kernel = NodeDataplane(replace(settings, **given))
        try:
            kernel.start(WEB, keep_others=False)
            (row,) = shown(settings, "maps", "dump", "lb_settings")["lb_settings"]
        finally:
            kernel.close()
        of_sockets = {"localhost", "socket_host"}.intersection(row["value"]["flags"])
        assert of_sockets == expected, given


def test_ranges_of_services_are_in_the_maps_and_outlive_a_new_generation(settings, make):
    kernel = make()
    kernel.start(WEB, keep_others=False)
    kernel.set_service_ranges(["10.96.0.0/12"])
    kernel.grow(WEB, keep_others=False)
    (row,) = shown(settings, "maps", "dump", "lb_service_nets")["lb_service_nets"]
    assert row["value"]["ipv4"][0] == {"net": 0x0A600000, "mask": 0xFFF00000}


def test_ranges_of_an_earlier_run_stay_until_there_are_others(settings, make):
    first = make()
    first.start(WEB, keep_others=False)
    first.set_service_ranges(["10.96.0.0/12"])
    first.close()
    second = make()
    second.start(WEB, keep_others=True)
    ranges = shown(settings, "maps", "dump", "lb_service_nets")["lb_service_nets"]
    assert ranges[0]["value"]["ipv4"][0] == {"net": 0x0A600000, "mask": 0xFFF00000}
    second.set_service_ranges([])
    assert shown(settings, "maps", "dump", "lb_service_nets")["lb_service_nets"] == []


def test_the_primary_address_follows_the_node_object_and_the_network(settings):
    kernel = NodeDataplane(replace(settings, nodeport_addresses=("primary",)))
    try:
        kernel.start(WEB, keep_others=False)
        assert accepting(settings) == ["192.0.2.1"]
        kernel.set_node_ips({Family.IPV4: parse_address("192.0.2.9")})
        kernel.follow_network(repair=False)
        assert accepting(settings) == []
        ip("addr add 192.0.2.9/24 dev eth0")
        kernel.follow_network(repair=False)
        assert accepting(settings) == ["192.0.2.9"]
    finally:
        kernel.close()


def accepting(settings: Settings) -> list[str]:
    """The addresses that accept NodePorts."""
    dump = shown(settings, "maps", "dump", "lb_addrs", "lb_addr_flags")
    flags = {each["key"]: each["value"] for each in dump["lb_addr_flags"]}
    index = {each["key"]: each["value"] for each in dump["lb_addrs"]}
    return [address for address, at in index.items() if "node_port" in str(flags[at])]


@pytest.fixture
def own_mount(settings: Settings) -> Iterator[None]:
    """The pin directory, so that it may become a mount point."""
    yield
    detach(settings.bpffs_root)


@pytest.mark.usefixtures("own_mount")
def test_removed_pins_are_pinned_again(settings, make, bpffs):
    kernel = make()
    kernel.start(WEB, keep_others=False)
    before = pinned(settings.bpffs_root)
    for removed in ("links/*", "links", "1-1/maps/*", "1-1/progs", "1-1/complete", "1-1", "", None):
        assert not kernel.has_lost_pins()
        if removed is None:
            detach(bpffs)
        for path in [*bpffs.glob(f"pins/{removed}")]:
            remove_pin(path)
        assert kernel.has_lost_pins(), removed
        assert kernel.follow_network(repair=True) == {}, removed
        assert pinned(settings.bpffs_root) == before, removed
        with pytest.raises(PinError, match="another agent uses these pins"):
            Pins(settings.bpffs_root)
    kernel.close()
    Pins(settings.bpffs_root).remove_all()
    assert not settings.bpffs_root.exists()


def pinned(root: Path) -> dict[str, int]:
    """The ids of everything pinned, by kind: a link and a map may have the same id."""
    found = {}
    for path in root.rglob("*"):
        if path.suffix == ".debug":
            # Of the file system.
            continue
        if path.is_dir():
            found[str(path.relative_to(root))] = 0
            continue
        with owned(libbpf.obj_get(path)) as fd:
            kinds = {"links": libbpf.link_info, "maps": libbpf.map_info, "progs": libbpf.prog_info}
            found[str(path.relative_to(root))] = int(kinds[path.parent.name](fd).id)
    return found


def strays(root: Path, settings: Settings) -> set[tuple[str, str]]:
    found = find_strays(root, {settings.cgroup_root.stat().st_ino})
    return {(each.hook, each.device) for each in found}


def test_every_program_is_marked_as_of_ebpflb(settings, make, bpffs):
    make().start(WEB, keep_others=False)
    at_devices = {(hook, name) for hook, name in places(settings) if name in ("eth0", "veth0")}
    at_sockets = {(name.removeprefix("lb_"), "") for name in CGROUP_HOOKS}
    assert strays(bpffs / "none", settings) == at_devices | at_sockets


def test_a_second_set_is_reported_by_all_tools_and_taken_off(settings, make, bpffs):
    kernel, cgroup = make(), settings.cgroup_root
    kernel.start(WEB, keep_others=False)
    attach_set(bpffs / "theirs", cgroup, xdp="generic")
    (problem,) = (each for each in report(settings, "status")["problems"] if "another" in each)
    assert problem.startswith("another set of ebpflb's programs is at 10 socket hooks and 2 devi")
    findings = report(settings, "doctor", "--cgroup-root", str(cgroup))["findings"]
    errors = [each["check"] for each in findings if each["what"].startswith("another set of ")]
    assert errors == ["sockets", "devices"]
    assert not [each for each in findings if "lb_" in each["what"] and "ours at" in each["what"]]
    note = shown(settings, "explain", "host", "10.96.0.1:80")["note"]
    assert "10 socket hooks, after ours, and decides about what ours leaves: see" in note
    assert kernel.follow_network(repair=False) == {}
    assert strays(settings.bpffs_root, settings) != set()
    assert kernel.follow_network(repair=True) == {}
    assert strays(settings.bpffs_root, settings) == set()


def report(settings: Settings, command: str, *options: str) -> Any:
    """What a command that queries the agent prints when no agent runs."""
    return shown(settings, command, "--metrics-bind-address", "", *options)

# SPDX-License-Identifier: Apache-2.0
"""Direct server return in the agent: when the maps are updated, and from which addresses tunnels
start.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebpflb.agent.dataplane.tunnels import NodeTunnels
from ebpflb.agent.loop import KEYS_SECONDS
from ebpflb.config.settings import load_settings
from ebpflb.model.address import Family, format_address
from ebpflb.model.agent_report import TunnelsReport
from ebpflb.model.dsr import Peer, TunnelChange
from ebpflb.model.dsr_probe import STEP_SECONDS
from ebpflb.model.plan import Defaults
from ebpflb.model.service import Dsr, Service
from tests.builders import (
    NODE,
    OTHER_NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    service,
    service_port,
)
from tests.memory_maps import memory_maps
from tests.unit.agent.conftest import Bench
from tests.unit.agent.node import MAP_ERROR

POD = "10.1.0.2"
HERE = node(addresses=("192.0.2.1",))
THERE = node(OTHER_NODE, addresses=("192.0.2.2",))
SLICE = endpoint_slice("web-1", endpoint(POD, OTHER_NODE))


def web(**fields: Any) -> Service:
    return service("web", service_port(node_port=30080), **fields)


@pytest.fixture
def dsr(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(defaults=Defaults(dsr=Dsr.ALL))


def pods(bench: Bench) -> dict[str, str]:
    found = bench.node.maps["lb_pod_nodes"].items()
    return {format_address(pod): format_address(to) for pod, to in found}  # type: ignore[arg-type]


def peers(bench: Bench) -> list[str]:
    return [format_address(key) for key, _ in bench.node.maps["lb_nodes"].items()]  # type: ignore[arg-type]


def answer(bench: Bench) -> None:
    """The other node takes part."""
    bench.node.answering = {Peer(OTHER_NODE, Family.IPV4)}
    bench.turn()
    bench.turn(STEP_SECONDS)


def test_before_anything_moves_to_new_maps_they_say_where_packets_go(dsr: Bench):
    dsr.say(web(), SLICE, HERE, THERE)
    calls = [call for call in dsr.turn() if call.startswith(("tunnels", "start"))]
    assert calls == ["tunnels as a whole", "start"]
    assert peers(dsr) == ["192.0.2.2"]
    answer(dsr)
    assert pods(dsr) == {POD: "192.0.2.2"}


def test_where_packets_go_is_known_before_a_frontend_sends_them(dsr: Bench):
    dsr.say(SLICE, HERE, THERE)
    dsr.turn()
    dsr.say(web())
    calls = [call for call in dsr.turn() if call.startswith(("tunnels", "apply"))]
    assert calls == ["tunnels", "apply default/web"]
    answer(dsr)
    assert pods(dsr) == {POD: "192.0.2.2"}
    dsr.say(gone=(web(),))
    dsr.turn()
    assert pods(dsr) == {}


def test_a_node_that_comes_or_goes_is_enough(dsr: Bench):
    dsr.say(web(), SLICE, HERE)
    dsr.turn()
    assert (pods(dsr), peers(dsr)) == ({}, [])
    dsr.say(THERE)
    assert "tunnels" in dsr.turn()
    answer(dsr)
    assert (pods(dsr), peers(dsr)) == ({POD: "192.0.2.2"}, ["192.0.2.2"])
    assert dsr.report()["in_sync"]
    dsr.say(gone=(THERE,))
    dsr.turn()
    assert (pods(dsr), peers(dsr)) == ({}, [])
    assert "tunnels" not in dsr.turn()


def test_a_service_that_goes_while_writes_fail_is_gone(dsr: Bench):
    dsr.say(web(), SLICE, HERE, THERE)
    dsr.turn()
    answer(dsr)
    assert pods(dsr) == {POD: "192.0.2.2"}
    dsr.node.failures["apply default/shop"] = [MAP_ERROR]
    dsr.say(service("shop", service_port("10.96.0.20")))
    dsr.turn()
    dsr.say(gone=(web(),))
    assert "tunnels as a whole" in dsr.turn(60)
    assert pods(dsr) == {}


def test_a_write_that_failed_is_made_good(dsr: Bench):
    dsr.say(web(), SLICE, HERE)
    dsr.turn()
    dsr.node.failures["tunnels"] = [MAP_ERROR]
    dsr.say(THERE)
    dsr.turn()
    assert peers(dsr) == []
    assert "tunnels as a whole" in dsr.turn(60)
    assert peers(dsr) == ["192.0.2.2"]


def test_while_something_cannot_be_read_the_rest_stays(dsr: Bench):
    leftover = address("192.0.2.9")
    dsr.node.maps["lb_nodes"].update(leftover, b"\1")
    dsr.say(HERE, THERE, errors={"a.yaml": "broken"})
    assert "tunnels as a whole, others stay" in dsr.turn()
    assert peers(dsr) == ["192.0.2.9", "192.0.2.2"]
    dsr.say()
    dsr.turn()
    assert peers(dsr) == ["192.0.2.2"]


def test_without_direct_server_return_nothing_follows(bench: Bench):
    bench.say(web(dsr=True), SLICE, HERE, THERE)
    assert not [call for call in bench.turn() if call.startswith("tunnels")]


@pytest.fixture
def make_tunnels(tmp_path: Path) -> Callable[..., NodeTunnels]:
    def make(dsr: str, **others: str) -> NodeTunnels:
        given = {"node-name": NODE, "cgroup-root": str(tmp_path), "manifests": "/m", "dsr": dsr}
        given.update(others)
        return NodeTunnels(load_settings(given, {}))

    return make


CHANGE = TunnelChange(
    {address(POD): address("192.0.2.2"), address("fd00:1::2"): address("2001:db8::2")},
    {address("192.0.2.2"): True},
    (address("192.0.2.1"), address("2001:db8::1")),
)


def test_the_status_says_what_is_in_force(make_tunnels: Callable[..., NodeTunnels]):
    tunnels, maps = make_tunnels("annotated"), memory_maps()
    tunnels.follow(CHANGE, keep_others=False, compare=False)
    tunnels.write(maps, CHANGE.own)
    assert tunnels.report() == TunnelsReport(
        services="annotated", port=6089, peers=1, pods=2, without={}, keys=0, key_trouble=""
    )
    assert len(list(maps["lb_pod_nodes"].items())) == 2


def test_where_others_would_take_nothing_from_this_machine_it_sends_nothing(
    make_tunnels: Callable[..., NodeTunnels], caplog: pytest.LogCaptureFixture
):
    tunnels, maps = make_tunnels("all"), memory_maps()
    tunnels.follow(CHANGE, keep_others=False, compare=False)
    here = {address("192.0.2.77"), address("2001:db8::1")}
    for _ in range(2):
        tunnels.write(maps, here)
    assert [key for key, _ in maps["lb_pod_nodes"].items()] == [address("fd00:1::2")]
    assert tunnels.sources(here) == {Family.IPV6: address("2001:db8::1")}
    text = "this machine has none of the addresses of its Node (192.0.2.1), and"
    report = tunnels.report()
    assert report
    assert str(report.without).startswith(f"{{'IPv4': '{text}")
    assert caplog.text.count(f"no direct server return over IPv4: {text}") == 1
    tunnels.write(maps, CHANGE.own)
    assert len(list(maps["lb_pod_nodes"].items())) == 2
    tunnels.write(maps, here)
    assert caplog.text.count(text) == 2


def test_a_node_without_it_has_no_port_and_writes_nothing(
    make_tunnels: Callable[..., NodeTunnels],
):
    tunnels, maps = make_tunnels("off"), memory_maps()
    tunnels.follow(CHANGE, keep_others=False, compare=False)
    tunnels.write(maps, CHANGE.own)
    assert (tunnels.port, tunnels.sources(CHANGE.own), tunnels.report()) == (0, {}, None)
    assert list(maps["lb_nodes"].items()) == []


def test_keys_are_read_again_and_again(dsr: Bench, make_bench: Callable[..., Bench]):
    dsr.say(web(), SLICE, HERE, THERE)
    dsr.turn()
    assert ["keys" in dsr.turn(KEYS_SECONDS) for _ in range(3)] == [True] * 3
    without = make_bench()
    without.say(web(), SLICE, HERE)
    without.turn()
    assert "keys" not in without.turn(KEYS_SECONDS)


def test_keys_come_from_a_file_that_may_change(
    make_tunnels: Callable[..., NodeTunnels], tmp_path: Path
):
    path, maps = tmp_path / "keys", memory_maps()
    path.write_text("0123456789abcdef")
    tunnels = make_tunnels("all", **{"dsr-key-file": str(path)})
    tunnels.write(maps, CHANGE.own)
    path.write_text("0123456789abcdef\nfedcba9876543210")
    tunnels.follow_keys(maps)
    report = tunnels.report()
    assert report
    assert (report.keys, report.key_trouble) == (2, "")
    assert maps["lb_tunnel_keys"].lookup(bytes(4)) == bytes.fromhex(
        "0123456789abcdeffedcba9876543210"
    )

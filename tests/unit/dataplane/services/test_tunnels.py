# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.services.tunnels import TunnelMaps
from ebpflb.model.address import Address, Family, parse_address
from ebpflb.model.dsr import TunnelChange
from tests.memory_maps import memory_maps
from tests.unit.dataplane.watching import CrashError, Watch

POD, OTHER_POD = parse_address("10.2.0.7"), parse_address("fd00:2::7")
NODE, OTHER_NODE = parse_address("192.0.2.2"), parse_address("192.0.2.3")
SIZES = {"lb_pod_nodes": 4, "lb_nodes": 4}

Pods = dict[Address, Address | None]
Peers = dict[Address, bool]


def maps(**sizes: int) -> MapSet:
    return memory_maps({**SIZES, **sizes})


def follow(  # noqa: PLR0913 - the parts of a change
    tunnels: TunnelMaps,
    target: MapSet,
    pods: Pods | None = None,
    peers: Peers | None = None,
    *,
    undecided: dict[Address, Address] | None = None,
    keep_others: bool = False,
    compare: bool = False,
) -> None:
    change = TunnelChange(pods or {}, peers or {}, (), undecided or {})
    tunnels.follow(change, keep_others=keep_others, compare=compare)
    tunnels.write(target, Family)


def pods_of(found: MapSet) -> dict[bytes, bytes]:
    return dict(found["lb_pod_nodes"].items())


def peers_of(found: MapSet) -> set[bytes]:
    return {key for key, _ in found["lb_nodes"].items()}


def test_pods_and_nodes_come_and_go():
    target, tunnels = maps(), TunnelMaps()
    follow(tunnels, target, {POD: NODE, OTHER_POD: OTHER_NODE}, {NODE: True})
    assert pods_of(target) == {POD: NODE, OTHER_POD: OTHER_NODE}
    assert peers_of(target) == {NODE}
    assert (tunnels.pods, tunnels.peers) == (2, 1)
    follow(tunnels, target, {POD: None}, {OTHER_NODE: True, NODE: False})
    assert pods_of(target) == {OTHER_POD: OTHER_NODE}
    assert peers_of(target) == {OTHER_NODE}
    assert (tunnels.pods, tunnels.peers) == (1, 1)


def test_a_change_writes_what_it_changes():
    watch, tunnels = Watch(maps()), TunnelMaps()
    follow(tunnels, watch.maps, {POD: NODE, OTHER_POD: NODE}, {NODE: True})
    before = len(watch.written)
    watch.plain["lb_pod_nodes"].delete(OTHER_POD)
    follow(tunnels, watch.maps, {POD: NODE})
    follow(tunnels, watch.maps, {POD: None})
    assert watch.written[before:] == ["lb_pod_nodes"]
    assert pods_of(watch.plain) == {}
    follow(tunnels, watch.maps, compare=True)
    assert pods_of(watch.plain) == {OTHER_POD: NODE}


def test_no_element_is_ever_replaced():
    watch, seen = Watch(maps()), []
    tunnels = TunnelMaps()
    follow(tunnels, watch.maps, {POD: NODE})
    watch.inspect = lambda: seen.append(pods_of(watch.plain))
    follow(tunnels, watch.maps, {POD: OTHER_NODE})
    assert seen == [{}, {POD: OTHER_NODE}]


def test_what_an_earlier_run_left_is_brought_in_line():
    target = maps()
    follow(TunnelMaps(), target, {POD: NODE, OTHER_POD: NODE}, {NODE: True})
    follow(TunnelMaps(), target, {POD: OTHER_NODE}, {OTHER_NODE: True})
    assert pods_of(target) == {POD: OTHER_NODE}
    assert peers_of(target) == {OTHER_NODE}


def test_what_an_earlier_run_left_may_stay_until_all_is_known():
    target, tunnels = maps(), TunnelMaps()
    follow(TunnelMaps(), target, {POD: NODE, OTHER_POD: NODE}, {NODE: True})
    follow(tunnels, target, {POD: OTHER_NODE}, {OTHER_NODE: True}, keep_others=True)
    assert pods_of(target) == {POD: OTHER_NODE, OTHER_POD: NODE}
    assert peers_of(target) == {NODE, OTHER_NODE}
    follow(tunnels, target, {OTHER_POD: None}, keep_others=True)
    assert pods_of(target) == {POD: OTHER_NODE}
    follow(tunnels, target)
    assert peers_of(target) == {OTHER_NODE}


def test_packets_go_on_to_a_node_of_which_nothing_is_known_yet():
    target, tunnels, undecided = maps(), TunnelMaps(), {POD: NODE, OTHER_POD: OTHER_NODE}
    follow(TunnelMaps(), target, {POD: NODE, OTHER_POD: NODE}, {NODE: True})
    follow(tunnels, target, dict.fromkeys(undecided), {NODE: True}, undecided=undecided)
    assert pods_of(target) == {POD: NODE}
    follow(tunnels, target, {OTHER_POD: None}, undecided={OTHER_POD: OTHER_NODE})
    second = maps()
    tunnels.write(second, Family)
    assert pods_of(second) == {POD: NODE}
    follow(tunnels, second, {POD: None})
    assert pods_of(second) == {}


def test_a_node_that_is_silent_by_now_gets_nothing():
    target, tunnels = maps(), TunnelMaps()
    follow(tunnels, target, {POD: NODE}, {NODE: True})
    silent = TunnelChange({POD: None}, {}, ())
    for change in (silent._replace(undecided={POD: NODE}), silent):
        tunnels.follow(change, keep_others=False, compare=False)
    tunnels.write(target, Family)
    assert pods_of(target) == {}


def test_a_new_generation_has_all_of_it():
    first, second, tunnels = maps(), maps(), TunnelMaps()
    follow(tunnels, first, {POD: NODE}, {NODE: True})
    tunnels.write(second, Family)
    assert (pods_of(second), peers_of(second)) == (pods_of(first), peers_of(first))


@pytest.mark.parametrize("write", range(4))
def test_after_a_failure_everything_is_written(write: int):
    watch, tunnels = Watch(maps()), TunnelMaps()
    follow(tunnels, watch.maps, {POD: NODE}, {NODE: True})
    watch.crash_at = len(watch.written) + write
    with pytest.raises(CrashError):
        follow(tunnels, watch.maps, {POD: OTHER_NODE, OTHER_POD: NODE}, {OTHER_NODE: True})
    watch.crash_at = None
    follow(tunnels, watch.maps)
    assert pods_of(watch.plain) == {POD: OTHER_NODE, OTHER_POD: NODE}
    assert peers_of(watch.plain) == {NODE, OTHER_NODE}


def test_pods_without_room_are_left_out(caplog: pytest.LogCaptureFixture):
    target = maps(lb_pod_nodes=1)
    follow(TunnelMaps(), target, {POD: NODE, OTHER_POD: NODE}, {NODE: True})
    assert len(pods_of(target)) == 1
    assert "map full" in caplog.text


def test_room_is_made_before_it_is_taken(caplog: pytest.LogCaptureFixture):
    target, tunnels = maps(lb_pod_nodes=1), TunnelMaps()
    for gone, new in ((OTHER_POD, POD), (POD, OTHER_POD)):
        follow(tunnels, target, {new: NODE, gone: None})
        assert pods_of(target) == {new: NODE}
    assert "map full" not in caplog.text


def test_pods_of_a_family_that_this_node_cannot_send_in_get_nothing():
    target, tunnels = maps(), TunnelMaps()
    follow(tunnels, target, {POD: NODE, OTHER_POD: NODE}, {NODE: True})
    tunnels.write(target, [Family.IPV6])
    assert (pods_of(target), peers_of(target), tunnels.pods) == ({OTHER_POD: NODE}, {NODE}, 1)
    tunnels.write(target, Family)
    assert pods_of(target) == {POD: NODE, OTHER_POD: NODE}


def test_tunnels_begin_at_an_address_that_others_know_and_this_machine_has():
    tunnels = TunnelMaps()
    own = ("192.0.2.1", "192.0.2.9", "2001:db8::1", "203.0.113.1")
    change = TunnelChange({}, {}, tuple(map(parse_address, own)))
    tunnels.follow(change, keep_others=False, compare=False)
    here = set(map(parse_address, ("203.0.113.1", "192.0.2.9", "198.51.100.1")))
    assert tunnels.sources(here) == {Family.IPV4: parse_address("192.0.2.9")}
    assert tunnels.sources({parse_address("198.51.100.1")}) == {}

# SPDX-License-Identifier: Apache-2.0
import errno
import socket
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from pyroute2.netlink.core import NoClose
from pyroute2.netlink.rtnl import RTMGRP_IPV4_IFADDR
from pyroute2.netlink.rtnl.iprsocket import IPRSocket

from ebpflb.dataplane.attach import devices
from ebpflb.dataplane.attach.devices import NetworkState, NetworkWatch, snapshot
from ebpflb.dataplane.layout.enums import AddrFlag, DeviceKind
from ebpflb.model.address import Family, family_of, format_address, parse_address
from tests.bpf.attach.network import entered, ip, run
from tests.e2e.harness.waiting import wait_until

HOST, WORKLOAD = DeviceKind.LB_DEVICE_HOST, DeviceKind.LB_DEVICE_WORKLOAD
WAIT = 60.0
SOON = 0.3


class Settings(NamedTuple):
    host_devices: tuple[str, ...] = ()
    workload_devices: tuple[str, ...] = ()
    nodeport_addresses: tuple[str, ...] = ()
    bind_address: str = ""


def kinds(settings: Settings = Settings()) -> dict[str, DeviceKind]:  # noqa: B008  immutable
    return {device.name: device.kind for device in snapshot(settings).devices.values()}


def sources(state: NetworkState, name: str) -> tuple[str | None, str | None]:
    (device,) = (device for device in state.devices.values() if device.name == name)
    both = (device.snat4, device.snat6)
    return tuple(format_address(source) if source else None for source in both)  # type: ignore[return-value]


def test_the_devices_of_a_node_are_distinguished(network):
    network.add_pod("veth1")
    network.add_pod("cali2")
    ip("""\
link add eth0 type veth peer name far
link add cni0 type bridge
link set veth1 master cni0
link add vxlan1 type vxlan id 1 dstport 4789""")
    assert kinds() == {"veth1": WORKLOAD, "cali2": WORKLOAD, "eth0": HOST, "vxlan1": HOST}


def test_devices_are_known_by_what_they_are_whatever_their_names(network):
    for name in ("up0", "up1", "pod0", "pod1", "0a1b2c_0"):
        network.add_pod(name)
    ip("""\
addr add 192.0.2.2/32 dev up0
route add 192.0.2.1 dev up0
route add default via 192.0.2.1
addr add 198.51.100.2/24 dev up1
addr add 10.244.0.1/32 dev pod0
addr add fd00::1/128 dev pod0
link add br-int type bridge
link set 0a1b2c_0 master br-int
link add overlay type vxlan id 1 dstport 4789
link add here type veth peer name there
link add link up1 name shim type macvlan mode bridge
addr add 198.51.100.3/24 dev shim""")
    pods = dict.fromkeys(("pod0", "pod1", "0a1b2c_0"), WORKLOAD)
    assert kinds() == {**dict.fromkeys(("up0", "up1", "overlay", "shim"), HOST), **pods}
    left_out = snapshot(Settings()).left_out
    assert left_out.keys() == {"lo", "br-int", "here", "there"}
    assert left_out["br-int"] == "a bridge of only pods, containers or machines"


def test_a_bridge_by_which_the_default_route_leaves_is_a_host_device(network):
    ip("""\
link add br-ex type bridge
addr add 192.0.2.2/24 dev br-ex
link add port type veth peer name far
link set port master br-ex""")
    assert kinds() == {}
    ip("link set br-ex up\nlink set port up\nlink set far up\nroute add default via 192.0.2.1")
    assert kinds() == {"br-ex": HOST}


def test_a_bridge_with_the_uplink_is_a_host_device_in_its_place(network):
    ip("link add eth0 type veth peer name far\nlink add br0 type bridge\nlink set eth0 master br0")
    assert kinds() == {"br0": HOST}
    ip("link set eth0 nomaster")
    assert kinds() == {"eth0": HOST}


def test_patterns_of_the_settings_replace_the_default(network):
    ip("link add a0 type veth peer name b0\nlink add eth0 type veth peer name veth9")
    assert kinds(Settings(("a*",), ("b?",))) == {"a0": HOST, "b0": WORKLOAD}
    assert kinds(Settings(host_devices=("a*",))) == {"a0": HOST, "veth9": WORKLOAD}


def test_a_device_without_ethernet_header_says_so(network):
    ip("tuntap add tun0 mode tun\ntuntap add tun1 mode tap\nlink set tun1 up")
    found = {device.name: device for device in snapshot(Settings()).devices.values()}
    assert (found["tun0"].ethernet, found["tun0"].up) == (False, False)
    assert (found["tun1"].ethernet, found["tun1"].up) == (True, True)


def test_a_device_has_the_mtu_that_it_has_now(network):
    ip("link add eth0 type veth peer name far mtu 1400")
    for mtu in (1400, 1300):
        ip(f"link set eth0 mtu {mtu}")
        (device,) = snapshot(Settings()).devices.values()
        assert device.mtu == mtu


def test_a_device_masquerades_with_its_own_address_else_with_the_primary_one(network):
    ip("""\
link add eth0 type veth peer name far0
link add eth1 type veth peer name far1
addr add 198.51.100.7/32 dev eth0
addr add 192.0.2.2/24 dev eth0
addr add 2001:db8::2/64 dev eth0 nodad
addr add 10.0.0.2/24 dev eth1""")
    state = snapshot(Settings())
    assert sources(state, "eth0") == ("192.0.2.2", "2001:db8::2")
    assert sources(state, "eth1") == ("10.0.0.2", "2001:db8::2")
    assert state.primary == {
        Family.IPV4: parse_address("192.0.2.2"),
        Family.IPV6: parse_address("2001:db8::2"),
    }


def test_the_primary_address_is_that_of_the_default_route(network):
    ip("""\
link add eth0 type veth peer name far0
link add eth1 type veth peer name far1
link set far1 up
link set eth1 up
addr add 10.0.0.2/24 dev eth0
addr add 10.1.0.2/24 dev eth1
addr add 10.1.0.3/24 dev eth1
route add default via 10.1.0.1 src 10.1.0.3""")
    assert snapshot(Settings()).primary == {Family.IPV4: parse_address("10.1.0.3")}


def test_every_address_but_loopback_is_one_of_the_node(network):
    ip("""\
addr add 203.0.113.9/32 dev lo
addr add 2001:db8::9/128 dev lo
link add cni0 type bridge
addr add 10.42.0.1/24 dev cni0
addr add 10.9.0.1 peer 10.9.0.2 dev cni0""")
    flags = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
    expected = ("203.0.113.9", "2001:db8::9", "10.42.0.1", "10.9.0.1")
    found = snapshot(Settings()).node_addresses
    assert found == {parse_address(address): flags for address in expected}


@pytest.mark.parametrize(
    ("node_ips", "bind_address", "expected"),
    [
        pytest.param([], "", {"10.0.0.2", "fd00::2"}, id="without a Node object"),
        pytest.param(["10.0.0.3"], "", {"10.0.0.3", "fd00::2"}, id="of one family"),
        pytest.param(["10.0.0.3", "fd00::3"], "", {"10.0.0.3", "fd00::3"}, id="of both"),
        pytest.param(["10.0.0.3"], "10.0.0.2", {"10.0.0.2", "fd00::2"}, id="bind address first"),
        pytest.param(["203.0.113.1"], "", {"fd00::2"}, id="not an address of this machine"),
    ],
)
def test_primary_addresses_for_node_ports_are_those_of_the_node_object(
    network, node_ips, bind_address, expected
):
    ip("""\
link add eth0 type veth peer name far0
addr add 10.0.0.2/24 dev eth0
addr add 10.0.0.3/24 dev eth0
addr add fd00::2/64 dev eth0 nodad
addr add fd00::3/64 dev eth0 nodad noprefixroute preferred_lft 0""")
    settings = Settings(nodeport_addresses=("primary",), bind_address=bind_address)
    addresses = [parse_address(text) for text in node_ips]
    state = snapshot(settings, {family_of(each): each for each in addresses})
    accepting = {
        format_address(address)
        for address, flags in state.node_addresses.items()
        if flags & AddrFlag.LB_ADDR_NODE_PORT
    }
    assert accepting == expected
    assert state.primary == {
        Family.IPV4: parse_address("10.0.0.2"),
        Family.IPV6: parse_address("fd00::2"),
    }


def test_an_unchanged_network_gives_an_equal_state(network):
    network.add_pod("veth1")
    wait_until(lambda: snapshot(Settings()) == snapshot(Settings()), "the device has settled")
    assert snapshot(Settings()) == snapshot(Settings())


def test_another_namespace_has_a_state_of_its_own(network):
    pod = network.add_pod("veth1", inside="eth0")
    with entered(pod):
        assert kinds() == {"eth0": HOST}
    assert kinds() == {"veth1": WORKLOAD}


class Calls:
    """Counts calls, and waits for them. may_return: calls block until it is set."""

    def __init__(self) -> None:
        self.count = 0
        self.may_return = threading.Event()
        self.may_return.set()
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()
        self.may_return.wait()

    def wait_for(self, count: int) -> bool:
        """Whether there are at least `count` calls before the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count >= count, WAIT)

    def settled(self) -> int:
        """The number of calls, once no further one arrives for a while."""
        while self.wait_for_more(before := self.count):
            pass
        return before

    def wait_for_more(self, count: int) -> bool:
        """Whether there is a further call soon."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count > count, SOON)


@pytest.fixture
def calls(network) -> Iterator[Calls]:
    calls = Calls()
    watch = NetworkWatch(calls)
    yield calls
    calls.may_return.set()
    watch.stop()


def test_a_new_device_and_a_new_address_are_called_about(calls):
    for line in (
        "link add veth1 type veth peer name veth2",
        "addr add 192.0.2.1/24 dev veth1",
        "link set veth1 up",
    ):
        before = calls.settled()
        ip(line)
        assert calls.wait_for(before + 1)


@pytest.mark.parametrize("prefix", ["10.8.0.0/16", "2001:db8:8::/48"])
def test_of_routes_only_a_default_one_is_called_about(calls, prefix):
    ip("link add veth1 type veth peer name veth2")
    # Disables DAD and SLAAC, which would add addresses later.
    for name in ("veth1", "veth2"):
        ip(f"link set {name} addrgenmode none\nlink set {name} up")
    wait_until(lambda: snapshot(Settings()) == snapshot(Settings()), "the device has settled")
    assert calls.wait_for(1)
    family = "-6 " if ":" in prefix else ""
    before = calls.settled()
    ip(f"route add {prefix} dev veth1\nroute del {prefix} dev veth1")
    assert not calls.wait_for_more(before)
    for what in ("add", "del"):
        before = calls.settled()
        run("ip", *f"{family}route {what} default dev veth1".split())
        assert calls.wait_for(before + 1)


def test_a_burst_is_one_call(calls):
    calls.may_return.clear()
    ip("link add first type veth peer name peer-first")
    assert calls.wait_for(1)
    # All of it is there when the watch looks again, however slow the machine is.
    ip("\n".join(f"link add veth{i} type veth peer name peer{i}" for i in range(50)))
    calls.may_return.set()
    assert calls.settled() == 2


def test_a_stream_of_events_does_not_hold_the_call_back(network, monkeypatch):
    monkeypatch.setattr(devices, "_LONGEST_WAIT", 2)
    calls = Calls()
    watch = NetworkWatch(calls, settle=0.2)
    deadline = time.monotonic() + WAIT
    while calls.count < 2 and time.monotonic() < deadline:
        ip("addr add 192.0.2.1/32 dev lo\naddr del 192.0.2.1/32 dev lo")
    watch.stop()
    assert calls.count >= 2


def test_lost_events_are_a_call_and_not_the_end(calls, monkeypatch):
    lost = []

    def lose(self: socket.socket, size: int) -> bytes:
        lost.append(socket.socket.recv(self, size))
        raise OSError(errno.ENOBUFS, "No buffer space available")

    monkeypatch.setattr(NoClose, "recv", lose)
    ip("addr add 192.0.2.1/32 dev lo")
    assert calls.wait_for(1)
    assert lost
    monkeypatch.undo()
    before = calls.settled()
    ip("addr del 192.0.2.1/32 dev lo")
    assert calls.wait_for(before + 1)


def test_the_kernel_reports_lost_events_to_a_slow_reader(network):
    """Proves that the overflow which the watch must survive does occur."""
    with IPRSocket() as events:
        events.bind(RTMGRP_IPV4_IFADDR)
        # The kernel's minimum, whatever the machine's default is.
        events.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
        lines = "addr add 192.0.2.1/32 dev lo\naddr del 192.0.2.1/32 dev lo\n"
        ip(lines * 2000)
        with pytest.raises(OSError, match="No buffer space") as caught:
            list(iter(lambda: events.socket.recv(1), b""))
    assert caught.value.errno == errno.ENOBUFS

# SPDX-License-Identifier: Apache-2.0
import subprocess
import threading

import pytest

from ebpflb.dataplane.attach.devices import Device, snapshot
from ebpflb.dataplane.kernel import namespaces as netns
from ebpflb.dataplane.kernel.namespaces import Namespaces, Veth, own_cookie
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink
from ebpflb.errors import ProbeError
from tests.bpf.attach.network import entered, ip
from tests.builders import address


class _Defaults:
    host_devices = workload_devices = nodeport_addresses = ()
    bind_address = ""


def devices() -> dict[str, Device]:
    """The devices of the current namespace by name."""
    return {device.name: device for device in snapshot(_Defaults()).devices.values()}


def cookies(namespaces: Namespaces) -> dict[str, int]:
    """The namespace cookies found behind the devices of the current namespace, by name."""
    present = devices()
    names = {device.ifindex: name for name, device in present.items()}
    veths = [
        Veth(device.ifindex, name, device.netnsid)
        for name, device in present.items()
        if device.netnsid is not None
    ]
    found = namespaces.cookies(veths)
    return {names[ifindex]: cookie for ifindex, cookie in found.items()}


@pytest.fixture
def no_processes(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(netns, "_PROC", tmp_path)


def test_each_namespace_has_a_cookie_of_its_own(network):
    ours = own_cookie()
    assert own_cookie() == ours > 0
    with entered(network.add()):
        assert own_cookie() != ours


def test_the_namespaces_behind_veths_are_found_by_name(network, no_processes):
    expected = {}
    for veth in ("veth1", "veth2"):
        with entered(network.add_pod(veth)):
            expected[veth] = own_cookie()
    assert cookies(Namespaces()) == expected


def test_a_namespace_without_a_name_is_found_by_its_process(network):
    command = ["unshare", "--net", "sh", "-c", "echo; cat"]
    pod = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert pod.stdout
        pod.stdout.readline()
        ip(f"link add veth1 type veth peer name eth0 netns {pod.pid}")
        found = cookies(Namespaces())
        assert found.keys() == {"veth1"}
        assert found["veth1"] != own_cookie()
    finally:
        pod.communicate()


def test_an_equal_ifindex_in_another_namespace_is_no_match(network, no_processes):
    """Three namespaces have a device 77; only one of them is behind the veth."""
    others = [network.add(), network.add()]
    for other in others:
        with entered(other):
            ip("link add eth0 index 77 type veth peer name peer")
    pod = network.add()
    with entered(pod):
        ip(f"link add eth0 index 77 type veth peer name veth1 netns {network.path.name}")
        expected = own_cookie()
    assert cookies(Namespaces()) == {"veth1": expected}


def test_a_veth_with_both_ends_here_has_nothing_behind_it(network):
    ip("link add veth1 type veth peer name veth2")
    assert cookies(Namespaces()) == {}


def test_what_cannot_be_found_is_missing(network, no_processes):
    network.add_pod("veth1")
    assert cookies(Namespaces(directories=())) == {}


def test_known_namespaces_cost_nothing(network, monkeypatch):
    network.add_pod("veth1")
    namespaces = Namespaces()
    first = cookies(namespaces)
    monkeypatch.setattr(netns, "Rtnetlink", None)
    assert cookies(namespaces) == first


def test_known_namespaces_are_not_asked_again(network, monkeypatch, tmp_path, no_processes):
    """Only the new one is queried, however many there are."""
    namespaces = Namespaces([tmp_path / "names"])
    (tmp_path / "names").mkdir()
    numbers: list[int] = []
    number = netns._number

    def counted(netlink: Rtnetlink, namespace: int) -> int:
        numbers.append(namespace)
        return number(netlink, namespace)

    for name in ("veth1", "veth2", "veth3"):
        (tmp_path / "names" / name).symlink_to(network.add_pod(name))
        with monkeypatch.context() as patch:
            patch.setattr(netns, "_number", counted)
            assert len(cookies(namespaces)) == len(numbers)


def test_a_new_pod_on_an_old_name_is_looked_at_again(network):
    namespaces = Namespaces()
    network.add_pod("veth1")
    before = cookies(namespaces)
    ip("link del veth1")
    assert cookies(namespaces) == {}
    network.add_pod("veth1")
    after = cookies(namespaces)
    assert after.keys() == before.keys()
    assert after != before


def test_the_calling_thread_stays_where_it_is(network):
    network.add_pod("veth1")
    ours, threads = own_cookie(), set(threading.enumerate())
    cookies(Namespaces())
    assert own_cookie() == ours
    assert not set(threading.enumerate()) - threads


def test_what_others_can_reach_in_a_pod_is_known_by_its_cookie(network):
    with entered(network.add_pod("veth1")):
        ip("link set lo up")
        ip("link set eth0 up")
        ip("addr add 10.1.0.9/24 dev eth0")
        ip("addr add fd00::9/64 dev eth0 nodad")
    namespaces = Namespaces()
    cookie = cookies(namespaces)["veth1"]
    assert namespaces.addresses_in(cookie) == []
    namespaces.look_inside(set())
    assert set(namespaces.addresses_in(cookie)) == {address("10.1.0.9"), address("fd00::9")}
    ip("link del veth1")
    cookies(namespaces)
    assert namespaces.addresses_in(cookie) == []


def test_a_kernel_without_cookies_is_said_so(monkeypatch):
    monkeypatch.setattr(netns, "SO_NETNS_COOKIE", 9999)
    with pytest.raises(ProbeError, match=r"SO_NETNS_COOKIE, Linux 5\.14"):
        own_cookie()

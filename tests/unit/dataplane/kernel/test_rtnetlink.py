# SPDX-License-Identifier: Apache-2.0
"""The network namespace that the tests run in: its loopback device, and refusals."""

import errno
import socket
import subprocess
import sys

import pytest

from ebpflb.dataplane.kernel.rtnetlink import (
    Route,
    Rtnetlink,
    read_addresses,
    read_interfaces,
    route_to,
)
from ebpflb.model.address import Family, parse_address


def test_loopback_and_its_address_are_found():
    with Rtnetlink() as netlink:
        (loopback,) = (each for each in read_interfaces(netlink) if each.name == "lo")
        addresses = read_addresses(netlink)
    assert loopback.loopback
    assert loopback.ifindex == socket.if_nametoindex("lo")
    (found,) = (each for each in addresses if each.address == parse_address("127.0.0.1"))
    assert (found.ifindex, found.family, found.prefix_length) == (
        loopback.ifindex,
        Family.IPV4,
        8,
    )


@pytest.mark.parametrize("text", ["127.0.0.1", "::1"])
def test_the_node_itself_is_reached_without_leaving_it(text):
    assert route_to(parse_address(text)) == Route(socket.if_nametoindex("lo"), is_local=True)


def test_a_refusal_of_pyroute2_carries_the_errno():
    with (
        pytest.raises(OSError, match="No such device") as caught,
        Rtnetlink() as netlink,
        netlink.iproute() as iproute,
    ):
        iproute.link("get", index=0x7FFFFFFF)
    assert caught.value.errno == errno.ENODEV


def test_a_refusal_of_pyroute2_carries_the_kernels_own_words():
    with (
        pytest.raises(OSError, match="netns reference is missing") as caught,
        Rtnetlink() as netlink,
        netlink.iproute() as iproute,
    ):
        iproute.get_netnsid()
    assert caught.value.strerror == "Invalid argument (Peer netns reference is missing)"


def test_pyroute2_is_imported_when_it_is_used():
    """It takes 19 MB and 80 ms, and most commands do without."""
    modules = "attach.hooks", "attach.attachments", "view.dump", "kernel.probe"
    imports = "; ".join(f"import ebpflb.dataplane.{module}" for module in modules)
    code = f"import sys; {imports}; print('pyroute2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "False\n"

# SPDX-License-Identifier: Apache-2.0
"""A node whose network brings it what is sent to the load-balancer IP, and routes there."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, Kind, Net

ROUTER = {IPV4: "192.0.2.254", IPV6: "2001:db8:2::fe"}


@contextmanager
def route(net: Net, *words: str) -> Iterator[None]:
    """The node's route to the load-balancer IP."""
    subprocess.run(["ip", "route", "add", net.external_ip, *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", net.external_ip, *words], check=True)


@pytest.fixture
def route_back(node: Node, addresses: None, kind: Kind) -> Iterator[None]:
    """The node would send such packets back to the router that brings them."""
    with route(kind.net, "via", ROUTER[kind.net]):
        yield

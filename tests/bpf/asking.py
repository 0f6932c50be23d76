# SPDX-License-Identifier: Apache-2.0
"""A process that connects under the hooks of connect() and close(): asker.py, attached."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ebpflb.dataplane import libbpf
from ebpflb.dataplane.uapi import AttachType
from tests.bpf.asker import Asker
from tests.bpf.attach import tiny
from tests.bpf.loading import Loaded
from tests.bpf.node import Node

_HOOKS = {
    "lb_connect4": AttachType.CGROUP_INET4_CONNECT,
    "lb_connect6": AttachType.CGROUP_INET6_CONNECT,
    "lb_sock_release": AttachType.CGROUP_INET_SOCK_RELEASE,
}


@contextmanager
def asking(programs: Loaded, node: Node, name: str) -> Iterator[Asker]:
    """A process on the node, in a cgroup of that name."""
    with tiny.own_cgroup(name) as cgroup:
        directory = os.open(cgroup, os.O_RDONLY)
        links = [
            libbpf.link_create(programs.programs[hook], directory, kind)
            for hook, kind in _HOOKS.items()
        ]
        with node.entered():
            made = Asker(cgroup)
        try:
            yield made
        finally:
            made.close()
            for descriptor in (*links, directory):
                os.close(descriptor)

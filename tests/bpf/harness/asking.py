# SPDX-License-Identifier: Apache-2.0
"""Processes under the socket hooks, in their own cgroup."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.uapi import AttachType
from tests.bpf.attach import tiny
from tests.bpf.harness.asker import Asker
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.node import Node

_HOOKS = {
    "lb_connect4": AttachType.CGROUP_INET4_CONNECT,
    "lb_connect6": AttachType.CGROUP_INET6_CONNECT,
    "lb_sock_release": AttachType.CGROUP_INET_SOCK_RELEASE,
}


@contextmanager
def hooked_cgroup(programs: Loaded, name: str, hooks: Mapping[str, AttachType]) -> Iterator[Path]:
    """A cgroup of that name with these programs attached."""
    with tiny.own_cgroup(name) as cgroup:
        directory = os.open(cgroup, os.O_RDONLY)
        links = [
            libbpf.link_create(programs.programs[hook], directory, kind)
            for hook, kind in hooks.items()
        ]
        try:
            yield cgroup
        finally:
            for descriptor in (*links, directory):
                os.close(descriptor)


@contextmanager
def asking(programs: Loaded, node: Node, name: str) -> Iterator[Asker]:
    """A process on the node, in a cgroup of that name."""
    with hooked_cgroup(programs, name, _HOOKS) as cgroup:
        with node.entered():
            made = Asker(cgroup)
        with closing(made):
            yield made

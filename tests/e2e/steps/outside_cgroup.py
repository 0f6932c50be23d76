# SPDX-License-Identifier: Apache-2.0
"""Connections of a pod: opened outside its cgroup, and where they lead."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ebpflb.lab import Member


@contextmanager
def outside(pod: Member, version: int, protocol: str) -> Iterator[socket.socket]:
    """A socket of the pod's namespace that is in no cgroup of the lab."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    with pod.entered():
        made = socket.socket(family, kind)
    with made:
        made.settimeout(20)
        yield made


def peers(pod: Member) -> str:
    """The peers of the pod's connections according to the kernel."""
    return str(pod.exec(["ss", "-Htn", "state", "established"]).stdout)

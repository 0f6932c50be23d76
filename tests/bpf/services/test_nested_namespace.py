# SPDX-License-Identifier: Apache-2.0
"""Sockets in network namespaces nested in a pod bypass the socket LB; other unknown ones do not."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from ebpflb.dataplane.attach.links import CGROUP_HOOKS
from ebpflb.dataplane.layout.enums import NetnsFlag
from ebpflb.lab.processes import remove_cgroup
from ebpflb.model.address import Protocol
from tests.bpf.harness.asker import Asker, say_who_asks
from tests.bpf.harness.asking import hooked_cgroup
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u64
from tests.bpf.harness.packets import Kind, target_of
from tests.bpf.harness.services import cluster_ip, remote_backend

_NAMES = ("lb_connect4", "lb_connect6", "lb_sendmsg4", "lb_sendmsg6")
HOOKS = {name: CGROUP_HOOKS[name] for name in _NAMES}


class Pods(NamedTuple):
    """The cgroup of a pod, and three processes: one in the pod's namespace, which is the machine's;
    one in a namespace nested in it, which is `there`; and one of another pod in a nested one.
    """

    cgroup: Path
    own: Asker
    there: Node
    nested: Asker
    other: Asker


@pytest.fixture(scope="module")
def pods(programs: Loaded, machine: Node) -> Iterator[Pods]:
    with hooked_cgroup(programs, "nested", HOOKS) as root, ExitStack() as stack:
        pod, other = root / "kubepods" / "pod", root / "kubepods" / "other"
        stack.callback(remove_cgroup, root / "kubepods")
        there = stack.enter_context(closing(Node()))

        def asker(node: Node, *cgroups: Path) -> Asker:
            for each in cgroups:
                each.mkdir(parents=True)
            with node.entered():
                return stack.enter_context(closing(Asker(cgroups[-1])))

        nested = asker(there, pod / "container" / "docker" / "inner")
        yield Pods(pod, asker(machine, pod / "init"), there, nested, asker(there, other / "init"))


@pytest.fixture
def covered(datapath: Datapath, pods: Pods) -> None:
    """The pod is covered by tc programs, and its cgroup is known."""
    say_who_asks(datapath.maps, NetnsFlag.LB_NETNS_COVERED)
    datapath.maps["lb_pod_cgroups"].update(u64(pods.cgroup.stat().st_ino), b"\1")


@pytest.mark.usefixtures("covered")
def test_what_connects_inside_a_pod_is_left_alone(datapath: Datapath, pods: Pods, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    assert pods.nested.connect(frontend, kind.proto) == frontend
    assert pods.other.connect(frontend, kind.proto) == backend
    is_tcp = kind.proto is Protocol.TCP
    assert pods.own.connect(frontend, kind.proto) == (backend if is_tcp else frontend)


@pytest.mark.usefixtures("covered")
def test_what_is_sent_inside_a_pod_is_left_alone(datapath: Datapath, pods: Pods, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    pods.nested.send(frontend)
    assert target_of(pods.there.uplink.receive()) == frontend
    pods.other.send(frontend)
    assert target_of(pods.there.overlay.receive()) == backend


def test_a_namespace_inside_a_pod_that_is_not_known_yet_is_served(
    datapath: Datapath, pods: Pods, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    for asker in (pods.nested, pods.own):
        assert asker.connect(frontend, kind.proto) == backend

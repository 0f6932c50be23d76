# SPDX-License-Identifier: Apache-2.0
"""Every BPF program in bpf/*.c: its name, its type and the hook it is for."""

from collections.abc import Mapping
from typing import NamedTuple

from ebpflb.dataplane.kernel.uapi import AttachType, ProgFlag, ProgType


class Program(NamedTuple):
    """attach_type: required at load time, None for tc programs.

    `flags`: of loading, for kernels with Feature.XDP_FRAGS.
    """

    type: ProgType
    attach_type: AttachType | None
    flags: ProgFlag = ProgFlag(0)


def _sock_addr(attach_type: AttachType) -> Program:
    return Program(ProgType.CGROUP_SOCK_ADDR, attach_type)


_TC = Program(ProgType.SCHED_CLS, None)

CGROUP_PROGRAMS: Mapping[str, Program] = {
    "lb_connect4": _sock_addr(AttachType.CGROUP_INET4_CONNECT),
    "lb_connect6": _sock_addr(AttachType.CGROUP_INET6_CONNECT),
    "lb_sendmsg4": _sock_addr(AttachType.CGROUP_UDP4_SENDMSG),
    "lb_sendmsg6": _sock_addr(AttachType.CGROUP_UDP6_SENDMSG),
    "lb_recvmsg4": _sock_addr(AttachType.CGROUP_UDP4_RECVMSG),
    "lb_recvmsg6": _sock_addr(AttachType.CGROUP_UDP6_RECVMSG),
    "lb_getpeer4": _sock_addr(AttachType.CGROUP_INET4_GETPEERNAME),
    "lb_getpeer6": _sock_addr(AttachType.CGROUP_INET6_GETPEERNAME),
    "lb_sock_ops": Program(ProgType.SOCK_OPS, AttachType.CGROUP_SOCK_OPS),
    "lb_sock_release": Program(ProgType.CGROUP_SOCK, AttachType.CGROUP_INET_SOCK_RELEASE),
}
TC_PROGRAMS: Mapping[str, Program] = {
    "lb_host_ingress": _TC,
    "lb_host_egress": _TC,
    "lb_l3_ingress": _TC,
    "lb_l3_egress": _TC,
    "lb_pod_ingress": _TC,
    "lb_pod_egress": _TC,
}
XDP_PROGRAM = "lb_xdp"
PROGRAMS: Mapping[str, Program] = {
    **CGROUP_PROGRAMS,
    **TC_PROGRAMS,
    XDP_PROGRAM: Program(ProgType.XDP, AttachType.XDP, ProgFlag.XDP_HAS_FRAGS),
}

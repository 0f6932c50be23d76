# SPDX-License-Identifier: Apache-2.0
"""What the running kernel and our permissions allow, determined by trying it.

A feature is a row: the release that introduced it (only for messages; distributions backport), a
tiny test, and the fallback without it. The errno of the test decides: some prove the feature (the
kernel noticed a bad file descriptor, so the command exists), some prove that it is missing, and for
any other we cannot tell, most often for lack of permission.
"""

import os
import socket
import struct
from collections.abc import Callable, Collection, Mapping
from enum import Enum, StrEnum
from errno import EAFNOSUPPORT, EBADF, EINVAL, ENODEV, ENOPROTOOPT, ENOSYS, EOPNOTSUPP, EPERM
from pathlib import Path
from typing import NamedTuple

from ebpflb.config.cgroup import cgroup_root
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.namespaces import SO_NETNS_COOKIE
from ebpflb.dataplane.kernel.sock_diag import try_to_destroy
from ebpflb.dataplane.kernel.uapi import AttachType, MapType, ProgFlag, ProgType
from ebpflb.errors import ProbeError

# The kernel's internal ENOTSUPP, for which user space has no name.
_ENOTSUPP = 524
_NO_FD = -1
_NO_IFINDEX = 0x7FFFFFFF
_CALL, _SET, _EXIT = 0x85, 0xB7, 0x95
_GET_SOCKET_COOKIE = 46
_GET_NETNS_COOKIE, _REDIRECT_NEIGH, _GET_COARSE_NS, _SET_RETVAL = 122, 152, 160, 187
_CHECK_MTU = 163
_MOVE, _ADD, _STORE, _FRAME = 0xBF, 0x07, 0x7A, 10


class Feature(StrEnum):
    """What the dataplane needs, or uses if available."""

    BPF = "bpf system call"
    BPFFS = "bpffs"
    CGROUP2 = "cgroup v2"
    CGROUP_LINK = "cgroup links"
    LINK_UPDATE = "link update"
    NETNS_COOKIE = "bpf_get_netns_cookie"
    SO_NETNS_COOKIE = "SO_NETNS_COOKIE"
    SET_RETVAL = "bpf_set_retval"
    COARSE_CLOCK = "bpf_ktime_get_coarse_ns"
    FIB_MTU = "route MTUs in bpf_fib_lookup"
    SOCK_OPS = "sock_ops"
    TCX_LINK = "tcx links"
    XDP_FRAGS = "XDP frames of several buffers"
    REDIRECT_NEIGH = "bpf_redirect_neigh"
    LRU_HASH = "LRU hash maps"
    BATCH = "batch map operations"
    PERCPU_BATCH = "batch operations on per-CPU arrays"
    IPV6 = "IPv6"
    SOCKET_DESTROY = "ending UDP sockets"


class Support(Enum):
    """The outcome of a test."""

    SUPPORTED = "supported"
    MISSING = "missing"
    UNKNOWN = "unknown"


class ProbeResult(NamedTuple):
    """The outcome and its reason, which is empty if the feature is supported."""

    support: Support
    reason: str = ""


class Row(NamedTuple):
    """What needs a feature, how to test for it, and the fallback without it ("" = none)."""

    needs: str
    test: Callable[[], object]
    proves: Collection[int] = ()
    disproves: Collection[int] = (EINVAL,)
    instead: str = ""


class Probe:
    """Tests each feature at most once."""

    def __init__(self, without: Collection[Feature] = ()) -> None:
        """`without`: features to report as missing, for tests."""
        self._findings = dict.fromkeys(without, ProbeResult(Support.MISSING, "switched off"))

    def find(self, feature: Feature) -> ProbeResult:
        """Test for a feature, or return the result of an earlier test."""
        if feature not in self._findings:
            self._findings[feature] = _find(FEATURES[feature])
        return self._findings[feature]

    def supports(self, feature: Feature) -> bool:
        """Whether a feature is certainly available."""
        return self.find(feature).support is Support.SUPPORTED

    def lacks(self) -> Mapping[str, str]:
        """Features that are or may be missing, with the reason and the fallback."""
        return {
            feature: f"{finding.reason}: {row.instead}"
            for feature, row in FEATURES.items()
            if row.instead and (finding := self.find(feature)).support is not Support.SUPPORTED
        }

    def require(self) -> None:
        """ProbeError naming the first feature that is needed and known to be missing."""
        for feature, row in FEATURES.items():
            finding = self.find(feature)
            if not row.instead and finding.support is Support.MISSING:
                raise ProbeError(f"{feature}: {finding.reason}")


def _find(row: Row) -> ProbeResult:
    try:
        row.test()
    except ProbeError as error:
        return ProbeResult(Support.MISSING, str(error))
    except OSError as error:
        if error.errno in row.proves:
            return ProbeResult(Support.SUPPORTED)
        if error.errno in row.disproves:
            return ProbeResult(Support.MISSING, f"{error.strerror}: needs {row.needs}")
        return ProbeResult(Support.UNKNOWN, error.strerror or str(error))
    return ProbeResult(Support.SUPPORTED)


def _make_map(kind: MapType) -> None:
    os.close(libbpf.map_create(kind, "lb_probe", 4, 4, 1))


def _find_bpffs() -> None:
    if "nodev\tbpf\n" not in Path("/proc/filesystems").read_text():
        raise ProbeError("the kernel has no bpffs (CONFIG_BPF_SYSCALL)")


def _update_in_batch(kind: MapType, values: int) -> None:
    with owned(libbpf.map_create(kind, "lb_probe", 4, 8, 1)) as fd:
        libbpf.map_update_batch(fd, bytes(4), bytes(8 * values), 1)


def _instruction(code: int, register: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, register, 0, value)


def _call(function: int, *zeros: int) -> bytes:
    """A program that calls a kernel function and returns 1.

    The argument registers in `zeros` are 0; otherwise register 1 has the context.
    """
    arguments = b"".join(_instruction(_SET, register) for register in zeros)
    return arguments + _instruction(_CALL, value=function) + _RETURN_1


_RETURN_1 = _instruction(_SET, value=1) + _instruction(_EXIT)
# Argument 3: pointer to a number on the stack.
_POINT_TO_ZERO = b"".join(
    (
        _instruction(_MOVE, 3 | _FRAME << 4),
        _instruction(_ADD, 3, -8),
        _instruction(_STORE, 3),
    )
)


def _load_socket_hook(text: bytes) -> int:
    kind = ProgType.CGROUP_SOCK_ADDR
    return libbpf.prog_load(kind, "lb_probe", text, AttachType.CGROUP_INET4_CONNECT)


def _load_tc(text: bytes) -> int:
    return libbpf.prog_load(ProgType.SCHED_CLS, "lb_probe", text)


def _load_xdp(flags: ProgFlag) -> int:
    return libbpf.prog_load(ProgType.XDP, "lb_probe", _RETURN_1, AttachType.XDP, flags)


def _load_sock_ops() -> int:
    kind, attach_type = ProgType.SOCK_OPS, AttachType.CGROUP_SOCK_OPS
    return libbpf.prog_load(kind, "lb_probe", _call(_GET_SOCKET_COOKIE), attach_type)


def _with(program: int, use: Callable[[int], None]) -> None:
    with owned(program):
        use(program)


def _link_cgroup(program: int) -> None:
    libbpf.link_create(program, _NO_FD, AttachType.CGROUP_INET4_CONNECT)


def _link_tcx(program: int) -> None:
    libbpf.link_create(program, _NO_IFINDEX, AttachType.TCX_INGRESS)


def _update_link(program: int) -> None:
    libbpf.link_update(_NO_FD, program)


def _read_cookie() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as any_socket:
        any_socket.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)


def _open_ipv6() -> None:
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()


_NO_BATCH = (EINVAL, EOPNOTSUPP, _ENOTSUPP)

FEATURES: Mapping[Feature, Row] = {
    Feature.BPF: Row(
        "root, or CAP_BPF with CAP_NET_ADMIN",
        lambda: _make_map(MapType.ARRAY),
        disproves=(EPERM, ENOSYS),
    ),
    Feature.BPFFS: Row("Linux 4.4", _find_bpffs),
    Feature.CGROUP2: Row("Linux 4.5", cgroup_root),
    Feature.CGROUP_LINK: Row(
        "Linux 5.7", lambda: _with(_load_socket_hook(_RETURN_1), _link_cgroup), (EBADF,)
    ),
    Feature.LINK_UPDATE: Row(
        "Linux 5.7", lambda: _with(_load_tc(_RETURN_1), _update_link), (EBADF,)
    ),
    Feature.NETNS_COOKIE: Row(
        "Linux 5.7", lambda: os.close(_load_socket_hook(_call(_GET_NETNS_COOKIE)))
    ),
    Feature.SO_NETNS_COOKIE: Row(
        "Linux 5.14",
        _read_cookie,
        (),
        (ENOPROTOOPT,),
        "the socket hooks treat every process as one of a pod",
    ),
    Feature.SET_RETVAL: Row(
        "Linux 6.1",
        lambda: os.close(_load_socket_hook(_call(_SET_RETVAL, 1))),
        instead="tc refuses connections, not the socket hooks",
    ),
    Feature.COARSE_CLOCK: Row(
        "Linux 5.11",
        lambda: os.close(_load_tc(_call(_GET_COARSE_NS))),
        instead="the exact clock, which is slower",
    ),
    # bpf_check_mtu came with it, and can be probed directly.
    Feature.FIB_MTU: Row(
        "Linux 5.12",
        lambda: os.close(_load_tc(_POINT_TO_ZERO + _call(_CHECK_MTU, 2, 4, 5))),
        instead="the MTU of the device, not that of the route",
    ),
    Feature.SOCK_OPS: Row(
        "Linux 5.0, CONFIG_INET",
        lambda: os.close(_load_sock_ops()),
        instead="neither the bytes nor the end of socket-LB connections are known",
    ),
    Feature.TCX_LINK: Row(
        "Linux 6.6",
        lambda: _with(_load_tc(_RETURN_1), _link_tcx),
        (ENODEV,),
        instead="clsact filters",
    ),
    Feature.XDP_FRAGS: Row(
        "Linux 5.18",
        lambda: os.close(_load_xdp(ProgFlag.XDP_HAS_FRAGS)),
        instead="no XDP on devices with multi-buffer frames",
    ),
    Feature.REDIRECT_NEIGH: Row(
        "Linux 5.10", lambda: os.close(_load_tc(_call(_REDIRECT_NEIGH, 1, 2, 3, 4)))
    ),
    Feature.LRU_HASH: Row("Linux 4.10", lambda: _make_map(MapType.LRU_HASH)),
    Feature.BATCH: Row(
        "Linux 5.6",
        lambda: _update_in_batch(MapType.ARRAY, 1),
        disproves=_NO_BATCH,
        instead="one operation per element",
    ),
    Feature.PERCPU_BATCH: Row(
        "Linux 5.13",
        lambda: _update_in_batch(MapType.PERCPU_ARRAY, libbpf.possible_cpus()),
        disproves=_NO_BATCH,
        instead="one operation per element",
    ),
    Feature.IPV6: Row("a kernel with IPv6", _open_ipv6, (), (EAFNOSUPPORT,), "IPv4 only"),
    Feature.SOCKET_DESTROY: Row(
        "CONFIG_INET_DIAG_DESTROY",
        try_to_destroy,
        disproves=(EOPNOTSUPP,),
        instead="connected UDP sockets of the host stay with backends that are gone",
    ),
}

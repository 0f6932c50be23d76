# SPDX-License-Identifier: Apache-2.0
"""The numbers and structs of <linux/bpf.h> that this program uses."""

import ctypes
from enum import IntEnum, IntFlag, StrEnum

NAME_LENGTH = 16


class MapType(IntEnum):
    """enum bpf_map_type."""

    HASH = 1
    ARRAY = 2
    PERCPU_HASH = 5
    PERCPU_ARRAY = 6
    LRU_HASH = 9
    LRU_PERCPU_HASH = 10
    LPM_TRIE = 11
    RINGBUF = 27


class MapFlag(IntFlag):
    """The flags of a map: BPF_F_*."""

    NO_PREALLOC = 1
    RDONLY_PROG = 1 << 7


class ProgType(IntEnum):
    """enum bpf_prog_type."""

    SCHED_CLS = 3
    XDP = 6
    CGROUP_SOCK = 9
    SOCK_OPS = 13
    CGROUP_SOCK_ADDR = 18


class AttachType(IntEnum):
    """enum bpf_attach_type."""

    CGROUP_SOCK_OPS = 3
    CGROUP_INET4_CONNECT = 10
    CGROUP_INET6_CONNECT = 11
    CGROUP_UDP4_SENDMSG = 14
    CGROUP_UDP6_SENDMSG = 15
    CGROUP_UDP4_RECVMSG = 19
    CGROUP_UDP6_RECVMSG = 20
    CGROUP_INET4_GETPEERNAME = 29
    CGROUP_INET6_GETPEERNAME = 30
    CGROUP_INET_SOCK_RELEASE = 34
    XDP = 37
    TCX_INGRESS = 46
    TCX_EGRESS = 47


class LinkType(IntEnum):
    """enum bpf_link_type."""

    CGROUP = 3
    XDP = 6
    TCX = 11


class BpfObject(StrEnum):
    """What can be pinned, as the link in /proc/PID/fd ends."""

    MAP = "map"
    PROGRAM = "prog"
    LINK = "link"


class Exist(IntEnum):
    """When a map update is allowed: BPF_ANY, BPF_NOEXIST, BPF_EXIST."""

    ANY = 0
    NO = 1
    YES = 2


class AttachFlag(IntFlag):
    """BPF_F_* of attaching. BEFORE and AFTER without a relative program mean first and last."""

    ALLOW_MULTI = 1 << 1
    BEFORE = 1 << 3
    AFTER = 1 << 4


class ProgFlag(IntFlag):
    """BPF_F_* of loading a program."""

    XDP_HAS_FRAGS = 1 << 5


class XdpFlag(IntFlag):
    """XDP_FLAGS_* of attaching: generic mode, which needs no driver support, or native mode."""

    GENERIC = 1 << 1
    NATIVE = 1 << 2


class MapInfo(ctypes.Structure):
    """The part of struct bpf_map_info that is used."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("name", ctypes.c_char * NAME_LENGTH),
    ]


class ProgInfo(ctypes.Structure):
    """struct bpf_prog_info up to verified_insns, which kernels before 5.16 leave 0."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("tag", ctypes.c_uint8 * 8),
        ("jited_prog_len", ctypes.c_uint32),
        ("xlated_prog_len", ctypes.c_uint32),
        ("jited_prog_insns", ctypes.c_uint64),
        ("xlated_prog_insns", ctypes.c_uint64),
        ("load_time", ctypes.c_uint64),
        ("created_by_uid", ctypes.c_uint32),
        ("nr_map_ids", ctypes.c_uint32),
        ("map_ids", ctypes.c_uint64),
        ("name", ctypes.c_char * NAME_LENGTH),
        ("ifindex", ctypes.c_uint32),
        ("gpl_compatible", ctypes.c_uint32),
        ("unused", ctypes.c_uint64 * 13),
        ("run_time_ns", ctypes.c_uint64),
        ("run_cnt", ctypes.c_uint64),
        ("recursion_misses", ctypes.c_uint64),
        ("verified_insns", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]


class _CgroupLink(ctypes.Structure):
    _fields_ = [("cgroup_id", ctypes.c_uint64), ("attach_type", ctypes.c_uint32)]


class _DeviceLink(ctypes.Structure):
    _fields_ = [("ifindex", ctypes.c_uint32), ("attach_type", ctypes.c_uint32)]


class _Target(ctypes.Union):
    _fields_ = [("cgroup", _CgroupLink), ("device", _DeviceLink), ("room", ctypes.c_uint64 * 8)]


class LinkInfo(ctypes.Structure):
    """struct bpf_link_info. `device`: for TCX and XDP links; ifindex 0 = the device is gone."""

    _anonymous_ = ("target",)
    _fields_ = [
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("prog_id", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("target", _Target),
    ]

# SPDX-License-Identifier: Apache-2.0
"""The ctypes mirror of bpf/types.h: same order, same names, host byte order in and out.

`layout_assertions()` renders what the C compiler must agree with; every compile carries it, so
a drift between the two files is a compile error that names the field.
"""

import ctypes
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import Any

LAYOUT_VERSION = 1
FLOW_VERSION = 1
META_MAGIC = 0x65627066

u8, u16, u32, u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
be16: Any = ctypes.c_uint16.__ctype_be__
be32: Any = ctypes.c_uint32.__ctype_be__


class Struct(ctypes.Structure):
    """A value of a map. Unknown field names are an error, as they are for a dataclass."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in field_names(type(self)))
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(bytes(self))


class Addr(Struct):
    """struct lb_addr."""

    _fields_ = [("word", be32 * 4)]


class FrontendKey(Struct):
    """struct lb_frontend_key."""

    _fields_ = [("addr", Addr), ("port", be16), ("proto", u8), ("pad", u8)]


class Range(Struct):
    """struct lb_range."""

    _fields_ = [("base", u32), ("count", u32), ("if_empty", u32)]


class Desc(Struct):
    """struct lb_desc."""

    _fields_ = [
        ("frontend", FrontendKey),
        ("service", u32),
        ("local", Range),
        ("others", Range),
        ("type", u32),
        ("flags", u32),
        ("affinity_timeout", u32),
        ("pad", u32),
    ]


class Backend(Struct):
    """struct lb_backend."""

    _fields_ = [
        ("addr", Addr),
        ("port", be16),
        ("proto", u8),
        ("pad", u8),
        ("flags", u32),
        ("generation", u32),
        ("service", u32),
    ]


class Name(Struct):
    """struct lb_name."""

    _fields_ = [
        ("ns", ctypes.c_char * 64),
        ("service", ctypes.c_char * 64),
        ("port", ctypes.c_char * 64),
    ]


class Device(Struct):
    """struct lb_device."""

    _fields_ = [("kind", u32), ("flags", u32), ("snat4", Addr), ("snat6", Addr)]


class Netns(Struct):
    """struct lb_netns."""

    _fields_ = [("flags", u32), ("ifindex", u32)]


class PortRange(Struct):
    """struct lb_port_range."""

    _fields_ = [("first", u16), ("last", u16)]


class Settings(Struct):
    """struct lb_settings."""

    _fields_ = [
        ("flags", u32),
        ("snat_ports", PortRange * 2),
        ("tcp_opening_timeout", u32),
        ("tcp_established_timeout", u32),
        ("tcp_closed_timeout", u32),
        ("udp_timeout", u32),
        ("node4", Addr),
        ("node6", Addr),
    ]


class Tuple(Struct):
    """struct lb_tuple."""

    _fields_ = [
        ("saddr", Addr),
        ("daddr", Addr),
        ("sport", be16),
        ("dport", be16),
        ("proto", u8),
        ("pad", u8 * 3),
    ]


class Conntrack(Struct):
    """struct lb_conntrack."""

    _fields_ = [
        ("to", Tuple),
        ("created", u64),
        ("last_seen", u64),
        ("packets", u64),
        ("bytes", u64),
        ("service", u32),
        ("backend", u32),
        ("generation", u32),
        ("ifindex", u32),
        ("direction", u8),
        ("hook", u8),
        ("state", u8),
        ("flags", u8),
        ("fin_end", u32),
    ]


class SocketKey(Struct):
    """struct lb_socket_key."""

    _fields_ = [
        ("cookie", u64),
        ("peer", Addr),
        ("port", be16),
        ("proto", u8),
        ("direction", u8),
        ("pad", u32),
    ]


class Socket(Struct):
    """struct lb_socket."""

    _fields_ = [
        ("peer", Addr),
        ("port", be16),
        ("pad", u16),
        ("backend", u32),
        ("generation", u32),
        ("service", u32),
    ]


class Counts(Struct):
    """struct lb_counts."""

    _fields_ = [("connections", u64), ("refused", u64), ("dropped", u64)]


class Meta(Struct):
    """struct lb_meta."""

    _fields_ = [("magic", u32), ("layout", u32), ("flows", u32), ("source", u8 * 32)]


class FrontendType(IntEnum):
    """enum lb_frontend_type."""

    LB_CLUSTER_IP = 1
    LB_NODE_PORT = 2
    LB_EXTERNAL_IP = 3
    LB_LOAD_BALANCER = 4


class IfEmpty(IntEnum):
    """enum lb_if_empty."""

    LB_EMPTY_REFUSE = 1
    LB_EMPTY_DROP = 2


class DescFlag(IntFlag):
    """enum lb_desc_flag."""

    LB_DESC_INTERNAL_LOCAL = 1
    LB_DESC_EXTERNAL_LOCAL = 2


class BackendFlag(IntFlag):
    """enum lb_backend_flag."""

    LB_BACKEND_LOCAL = 1
    LB_BACKEND_TERMINATING = 2
    LB_BACKEND_USABLE = 4


class AddrFlag(IntFlag):
    """enum lb_addr_flag."""

    LB_ADDR_CLUSTER_IP = 1
    LB_ADDR_EXTERNAL = 2
    LB_ADDR_NODE = 4
    LB_ADDR_NODE_PORT = 8


class DeviceKind(IntEnum):
    """enum lb_device_kind."""

    LB_DEVICE_HOST = 1
    LB_DEVICE_WORKLOAD = 2


class DeviceFlag(IntFlag):
    """enum lb_device_flag."""

    LB_DEVICE_ETHERNET = 1


class NetnsFlag(IntFlag):
    """enum lb_netns_flag."""

    LB_NETNS_HOST = 1
    LB_NETNS_COVERED = 2


class SettingFlag(IntFlag):
    """enum lb_setting_flag."""

    LB_SETTING_SOCKET_HOST = 1


class Direction(IntEnum):
    """enum lb_direction."""

    LB_DIR_ORIGINAL = 1
    LB_DIR_REPLY = 2


class Hook(IntEnum):
    """enum lb_hook."""

    LB_HOOK_HOST_INGRESS = 1
    LB_HOOK_HOST_EGRESS = 2
    LB_HOOK_POD_INGRESS = 3
    LB_HOOK_POD_EGRESS = 4


class CtState(IntFlag):
    """enum lb_ct_state."""

    LB_CT_SYN = 1
    LB_CT_ACK = 2
    LB_CT_PEER_FIN = 4
    LB_CT_CLOSED = 8
    LB_CT_ESTABLISHED = 16
    LB_CT_FIN_ACKED = 32


class CtFlag(IntFlag):
    """enum lb_ct_flag."""

    LB_CT_SNAT = 1
    LB_CT_HAIRPIN = 2
    LB_CT_TO_HOST = 4


class DropReason(IntEnum):
    """enum lb_drop_reason, without its count."""

    LB_DROP_NO_ENDPOINT = 1
    LB_DROP_NO_LOCAL_ENDPOINT = 2
    LB_DROP_UNKNOWN_PORT = 3
    LB_DROP_SNAT_PORTS = 4
    LB_DROP_CONNTRACK_FULL = 5
    LB_DROP_TTL_EXCEEDED = 6
    LB_DROP_TOO_BIG = 7
    LB_DROP_NO_ROUTE = 8
    LB_DROP_NO_SNAT_ADDRESS = 9
    LB_DROP_REWRITE = 10


STRUCTS: dict[str, type[Struct]] = {
    "lb_addr": Addr,
    "lb_frontend_key": FrontendKey,
    "lb_range": Range,
    "lb_desc": Desc,
    "lb_backend": Backend,
    "lb_name": Name,
    "lb_device": Device,
    "lb_netns": Netns,
    "lb_port_range": PortRange,
    "lb_settings": Settings,
    "lb_tuple": Tuple,
    "lb_conntrack": Conntrack,
    "lb_socket_key": SocketKey,
    "lb_socket": Socket,
    "lb_counts": Counts,
    "lb_meta": Meta,
}
ENUMS: tuple[type[IntEnum | IntFlag], ...] = (
    FrontendType,
    IfEmpty,
    DescFlag,
    BackendFlag,
    AddrFlag,
    DeviceKind,
    DeviceFlag,
    NetnsFlag,
    SettingFlag,
    Direction,
    Hook,
    CtState,
    CtFlag,
    DropReason,
)


def field_names(struct: type[Struct]) -> list[str]:
    """The field names of a mirror, in order."""
    return [field[0] for field in struct._fields_]


def layout_assertions() -> str:
    """C text that fails to compile where types.h and this file differ."""
    return "\n".join(_assertions()) + "\n"


def _assertions() -> Iterator[str]:
    for name, struct in STRUCTS.items():
        yield _assertion(f"sizeof(struct {name})", ctypes.sizeof(struct))
        for field in field_names(struct):
            place = getattr(struct, field)
            yield _assertion(f"__builtin_offsetof(struct {name}, {field})", place.offset)
            yield _assertion(f"sizeof(((struct {name} *)0)->{field})", place.size)
    for enum in ENUMS:
        for name, member in enum.__members__.items():
            yield _assertion(name, member.value)


def _assertion(expression: str, value: int) -> str:
    return f'_Static_assert({expression} == {value}, "{expression} != {value}, see structs.py");'

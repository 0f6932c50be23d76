# SPDX-License-Identifier: Apache-2.0
"""The ctypes mirror of bpf/types.h: same order, same names, host byte order in and out.

A drift between the two files is a compile error that names the field (assertions.py).
"""

import ctypes
from typing import Any, Self

LAYOUT_VERSION = 1
FLOW_VERSION = 1
META_MAGIC = 0x65627066
FLOW_RECORD_VERSION = 1
BUCKETS = 40

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

    @classmethod
    def of(cls, address: bytes | None) -> Self:
        """A packed address of 16 bytes; zero for none."""
        return cls.from_buffer_copy(address) if address else cls()


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
        ("source_ranges", u32),
    ]


class SourceRange(Struct):
    """struct lb_source_range."""

    _fields_ = [("length", u32), ("source_ranges", u32), ("addr", Addr)]


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


class AddrState(Struct):
    """struct lb_addr_state."""

    _fields_ = [("flags", u64), ("addr", Addr)]


class Dest(Struct):
    """struct lb_dest."""

    _fields_ = [("flags", u8), ("pad", u8 * 3), ("known", u32)]


class Name(Struct):
    """struct lb_name."""

    _fields_ = [(name, ctypes.c_char * 64) for name in ("ns", "service", "port")]


class Device(Struct):
    """struct lb_device."""

    _fields_ = [("kind", u32), ("flags", u32), ("snat4", Addr), ("snat6", Addr)]


class Uplink(Struct):
    """struct lb_uplink."""

    _fields_ = [("ifindex", u32), ("pad", u32), ("snat4", Addr), ("snat6", Addr)]


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
        ("tcp_close_wait_timeout", u32),
        ("udp_timeout", u32),
        ("udp_stream_timeout", u32),
        ("flow_events", u32),
        ("flow_sample", u32),
        ("flow_rate", u32),
        ("node4", Addr),
        ("node6", Addr),
    ]


class Net4(Struct):
    """struct lb_net4."""

    _fields_ = [("net", be32), ("mask", be32)]


class Net6(Struct):
    """struct lb_net6."""

    _fields_ = [("net", Addr), ("mask", Addr)]


class ServiceNets(Struct):
    """struct lb_service_nets."""

    _fields_ = [("ipv4", Net4 * 8), ("ipv6", Net6 * 8)]


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
        ("frontend", u32),
        ("desc_flags", u16),
        ("peer_state", u8),
        ("pad", u8),
    ]

    @property
    def whole_state(self) -> int:
        """What holds, whichever direction's packets wrote it: enum lb_ct_state."""
        return int(self.state) | int(self.peer_state)


class ReplyEnds(Struct):
    """struct lb_reply_ends."""

    _fields_ = [("hooks", u8 * 8)]


class Fragment(Struct):
    """struct lb_fragment."""

    _fields_ = [("created", u64), ("sport", be16), ("dport", be16), ("pad", u32)]


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
        ("flow_flags", u16),
        ("backend", u32),
        ("generation", u32),
        ("service", u32),
        ("frontend", u32),
        ("desc_flags", u32),
    ]


class AffinityKey(Struct):
    """struct lb_affinity_key."""

    _fields_ = [("service", u32), ("client", Addr)]


class Affinity(Struct):
    """struct lb_affinity."""

    _fields_ = [("backend", u32), ("generation", u32), ("last_used", u64)]


class Traffic(Struct):
    """struct lb_traffic."""

    _fields_ = [("packets", u64), ("bytes", u64)]


class Counts(Struct):
    """struct lb_counts."""

    _fields_ = [
        ("connections", u64),
        ("refused", u64),
        ("dropped", u64),
        ("failed", u64),
        ("retransmits", u64),
        ("original", Traffic),
        ("reply", Traffic),
    ]


class Connection(Struct):
    """struct lb_connection."""

    _fields_ = [
        ("started", u64),
        ("flushed", u64),
        ("original", Traffic),
        ("reply", Traffic),
        ("addr", Addr),
        ("port", be16),
        ("state", u8),
        ("pad", u8),
        ("frontend", u32),
        ("service", u32),
        ("backend", u32),
        ("generation", u32),
        ("desc_flags", u32),
        ("retransmits", u32),
        ("peer", Addr),
        ("peer_port", be16),
        ("pad2", u8 * 2),
    ]


class DropKey(Struct):
    """struct lb_drop_key."""

    _fields_ = [("reason", u32), ("ifindex", u32)]


class FlowRecord(Struct):
    """struct lb_flow_record."""

    _fields_ = [
        ("version", u8),
        ("event", u8),
        ("path", u8),
        ("end", u8),
        ("reason", u8),
        ("proto", u8),
        ("hook", u8),
        ("source", u8),
        ("time", u64),
        ("started", u64),
        ("client", Addr),
        ("frontend", Addr),
        ("backend_addr", Addr),
        ("client_port", be16),
        ("frontend_port", be16),
        ("backend_port", be16),
        ("flow_flags", u16),
        ("service", u32),
        ("backend", u32),
        ("generation", u32),
        ("desc_flags", u32),
        ("original", Traffic),
        ("reply", Traffic),
        ("rtt", u32),
        ("retransmits", u32),
    ]


class Histogram(Struct):
    """struct lb_histogram."""

    _fields_ = [("buckets", u64 * BUCKETS), ("sum", u64)]


class Meta(Struct):
    """struct lb_meta."""

    _fields_ = [("magic", u32), ("layout", u32), ("flows", u32), ("source", u8 * 32)]


STRUCTS: dict[str, type[Struct]] = {
    "lb_addr": Addr,
    "lb_frontend_key": FrontendKey,
    "lb_range": Range,
    "lb_desc": Desc,
    "lb_source_range": SourceRange,
    "lb_backend": Backend,
    "lb_addr_state": AddrState,
    "lb_dest": Dest,
    "lb_name": Name,
    "lb_device": Device,
    "lb_uplink": Uplink,
    "lb_netns": Netns,
    "lb_port_range": PortRange,
    "lb_settings": Settings,
    "lb_net4": Net4,
    "lb_net6": Net6,
    "lb_service_nets": ServiceNets,
    "lb_tuple": Tuple,
    "lb_conntrack": Conntrack,
    "lb_reply_ends": ReplyEnds,
    "lb_fragment": Fragment,
    "lb_socket_key": SocketKey,
    "lb_socket": Socket,
    "lb_affinity_key": AffinityKey,
    "lb_affinity": Affinity,
    "lb_traffic": Traffic,
    "lb_counts": Counts,
    "lb_connection": Connection,
    "lb_drop_key": DropKey,
    "lb_flow_record": FlowRecord,
    "lb_histogram": Histogram,
    "lb_meta": Meta,
}


def field_names(struct: type[Struct]) -> list[str]:
    """The field names of a mirror, in order."""
    return [field[0] for field in struct._fields_]

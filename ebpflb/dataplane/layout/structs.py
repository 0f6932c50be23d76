# SPDX-License-Identifier: Apache-2.0
"""ctypes mirrors of the structs in bpf/types.h: same order, same names, host byte order.

This is the only description of their layout. Each compile asserts that C agrees (assertions.py),
and faster code for packing and unpacking derives its format from here (`packed_format()`).
"""

import ctypes
import re
from collections.abc import Iterator, Mapping
from struct import Struct as Format
from typing import Any, ClassVar, Self

from ebpflb.dataplane.layout import enums
from ebpflb.dataplane.layout.enums import EnumType
from ebpflb.model.address import Protocol

LAYOUT_VERSION = 1
FLOW_VERSION = 1
META_MAGIC = 0x65627066
FLOW_RECORD_VERSION = 1
BUCKETS = 40

u8, u16, u32, u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
s64 = ctypes.c_int64
be16: Any = ctypes.c_uint16.__ctype_be__
be32: Any = ctypes.c_uint32.__ctype_be__


class Struct(ctypes.Structure):
    """A key or a value of a map; class LbAddrState mirrors struct lb_addr_state.

    Class keywords give the enum of a field. Unknown field names are an error, as in a dataclass.
    """

    enums: ClassVar[Mapping[str, EnumType]] = {}

    def __init_subclass__(cls, **enums: EnumType) -> None:
        super().__init_subclass__()
        cls.enums = enums

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in field_names(type(self)))
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(bytes(self))


class LbAddr(Struct):
    _fields_ = [("word", be32 * 4)]

    @classmethod
    def of(cls, address: bytes | None) -> Self:
        """From a packed 16-byte address; zero for None."""
        return cls.from_buffer_copy(address) if address else cls()


class LbFrontendKey(Struct, proto=Protocol):
    _fields_ = [("addr", LbAddr), ("port", be16), ("proto", u8), ("pad", u8)]


class LbRange(Struct, if_empty=enums.IfEmptyCode):
    _fields_ = [("base", u32), ("count", u32), ("if_empty", u16), ("table", u16)]


class LbDesc(
    Struct,
    type=enums.FrontendTypeCode,
    flags=enums.DescFlag,
    scheduler=enums.SchedulerCode,
):
    _fields_ = [
        ("frontend", LbFrontendKey),
        ("service", u32),
        ("local", LbRange),
        ("others", LbRange),
        ("type", u32),
        ("flags", u16),
        ("scheduler", u8),
        ("pad", u8),
        ("affinity_timeout", u32),
        ("source_ranges", u32),
    ]


class LbSourceRange(Struct):
    _fields_ = [("length", u32), ("source_ranges", u32), ("addr", LbAddr)]


class LbBackend(Struct, proto=Protocol, flags=enums.BackendFlag):
    _fields_ = [
        ("addr", LbAddr),
        ("port", be16),
        ("proto", u8),
        ("pad", u8),
        ("flags", u16),
        ("weight", u16),
        ("serial", u32),
        ("service", u32),
    ]


class LbPodKey(Struct, proto=Protocol):
    _fields_ = [
        ("addr", LbAddr),
        ("port", be16),
        ("proto", u8),
        ("pad", u8),
        ("service", u32),
    ]


class LbFailures(Struct):
    _fields_ = [
        ("in_a_row", u32),
        ("pad", u32),
        ("failed", u64),
        ("tried", u64),
        ("busy_until", u64),
    ]


class LbLimit(Struct, flags=enums.LimitFlag):
    _fields_ = [
        ("interval", u64),
        ("burst", u64),
        ("open", u32),
        ("client_open", u32),
        ("flags", u32),
        ("pad", u32),
    ]


class LbLatency(Struct):
    _fields_ = [("average", u32), ("measured", u32)]


class LbAddrState(Struct, flags=enums.AddrFlag):
    _fields_ = [("flags", u64), ("addr", LbAddr)]


class LbDest(Struct, flags=enums.AddrFlag):
    _fields_ = [("flags", u16), ("pad", u8 * 2), ("known", u32)]


class LbName(Struct):
    _fields_ = [(name, ctypes.c_char * 64) for name in ("ns", "service", "port")]


class LbDevice(Struct, kind=enums.DeviceKind, flags=enums.DeviceFlag):
    _fields_ = [
        ("kind", u32),
        ("flags", u32),
        ("mtu", u32),
        ("snat4", LbAddr),
        ("snat6", LbAddr),
        ("mac", u8 * 6),
        ("pad", u8 * 2),
    ]


class LbUplink(Struct, flags=enums.DeviceFlag):
    _fields_ = [
        ("ifindex", u32),
        ("flags", u32),
        ("snat4", LbAddr),
        ("snat6", LbAddr),
        ("mac", u8 * 6),
        ("pad", u8 * 2),
    ]


class LbSubnet(Struct):
    _fields_ = [("length", u32), ("ifindex", u32), ("addr", LbAddr)]


class LbNetns(Struct, flags=enums.NetnsFlag):
    _fields_ = [("flags", u32), ("ifindex", u32)]


class LbPortRange(Struct):
    _fields_ = [("first", u16), ("last", u16)]


class LbSettings(Struct, flags=enums.SettingFlag):
    _fields_ = [
        ("flags", u32),
        ("snat_ports", LbPortRange * 2),
        ("tcp_opening_timeout", u32),
        ("tcp_established_timeout", u32),
        ("tcp_closed_timeout", u32),
        ("tcp_close_wait_timeout", u32),
        ("udp_timeout", u32),
        ("udp_stream_timeout", u32),
        ("flow_events", u32),
        ("flow_sample", u32),
        ("flow_rate", u32),
        ("node4", LbAddr),
        ("node6", LbAddr),
        ("dsr_port", be16),
        ("pad", u8 * 2),
        ("filter_floor", u32),
    ]


class LbPathMtu(Struct):
    _fields_ = [("told", u64), ("mtu", u32), ("pad", u32)]


class LbTunnelKeys(Struct):
    _fields_ = [("sent", u64), ("other", u64)]


class LbNet4(Struct):
    _fields_ = [("net", be32), ("mask", be32)]


class LbNet6(Struct):
    _fields_ = [("net", LbAddr), ("mask", LbAddr)]


class LbServiceNets(Struct):
    _fields_ = [("ipv4", LbNet4 * 8), ("ipv6", LbNet6 * 8)]


class LbTuple(Struct, proto=Protocol):
    _fields_ = [
        ("saddr", LbAddr),
        ("daddr", LbAddr),
        ("sport", be16),
        ("dport", be16),
        ("proto", u8),
        ("pad", u8 * 3),
    ]


class LbConntrack(
    Struct,
    direction=enums.Direction,
    hook=enums.Hook,
    state=enums.CtState,
    other_state=enums.CtState,
    flags=enums.CtFlag,
):
    _fields_ = [
        ("to", LbTuple),
        ("created", u64),
        ("last_seen", u64),
        ("packets", u64),
        ("bytes", u64),
        ("service", u32),
        ("backend", u32),
        ("serial", u32),
        ("ifindex", u32),
        ("direction", u8),
        ("hook", u8),
        ("state", u8),
        ("flags", u8),
        ("sent_end", u32),
        ("frontend", u32),
        ("desc_flags", u16),
        ("other_state", u8),
        ("tried", u8),
    ]

    @property
    def whole_state(self) -> int:
        """The state as seen by both directions together: enum lb_ct_state."""
        return int(self.state) | int(self.other_state)


class LbReplyEnds(Struct):
    _fields_ = [("hooks", u8 * 8)]


class LbFragment(Struct):
    _fields_ = [("created", u64), ("sport", be16), ("dport", be16), ("via_stack", u32)]


class LbStackNat(Struct):
    _fields_ = [("to", LbTuple), ("last_seen", u64)]


class LbSocketKey(Struct, proto=Protocol, direction=enums.Direction):
    _fields_ = [
        ("cookie", u64),
        ("peer", LbAddr),
        ("port", be16),
        ("proto", u8),
        ("direction", u8),
        ("pad", u32),
    ]


class LbSocket(Struct):
    _fields_ = [
        ("peer", LbAddr),
        ("port", be16),
        ("flow_flags", u16),
        ("backend", u32),
        ("serial", u32),
        ("service", u32),
        ("frontend", u32),
        ("desc_flags", u32),
    ]


class LbClientKey(Struct):
    _fields_ = [("service", u32), ("client", LbAddr)]


class LbClient(Struct):
    _fields_ = [("established", u64), ("backend", u32), ("serial", u32)]


class LbClientUse(Struct):
    _fields_ = [("open", s64), ("due", u64)]


class LbAffinity(Struct):
    _fields_ = [("backend", u32), ("serial", u32), ("last_used", u64)]


class LbTraffic(Struct):
    _fields_ = [("packets", u64), ("bytes", u64)]


class LbCounts(Struct):
    _fields_ = [
        ("connections", u64),
        ("refused", u64),
        ("dropped", u64),
        ("failed", u64),
        ("retransmits", u64),
        ("original", LbTraffic),
        ("reply", LbTraffic),
        ("retried", u64),
    ]


class LbConnection(Struct, state=enums.ConnectionState):
    _fields_ = [
        ("started", u64),
        ("flushed", u64),
        ("original", LbTraffic),
        ("reply", LbTraffic),
        ("addr", LbAddr),
        ("port", be16),
        ("state", u8),
        ("pad", u8),
        ("frontend", u32),
        ("service", u32),
        ("backend", u32),
        ("serial", u32),
        ("desc_flags", u32),
        ("retransmits", u32),
        ("backend_addr", LbAddr),
        ("backend_port", be16),
        ("pad2", u8 * 2),
    ]


class LbConnPlace(Struct):
    _fields_ = [("cookie", u64), ("claims", u64), ("connection", LbConnection)]


class LbDropKey(Struct, reason=enums.DropReason):
    _fields_ = [("reason", u32), ("ifindex", u32)]


class LbFlowRecord(
    Struct,
    event=enums.FlowEvent,
    path=enums.FlowPath,
    end=enums.FlowEnd,
    proto=Protocol,
    hook=enums.Hook,
):
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
        ("client", LbAddr),
        ("frontend", LbAddr),
        ("backend_addr", LbAddr),
        ("client_port", be16),
        ("frontend_port", be16),
        ("backend_port", be16),
        ("flow_flags", u16),
        ("service", u32),
        ("backend", u32),
        ("serial", u32),
        ("desc_flags", u32),
        ("original", LbTraffic),
        ("reply", LbTraffic),
        ("rtt", u32),
        ("retransmits", u32),
    ]


class LbHistogram(Struct):
    _fields_ = [("buckets", u64 * BUCKETS), ("sum", u64)]


class LbMeta(Struct):
    _fields_ = [("magic", u32), ("layout", u32), ("flows", u32), ("source", u8 * 32)]


def _c_name(struct: type[Struct]) -> str:
    return re.sub("(?<!^)[A-Z]", "_\\g<0>", struct.__name__).lower()


STRUCTS: dict[str, type[Struct]] = {_c_name(each): each for each in Struct.__subclasses__()}
"""All mirrors by their C names."""


def field_names(struct: type[Struct]) -> list[str]:
    """The field names of a mirror, in order."""
    return [field[0] for field in struct._fields_]


def packed_format(struct: type[Struct], *fields: str | tuple[str, ...]) -> Format:
    """The `struct` format for some fields of a mirror, ten times as fast as ctypes.

    Without `fields`: all but padding. A tuple names adjacent fields that become one bytes object.
    Otherwise numbers are ints, nested structs of numbers in host byte order are flattened, and
    everything else is bytes, including ports, unless all numbers of the struct are in network byte
    order. The bytes of other fields are skipped, or packed as zero.
    """
    text, at = "=" if _has_host_order(struct) else "!", 0
    for offset, code in _chosen(struct, fields) if fields else _codes(struct):
        text += f"{offset - at}x{code}"
        at = offset + Format(f"={code}").size
    return Format(f"{text}{ctypes.sizeof(struct) - at}x")


_CODES: Mapping[Any, str] = {u8: "B", u16: "H", u32: "I", u64: "Q"}
_NETWORK_ORDER: Mapping[Any, str] = {be16: "H", be32: "I"}


def _has_host_order(struct: type[Struct]) -> bool:
    """Whether multi-byte numbers are in host byte order; otherwise in network byte order."""
    kinds = [field[1] for field in struct._fields_]
    nested = (kind for kind in kinds if issubclass(kind, Struct))
    return not {u16, u32, u64}.isdisjoint(kinds) or any(map(_has_host_order, nested))


def _codes(struct: type[Struct], base: int = 0) -> Iterator[tuple[int, str]]:
    """The offset and the format code of each field except padding."""
    for name, kind, *_ in struct._fields_:
        offset = base + getattr(struct, name).offset
        if issubclass(kind, Struct) and _has_host_order(kind):
            yield from _codes(kind, offset)
        elif not name.startswith("pad"):
            yield offset, _code(struct, kind)


def _code(struct: type[Struct], kind: Any) -> str:
    numbers = _CODES if _has_host_order(struct) else {**_CODES, **_NETWORK_ORDER}
    return numbers.get(kind, f"{ctypes.sizeof(kind)}s")


def _chosen(
    struct: type[Struct], fields: tuple[str | tuple[str, ...], ...]
) -> Iterator[tuple[int, str]]:
    kinds = {field[0]: field[1] for field in struct._fields_}
    for field in fields:
        if isinstance(field, str):
            yield getattr(struct, field).offset, _code(struct, kinds[field])
        else:
            size = sum(ctypes.sizeof(kinds[name]) for name in field)
            yield getattr(struct, field[0]).offset, f"{size}s"

# SPDX-License-Identifier: Apache-2.0
"""Flow records: read from lb_flows, a ring buffer of the kernel, and decoded.

Most records are only glanced at (`brief()`); a record is decoded when a query needs it.
"""

import ctypes
import weakref
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from sys import byteorder
from typing import Any, NamedTuple

from ebpflb.dataplane.kernel.maps import KernelMap
from ebpflb.dataplane.layout.enums import (
    CtFlag,
    DescFlag,
    DropReason,
    FlowEnd,
    FlowEvent,
    FlowPath,
    FlowSource,
    word,
)
from ebpflb.dataplane.layout.structs import FLOW_RECORD_VERSION, LbFlowRecord, packed_format
from ebpflb.errors import MapError, ProbeError
from ebpflb.model.address import Address, Family, Protocol
from ebpflb.model.flow import Flow, Side, Traffic
from ebpflb.model.service import TrafficPolicy

_RECORD = packed_format(LbFlowRecord)
_BRIEF = packed_format(LbFlowRecord, "event", "proto", "client", "backend_addr", "service")
_CLIENT = packed_format(LbFlowRecord, "path", "client", "client_port")
_CLIENT_AT = LbFlowRecord.client.offset
# Offset of the family in a client that stands for a namespace, before the cookie.
_FAMILY = 7
_FAMILIES = frozenset(Family)
# Plain ints and strings: enums are ten times as slow.
_INTERNAL = int(DescFlag.LB_DESC_INTERNAL_LOCAL)
_EXTERNAL = int(DescFlag.LB_DESC_EXTERNAL_LOCAL)
_SNAT, _HAIRPIN = int(CtFlag.LB_CT_SNAT), int(CtFlag.LB_CT_HAIRPIN)
_END, _SOCKET = int(FlowEvent.LB_FLOW_END), int(FlowPath.LB_PATH_SOCKET)
_LOCAL, _CLUSTER = str(TrafficPolicy.LOCAL), str(TrafficPolicy.CLUSTER)
_SECOND = 1_000_000_000
_MICROSECONDS = 1_000_000


class Brief(NamedTuple):
    """The fields used of every record. protocol: a number. client: zero if unknown."""

    event: str
    protocol: int
    client: Address
    backend: Address
    service: int


class ClientNamespace(NamedTuple):
    """The cookie of a pod's network namespace, and the address family of the client."""

    cookie: int
    family: Family


class _Record(NamedTuple):
    version: int
    event: int
    path: int
    end: int
    reason: int
    proto: int
    hook: int
    source: int
    time: int
    started: int
    client: bytes
    frontend: bytes
    backend_addr: bytes
    client_port: bytes
    frontend_port: bytes
    backend_port: bytes
    flow_flags: int
    service: int
    backend: int
    generation: int
    desc_flags: int
    original_packets: int
    original_bytes: int
    reply_packets: int
    reply_bytes: int
    rtt: int
    retransmits: int


def is_readable(record: bytes) -> bool:
    """Whether this program knows the record's version."""
    return len(record) == _RECORD.size and record[0] == FLOW_RECORD_VERSION


def brief(record: bytes) -> Brief:
    """The brief form of a readable record."""
    event, protocol, client, backend, service = _BRIEF.unpack_from(record)
    name = _EVENTS.get(event, str(event))
    return Brief(name, protocol, Address(client), Address(backend), service)


def client_namespace(record: bytes) -> ClientNamespace | None:
    """For a readable record whose client's address the socket hooks do not know.

    That is a pod's socket that has none yet (lb_sock_client_get()). Only such clients have no
    port: a packet cannot forge that.
    """
    path, client, port = _CLIENT.unpack_from(record)
    if path != _SOCKET or any(port) or any(client[:_FAMILY]) or client[_FAMILY] not in _FAMILIES:
        return None
    return ClientNamespace(
        int.from_bytes(client[_FAMILY + 1 :], byteorder), Family(client[_FAMILY])
    )


def with_client(record: bytes, address: bytes) -> bytes:
    """A readable record with its client replaced: 16 bytes."""
    return record[:_CLIENT_AT] + address + record[_CLIENT_AT + len(address) :]


def decode(record: bytes, since_1970: int) -> Flow:
    """Decode a readable record. since_1970: CLOCK_REALTIME minus CLOCK_MONOTONIC, in ns."""
    found = _Record._make(_RECORD.unpack(record))
    ended, at_socket = found.event == _END, found.path == _SOCKET
    # UDP at the socket has no counters, and no start time.
    is_counted = ended and bool(found.original_packets or found.reply_packets)
    return Flow(
        time=found.time + since_1970,
        event=_EVENTS.get(found.event, str(found.event)),
        reason=_REASONS.get(found.reason, str(found.reason)),
        ended=_ENDS.get(found.end, str(found.end)) if ended else "",
        protocol=_PROTOCOLS.get(found.proto, str(found.proto)),
        path=_PATHS.get(found.path, str(found.path)),
        source=_SOURCES.get(found.source, ""),
        client=_side(found.client, found.client_port) if any(found.client) else None,
        frontend=_side(found.frontend, found.frontend_port),
        backend=_side(found.backend_addr, found.backend_port) if any(found.backend_port) else None,
        internal_policy=_policy(found, _INTERNAL),
        external_policy=_policy(found, _EXTERNAL),
        snat=bool(found.flow_flags & _SNAT),
        hairpin=bool(found.flow_flags & _HAIRPIN),
        seconds=max(found.time - found.started, 0) / _SECOND if ended and found.started else None,
        original=Traffic(found.original_packets, found.original_bytes) if is_counted else None,
        reply=Traffic(found.reply_packets, found.reply_bytes) if is_counted else None,
        rtt=found.rtt / _MICROSECONDS if found.rtt else None,
        retransmits=found.retransmits if is_counted and at_socket else None,
    )


def _side(address: bytes, port: bytes) -> Side:
    return Side(Address(address), int.from_bytes(port, "big"))


def _policy(record: _Record, flag: int) -> str:
    if not record.service:
        return ""
    return _LOCAL if record.desc_flags & flag else _CLUSTER


def _words(kind: type[IntEnum]) -> Mapping[int, str]:
    return {int(member): word(member) for member in kind}


_EVENTS = _words(FlowEvent)
_PATHS = _words(FlowPath)
_SOURCES = _words(FlowSource)
_ENDS = _words(FlowEnd)
_REASONS = {0: "", **_words(DropReason)}
_PROTOCOLS = {int(protocol): protocol.name for protocol in Protocol}


# Maximum records at once: a millisecond or two, in which no other thread runs.
BUDGET = 2048

_Take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class FlowRing:
    """The reading end of the ring, for one thread. A record is read once.

    Reading a record frees its room in the ring.
    """

    def __init__(self, source: KernelMap) -> None:
        """MapError if it is not a ring buffer, or cannot be mapped."""
        self._source = source
        self._records: list[bytes] = []
        # Keep a reference, because libbpf calls it.
        self._take = _Take(self._add)
        new = _library().ring_buffer__new
        self._ring: int | None = new(source.fd, self._take, None, None)
        if not self._ring:
            raise MapError(source.name, "mapping", ctypes.get_errno())
        self._closer = weakref.finalize(self, _library().ring_buffer__free, self._ring)

    def close(self) -> None:
        """Unmap it; further calls do nothing."""
        self._closer()

    def read(self) -> list[bytes]:
        """The oldest records as the kernel wrote them, up to BUDGET; empty if there are none."""
        records = self._records = []
        result = _library().ring_buffer__consume(self._ring)
        if result < 0 and len(records) < BUDGET:
            raise MapError(self._source.name, "reading", -result)
        return records

    def _add(self, _: object, data: int, size: int) -> int:
        self._records.append(ctypes.string_at(data, size))
        return 0 if len(self._records) < BUDGET else -1


@cache
def _library() -> Any:
    """libbpf.so.1, called without releasing the GIL: it calls back for each record."""
    try:
        library = ctypes.PyDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise ProbeError("libbpf.so.1 not found: install the package libbpf1 or libbpf") from error
    library.ring_buffer__new.restype = ctypes.c_void_p
    library.ring_buffer__new.argtypes = [ctypes.c_int, _Take, ctypes.c_void_p, ctypes.c_void_p]
    library.ring_buffer__consume.argtypes = [ctypes.c_void_p]
    library.ring_buffer__free.argtypes = [ctypes.c_void_p]
    library.ring_buffer__free.restype = None
    return library

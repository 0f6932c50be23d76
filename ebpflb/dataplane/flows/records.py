# SPDX-License-Identifier: Apache-2.0
"""Flow records: read from lb_flows, a ring buffer of the kernel, and decoded.

Most records are only glanced at (`brief()`); a record is decoded when a query needs it.
"""

import ctypes
import weakref
from collections.abc import Mapping
from enum import IntEnum
from functools import cache, lru_cache
from sys import byteorder
from typing import Any, NamedTuple

from ebpflb.config.moment import rfc3339_ns
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
from ebpflb.model.address import Address, Family, Protocol, family_of, format_address
from ebpflb.model.endpoint import Endpoint
from ebpflb.model.flow import (
    LONGEST_NAME,
    LONGEST_POD,
    Directions,
    Flow,
    FlowBackend,
    FlowClient,
    FlowFrontend,
    FlowService,
    Policy,
    flow_id,
    frontend_type,
    verdict_of,
)
from ebpflb.model.pod import NOBODY, NamedPod
from ebpflb.model.service import Service, ServicePort, ServicePortName, TrafficPolicy
from ebpflb.words.connections import END, START

_RECORD = packed_format(LbFlowRecord)
_BRIEF = packed_format(LbFlowRecord, "event", "proto", "client", "backend_addr", "service")
_CLIENT = packed_format(LbFlowRecord, "path", "client", "client_port")
_LATENCY = packed_format(LbFlowRecord, "event", "path", "proto", "time", "started", "rtt")
_TIME = packed_format(LbFlowRecord, "time")
_CLIENT_AT = LbFlowRecord.client.offset
# Offset of the family in a client that stands for a namespace, before the cookie.
_FAMILY = 7
_FAMILIES = frozenset(Family)
# Plain ints and strings: enums are ten times as slow.
_INTERNAL = int(DescFlag.LB_DESC_INTERNAL_LOCAL)
_EXTERNAL = int(DescFlag.LB_DESC_EXTERNAL_LOCAL)
_SNAT, _HAIRPIN = int(CtFlag.LB_CT_SNAT), int(CtFlag.LB_CT_HAIRPIN)
_START, _END = int(FlowEvent.LB_FLOW_START), int(FlowEvent.LB_FLOW_END)
_SOCKET, _TCP = int(FlowPath.LB_PATH_SOCKET), int(Protocol.TCP)
_LOCAL, _CLUSTER = str(TrafficPolicy.LOCAL), str(TrafficPolicy.CLUSTER)
_SECOND = 1_000_000_000
_MICROSECONDS = 1_000_000
# The longest that the coarse clock takes, which tells times in records.
_TICK = _SECOND // 100


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


class StoredFlow(NamedTuple):
    """A record as the kernel wrote it, and the names of its objects at that time.

    since_1970: CLOCK_REALTIME minus CLOCK_MONOTONIC, in ns.
    """

    record: bytes
    since_1970: int
    port: ServicePortName | None = None
    service: Service | None = None
    endpoint: Endpoint | None = None
    client: NamedPod = NOBODY
    backend: NamedPod = NOBODY

    @property
    def time(self) -> int:
        """Nanoseconds since 1970."""
        (at,) = _TIME.unpack_from(self.record)
        return int(at) + self.since_1970


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
    serial: int
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
    return Brief(_EVENTS[event], protocol, Address(client), Address(backend), service)


def latency(record: bytes) -> tuple[str, float] | None:
    """The event and the seconds that a readable record has measured: of TCP at the socket.

    START: from the SYN to the backend's answer, END: the smoothed round trip time. The first is
    measured as a round trip time, in microseconds, if the SYN was not repeated.
    """
    event, path, protocol, time, started, rtt = _LATENCY.unpack_from(record)
    if (path, protocol) != (_SOCKET, _TCP):
        return None
    if event == _START:
        return START, max(rtt / _MICROSECONDS, (time - started - _TICK) / _SECOND, 0.0)
    return (END, rtt / _MICROSECONDS) if event == _END and rtt else None


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


def decode(number: int, stored: StoredFlow, node: str) -> Flow:
    """The flow of a readable record. `number`: in the agent's history; `node`: this one."""
    found = _Record._make(_RECORD.unpack(stored.record))
    is_end, at_socket = found.event == _END, found.path == _SOCKET
    # UDP at the socket has no counters, and no start time.
    is_counted = is_end and bool(found.original_packets or found.reply_packets)
    event, protocol = _EVENTS[found.event], _PROTOCOLS[found.proto]
    ended = _ENDS[found.end] if is_end else ""
    family = family_of(Address(found.frontend))
    port = _service_port(stored, family)
    return Flow(
        time=rfc3339_ns(stored.time),
        event=event,
        verdict=verdict_of(event, ended, protocol),
        reason=_REASONS[found.reason],
        ended=ended,
        protocol=protocol,
        family=_FAMILY_TEXTS[family],
        path=_PATHS[found.path],
        client=_client(found, stored.client),
        frontend=_frontend(found, port),
        service=_service(stored.port),
        backend=_backend(found, stored, node),
        source=_SOURCES.get(found.source, ""),
        policy=_policy(found, port),
        snat=bool(found.flow_flags & _SNAT),
        hairpin=bool(found.flow_flags & _HAIRPIN),
        seconds=max(found.time - found.started, 0) / _SECOND if is_end and found.started else None,
        bytes=_directions(found.original_bytes, found.reply_bytes) if is_counted else None,
        packets=_directions(found.original_packets, found.reply_packets) if is_counted else None,
        rtt_seconds=found.rtt / _MICROSECONDS if found.rtt else None,
        retransmits=found.retransmits if is_counted and at_socket else None,
        seq=number,
        id=flow_id(stored.time, number),
    )


def _service_port(stored: StoredFlow, family: Family) -> ServicePort | None:
    for port in stored.service.ports if stored.service else ():
        if port.name == stored.port and port.family is family:
            return port
    return None


def _client(record: _Record, pod: NamedPod) -> FlowClient | None:
    if not any(record.client):
        return None
    return FlowClient(
        address=_address(Address(record.client)),
        port=int.from_bytes(record.client_port, "big"),
        pod=pod.pod[:LONGEST_POD],
        workload=pod.workload[:LONGEST_POD],
    )


def _frontend(record: _Record, known: ServicePort | None) -> FlowFrontend:
    address, port = Address(record.frontend), int.from_bytes(record.frontend_port, "big")
    kind = frontend_type(known, address, port) if known else None
    return FlowFrontend(address=_address(address), port=port, type=str(kind or ""))


def _service(port: ServicePortName | None) -> FlowService | None:
    return port and FlowService(namespace=port.namespace, name=port.service, port=port.port)


def _backend(record: _Record, stored: StoredFlow, node: str) -> FlowBackend | None:
    if not any(record.backend_port):
        return None
    endpoint = stored.endpoint
    pod = (endpoint and endpoint.pod) or stored.backend.pod
    found = FlowBackend(
        address=_address(Address(record.backend_addr)),
        port=int.from_bytes(record.backend_port, "big"),
        pod=pod[:LONGEST_POD],
        workload=stored.backend.workload[:LONGEST_POD] if pod == stored.backend.pod else "",
    )
    if endpoint:
        found.node = (endpoint.node_name or "")[:LONGEST_NAME]
        found.zone = endpoint.zone[:LONGEST_NAME]
        found.local = endpoint.node_name == node
    return found


def _policy(record: _Record, port: ServicePort | None) -> Policy | None:
    if not record.service:
        return None
    return Policy(
        internal=_LOCAL if record.desc_flags & _INTERNAL else _CLUSTER,
        external=_LOCAL if record.desc_flags & _EXTERNAL else _CLUSTER,
        affinity_timeout=port.affinity_timeout if port else 0,
    )


def _directions(original: int, reply: int) -> Directions:
    return Directions(original=original, reply=reply)


def _words(kind: type[IntEnum]) -> dict[int, str]:
    return {int(member): word(member) for member in kind}


def _of_bytes(words: Mapping[int, str]) -> list[str]:
    """The word for each value of a byte; the number, if there is none."""
    return [words.get(value, str(value)) for value in range(256)]


_EVENTS = _of_bytes(_words(FlowEvent))
_PATHS = _of_bytes(_words(FlowPath))
_SOURCES = _words(FlowSource)
_ENDS = _of_bytes(_words(FlowEnd))
_REASONS = _of_bytes({0: "", **_words(DropReason)})
_PROTOCOLS = _of_bytes({int(protocol): protocol.name for protocol in Protocol})
_FAMILY_TEXTS = {family: family.text for family in Family}
# Of the same few, most of the time.
_address = lru_cache(4096)(format_address)


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

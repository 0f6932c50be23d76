# SPDX-License-Identifier: Apache-2.0
"""Plain tuples for those structs of bpf/types.h that are read and written by the thousand.

Packing uses `struct`, ten times as fast as the ctypes mirrors in structs.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from errno import ENAMETOOLONG
from sys import byteorder, intern
from typing import NamedTuple, Self

from ebpflb.dataplane.layout import enums, structs
from ebpflb.dataplane.layout.structs import packed_format
from ebpflb.errors import MapError
from ebpflb.model.address import Address, Protocol
from ebpflb.model.ejection import EjectionState
from ebpflb.model.extensions.limits import NO_LIMITS, Limits, OpenLimit, rate_limit_of
from ebpflb.model.extensions.vips import Unserved
from ebpflb.model.plan import Backend, Choice, Frontend, FrontendKey, FrontendType, IfEmpty
from ebpflb.model.service import ServicePortName, TrafficPolicy
from ebpflb.model.source_ranges import Prefix
from ebpflb.words.backup import BackupUse
from ebpflb.words.scheduler import Scheduler

_SOCKET = packed_format(structs.LbFrontendKey)
_BACKEND = packed_format(
    structs.LbBackend, ("addr", "port", "proto", "pad"), "flags", "weight", "serial", "service"
)
_POD_KEY = packed_format(structs.LbPodKey, ("addr", "port", "proto", "pad"), "service")
_DESC = packed_format(structs.LbDesc)
_ADDR_STATE = packed_format(structs.LbAddrState)
_NAME = packed_format(structs.LbName)
_NAME_LENGTH = 63
_LATENCY = packed_format(structs.LbLatency)
_LIMIT = packed_format(structs.LbLimit)
_SUBNET = packed_format(structs.LbSubnet)
# The bits of the ifindex come before those of the address.
_IFINDEX_BITS = 32

LOCAL = int(enums.BackendFlag.LB_BACKEND_LOCAL)
TERMINATING = int(enums.BackendFlag.LB_BACKEND_TERMINATING)
USABLE = int(enums.BackendFlag.LB_BACKEND_USABLE)
SERVING = int(enums.BackendFlag.LB_BACKEND_SERVING)
WATCHED = int(enums.BackendFlag.LB_BACKEND_WATCHED)
EJECTED = int(enums.BackendFlag.LB_BACKEND_EJECTED)
TRIAL = int(enums.BackendFlag.LB_BACKEND_TRIAL)
_EJECTION_FLAGS: Mapping[EjectionState, int] = {
    EjectionState.UNWATCHED: 0,
    EjectionState.WATCHED: WATCHED,
    EjectionState.TRIAL: WATCHED | TRIAL,
    EjectionState.EJECTED: WATCHED | EJECTED,
}
EJECTION_STATE = WATCHED | EJECTED | TRIAL

_BACKUP_FLAGS: Mapping[BackupUse, int] = {
    BackupUse.NONE: 0,
    BackupUse.SPILL: int(enums.DescFlag.LB_DESC_SPILLS),
    BackupUse.ONLY: int(enums.DescFlag.LB_DESC_ON_BACKUP),
}
_ANY_BACKUP = int(enums.DescFlag.LB_DESC_SPILLS | enums.DescFlag.LB_DESC_ON_BACKUP)
_BACKUP_USES = {flags: use for use, flags in _BACKUP_FLAGS.items()}

_TYPES = enums.codes(FrontendType, enums.FrontendTypeCode)
FRONTEND_TYPES: Mapping[int, FrontendType] = {number: kind for kind, number in _TYPES.items()}
_IF_EMPTY = enums.codes(IfEmpty, enums.IfEmptyCode)
IF_EMPTY: Mapping[int, IfEmpty] = {number: kind for kind, number in _IF_EMPTY.items()}
_UNSERVED = {each: enums.DescFlag[f"LB_DESC_UNSERVED_{each.name}"] for each in Unserved}
_SCHEDULERS = enums.codes(Scheduler, enums.SchedulerCode)
SCHEDULERS: Mapping[int, Scheduler] = {number: kind for kind, number in _SCHEDULERS.items()}


class SocketRecord(NamedTuple):
    """struct lb_frontend_key, which struct lb_backend also starts with."""

    address: Address
    port: int
    protocol: int

    def pack(self) -> bytes:
        """The 20 bytes in the map."""
        return _SOCKET.pack(*self)

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """From the first 20 bytes of `value`."""
        return cls(*_SOCKET.unpack_from(value))


class Subnet(NamedTuple):
    """struct lb_subnet: next hops on one device."""

    ifindex: int
    next_hops: Prefix

    def pack(self) -> bytes:
        """The key in the map."""
        address, length = self.next_hops
        return _SUBNET.pack(_IFINDEX_BITS + length, self.ifindex, address)

    @classmethod
    def unpack(cls, key: bytes) -> Self:
        """The reverse of `pack()`."""
        length, ifindex, address = _SUBNET.unpack(key)
        return cls(ifindex, Prefix(Address(address), length - _IFINDEX_BITS))


def frontend_key_of(socket: bytes) -> FrontendKey:
    """From a key in lb_frontends, or from a backend: its own address."""
    address, port, protocol = SocketRecord.unpack(socket)
    return FrontendKey(address, port, Protocol(protocol))


class BackendFields(NamedTuple):
    """What changes of a struct lb_backend while it belongs to one endpoint."""

    flags: int
    weight: int = 0


class BackendRecord(NamedTuple):
    """struct lb_backend; `socket` is packed."""

    socket: bytes
    flags: int
    weight: int
    serial: int
    service: int

    def without(self, flags: int) -> Self:
        """The same without these flags."""
        return self._replace(flags=self.flags & ~flags)

    def pack(self) -> bytes:
        """The 32 bytes in the map."""
        return _BACKEND.pack(*self)

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """The reverse of `pack()`."""
        return cls(*_BACKEND.unpack(value))

    @staticmethod
    def each(values: bytes) -> Iterator[tuple[bytes, int, int, int, int]]:
        """The fields of many concatenated records: a tuple costs a third of a record."""
        return _BACKEND.iter_unpack(values)


def pack_backend(socket: bytes, state: BackendFields, serial: int, service: int) -> bytes:
    """Like BackendRecord(...).pack(), without creating the record."""
    return _BACKEND.pack(socket, *state, serial, service)


def pack_pod_key(socket: bytes, service: int) -> bytes:
    """A key in lb_pods_here."""
    return _POD_KEY.pack(socket, service)


def service_of_pod(key: bytes) -> int:
    """The Service id in a key in lb_pods_here."""
    return int(_POD_KEY.unpack(key)[-1])


def serial_of(backend: bytes) -> int:
    """The serial of a packed BackendRecord, without unpacking it."""
    return int(_BACKEND.unpack(backend)[3])


def state_of(backend: bytes) -> BackendFields:
    """Of a packed BackendRecord, without unpacking it."""
    return BackendFields(*_BACKEND.unpack(backend)[1:3])


def pack_socket(address: Address, port: int, protocol: int) -> bytes:
    """Like SocketRecord(...).pack(), without creating the tuple."""
    return _SOCKET.pack(address, port, protocol)


def pack_index(index: int) -> bytes:
    """A key in an array map."""
    return index.to_bytes(4, byteorder)


def pack_open(count: int) -> bytes:
    """A value in lb_open."""
    return count.to_bytes(8, byteorder, signed=True)


def mean_latency(values: Iterable[bytes]) -> bytes:
    """A value in lb_latencies between these; zero, which is unknown, without any."""
    found = [_LATENCY.unpack(each) for each in values]
    known = [each for each in found if each[0]]
    if not known:
        return _LATENCY.pack(0, 0)
    return _LATENCY.pack(sum(average for average, _ in known) // len(known), max(known)[1])


def unpack_open(value: bytes) -> int:
    """The reverse of `pack_open()`; a count may be a little below zero."""
    return int.from_bytes(value, byteorder, signed=True)


class AddrRecord(NamedTuple):
    """struct lb_addr_state."""

    flags: int
    address: Address

    def pack(self) -> bytes:
        """The 24 bytes in the map."""
        return _ADDR_STATE.pack(*self)

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """The reverse of `pack()`."""
        return cls(*_ADDR_STATE.unpack(value))


class DescRecord(NamedTuple):
    """struct lb_desc; `frontend` is packed, the ranges are spread out."""

    frontend: bytes
    service: int
    local_base: int
    local_count: int
    local_if_empty: int
    local_table: int
    others_base: int
    others_count: int
    others_if_empty: int
    others_table: int
    type: int
    flags: int
    scheduler: int
    affinity_timeout: int
    source_ranges: int

    @property
    def address(self) -> Address:
        """The frontend's address."""
        return Address(self.frontend[:16])

    @property
    def port(self) -> int:
        """The frontend's port, in host byte order."""
        return int.from_bytes(self.frontend[16:18], "big")

    @property
    def protocol(self) -> int:
        """The frontend's protocol."""
        return self.frontend[18]

    def pack(self) -> bytes:
        """The 64 bytes in the map."""
        return _DESC.pack(*self)

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """The reverse of `pack()`."""
        return cls(*_DESC.unpack(value))


def socket_of(frontend: Frontend) -> SocketRecord:
    """The key of a frontend in lb_frontends."""
    return SocketRecord(*frontend.key)


def backend_flags(backend: Backend) -> int:
    """enum lb_backend_flag of a backend, as far as its endpoint determines it."""
    where = LOCAL * backend.local | TERMINATING * backend.terminating
    return where | _EJECTION_FLAGS[backend.ejection]


def ejection_of(flags: int) -> EjectionState:
    """For a backend with these flags, if it serves."""
    if not flags & WATCHED:
        return EjectionState.UNWATCHED
    if flags & EJECTED:
        return EjectionState.EJECTED
    return EjectionState.TRIAL if flags & TRIAL else EjectionState.WATCHED


def pack_failures(in_a_row: int) -> bytes:
    """struct lb_failures for a backend that has not been tried."""
    return bytes(structs.LbFailures(in_a_row=in_a_row))


def desc_type(frontend: Frontend) -> int:
    """enum lb_frontend_type."""
    return _TYPES[frontend.type]


def desc_flags(frontend: Frontend) -> int:
    """enum lb_desc_flag."""
    internal = frontend.internal_policy is TrafficPolicy.LOCAL
    external = frontend.external_policy is TrafficPolicy.LOCAL
    flags = enums.DescFlag.LB_DESC_INTERNAL_LOCAL * internal
    flags |= enums.DescFlag.LB_DESC_EXTERNAL_LOCAL * external
    flags |= enums.DescFlag.LB_DESC_MASQUERADE * frontend.masquerade
    flags |= enums.DescFlag.LB_DESC_TIMED * frontend.scheduler.measures_latency
    counts_open = frontend.scheduler.counts_open or frontend.counts_open
    flags |= enums.DescFlag.LB_DESC_COUNTS_OPEN * counts_open
    flags |= enums.DescFlag.LB_DESC_DSR * frontend.dsr
    flags |= enums.DescFlag(_BACKUP_FLAGS[frontend.backup])
    flags |= enums.DescFlag.LB_DESC_ECHO * frontend.answers_pings
    if frontend.unserved:
        flags |= _UNSERVED[frontend.unserved]
    flags |= enums.DescFlag.LB_DESC_RETRY * frontend.retry
    flags |= enums.DescFlag.LB_DESC_LIMITS * (frontend.limits != NO_LIMITS)
    return int(flags | enums.DescFlag.LB_DESC_SOURCE_RANGES * bool(frontend.allowed_sources))


def backup_use(desc_flags: int) -> BackupUse:
    """The reverse of desc_flags()."""
    return _BACKUP_USES.get(desc_flags & _ANY_BACKUP, BackupUse.ONLY)


def unserved_of(desc: DescRecord) -> Unserved | None:
    """The reverse of `desc_flags()`."""
    return next((each for each, flag in _UNSERVED.items() if desc.flags & flag), None)


def pack_limits(limits: Limits) -> bytes:
    """struct lb_limit; empty without any."""
    if limits == NO_LIMITS:
        return b""
    endpoint, client, new = limits
    flags = enums.LimitFlag.LB_LIMIT_OPEN_DROPS * bool(endpoint and endpoint.drops)
    flags |= enums.LimitFlag.LB_LIMIT_CLIENT_OPEN_DROPS * bool(client and client.drops)
    flags |= enums.LimitFlag.LB_LIMIT_CLIENT_NEW_DROPS * bool(new and new.drops)
    interval, ahead = (new.interval, new.ahead) if new else (0, 0)
    most = endpoint.most if endpoint else 0, client.most if client else 0
    return _LIMIT.pack(interval, ahead, *most, int(flags))


def unpack_limits(value: bytes | None) -> Limits:
    """The reverse of `pack_limits()`; None: without any."""
    if not value:
        return NO_LIMITS
    interval, ahead, endpoint, client, flags = _LIMIT.unpack(value)
    drops = [bool(flags & each) for each in enums.LimitFlag]
    return Limits(
        OpenLimit(endpoint, drops[0]) if endpoint else None,
        OpenLimit(client, drops[1]) if client else None,
        rate_limit_of(interval, ahead, drops=drops[2]) if interval else None,
    )


def scheduler_code(frontend: Frontend) -> int:
    """enum lb_scheduler."""
    return _SCHEDULERS[frontend.scheduler]


def if_empty(choice: Choice) -> int:
    """enum lb_if_empty."""
    return _IF_EMPTY[choice.if_empty]


def pack_name(name: ServicePortName) -> bytes:
    """struct lb_name. MapError(ENAMETOOLONG) for names that no API server would accept."""
    parts = [part.encode() for part in (name.namespace, name.service, name.port)]
    if max(map(len, parts)) > _NAME_LENGTH:
        raise MapError("lb_names", f"update of {name}", ENAMETOOLONG)
    return _NAME.pack(*parts)


def unpack_name(value: bytes, protocol: int) -> ServicePortName:
    """The reverse of `pack_name()`; the protocol comes from the frontends.

    Reuses the source's strings, if it has interned them, too.
    """
    parts = (part.rstrip(b"\0").decode() for part in _NAME.unpack(value))
    namespace, service, port = map(intern, parts)
    return ServicePortName(namespace, service, port, Protocol(protocol))

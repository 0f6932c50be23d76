# SPDX-License-Identifier: Apache-2.0
"""The structs of bpf/types.h that are written and read by the thousand, as plain tuples.

Packing goes through `struct`, ten times as fast as through the ctypes mirrors of structs.py.
"""

from collections.abc import Iterator, Mapping
from errno import ENAMETOOLONG
from typing import NamedTuple, Self

from ebpflb.dataplane.layout import enums, structs
from ebpflb.dataplane.layout.structs import packed_format
from ebpflb.errors import MapError
from ebpflb.model.address import Address, Protocol
from ebpflb.model.plan import Backend, Choice, Frontend, FrontendKey, FrontendType, IfEmpty
from ebpflb.model.service import ServicePortName, TrafficPolicy

_SOCKET = packed_format(structs.LbFrontendKey)
_BACKEND = packed_format(
    structs.LbBackend, ("addr", "port", "proto", "pad"), "flags", "generation", "service"
)
_DESC = packed_format(structs.LbDesc)
_ADDR_STATE = packed_format(structs.LbAddrState)
_NAME = packed_format(structs.LbName)
_NAME_LENGTH = 63

_LOCAL = int(enums.BackendFlag.LB_BACKEND_LOCAL)
_TERMINATING = int(enums.BackendFlag.LB_BACKEND_TERMINATING)
USABLE = int(enums.BackendFlag.LB_BACKEND_USABLE)
SERVING = int(enums.BackendFlag.LB_BACKEND_SERVING)

_TYPES: Mapping[FrontendType, int] = {
    FrontendType.CLUSTER_IP: enums.FrontendTypeCode.LB_CLUSTER_IP,
    FrontendType.NODE_PORT: enums.FrontendTypeCode.LB_NODE_PORT,
    FrontendType.EXTERNAL_IP: enums.FrontendTypeCode.LB_EXTERNAL_IP,
    FrontendType.LOAD_BALANCER: enums.FrontendTypeCode.LB_LOAD_BALANCER,
}
FRONTEND_TYPES: Mapping[int, FrontendType] = {number: kind for kind, number in _TYPES.items()}
_IF_EMPTY: Mapping[IfEmpty, int] = {
    IfEmpty.REFUSE: enums.IfEmptyCode.LB_EMPTY_REFUSE,
    IfEmpty.DROP: enums.IfEmptyCode.LB_EMPTY_DROP,
}


class SocketAddress(NamedTuple):
    """struct lb_frontend_key, which is also how struct lb_backend begins."""

    address: Address
    port: int
    protocol: int

    def pack(self) -> bytes:
        """The 20 bytes in the map."""
        return _SOCKET.pack(*self)

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """Of the first 20 bytes of `value`."""
        return cls(*_SOCKET.unpack_from(value))


def frontend_key_of(socket: bytes) -> FrontendKey:
    """Of a key in lb_frontends, or of a backend its own address."""
    address, port, protocol = SocketAddress.unpack(socket)
    return FrontendKey(address, port, Protocol(protocol))


class BackendRecord(NamedTuple):
    """struct lb_backend; `socket` is packed."""

    socket: bytes
    flags: int
    generation: int
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
    def each(values: bytes) -> Iterator[tuple[bytes, int, int, int]]:
        """The fields of many, one behind the other: a tuple costs a third of a record."""
        return _BACKEND.iter_unpack(values)


def pack_backend(socket: bytes, flags: int, generation: int, service: int) -> bytes:
    """What a BackendRecord of that packs to, without one."""
    return _BACKEND.pack(socket, flags, generation, service)


def generation_of(backend: bytes) -> int:
    """That of a packed BackendRecord, without one."""
    return int(_BACKEND.unpack(backend)[2])


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
    others_base: int
    others_count: int
    others_if_empty: int
    type: int
    flags: int
    affinity_timeout: int
    source_ranges: int

    @property
    def address(self) -> Address:
        """That of the frontend."""
        return Address(self.frontend[:16])

    @property
    def port(self) -> int:
        """That of the frontend, host byte order."""
        return int.from_bytes(self.frontend[16:18], "big")

    def pack(self) -> bytes:
        """The 64 bytes in the map."""
        return _DESC.pack(*self)

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """The reverse of `pack()`."""
        return cls(*_DESC.unpack(value))


def socket_of(frontend: Frontend) -> SocketAddress:
    """The key of a frontend in lb_frontends."""
    return SocketAddress(*frontend.key)


def backend_flags(backend: Backend) -> int:
    """enum lb_backend_flag of a backend, as far as its endpoint tells."""
    return _LOCAL * backend.local | _TERMINATING * backend.terminating


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
    return int(flags | enums.DescFlag.LB_DESC_SOURCE_RANGES * bool(frontend.allowed_sources))


def if_empty(choice: Choice) -> int:
    """enum lb_if_empty."""
    return _IF_EMPTY[choice.if_empty]


def pack_name(name: ServicePortName) -> bytes:
    """struct lb_name. MapError(ENAMETOOLONG) for what no API server would accept."""
    parts = [part.encode() for part in (name.namespace, name.service, name.port)]
    if max(map(len, parts)) > _NAME_LENGTH:
        raise MapError("lb_names", f"update of {name}", ENAMETOOLONG)
    return _NAME.pack(*parts)


def unpack_name(value: bytes, protocol: int) -> ServicePortName:
    """The reverse of `pack_name()`; the protocol stands in the frontends."""
    namespace, service, port = (part.rstrip(b"\0").decode() for part in _NAME.unpack(value))
    return ServicePortName(namespace, service, port, Protocol(protocol))

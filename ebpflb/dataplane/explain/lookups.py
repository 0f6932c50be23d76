# SPDX-License-Identifier: Apache-2.0
"""The map lookups of the BPF programs, one method each.

Each method has the name and the contract of its function in bpf/, without the prefix lb_.
"""

import time
from collections.abc import Iterable, Sequence
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.explain.flow_hash import client_hash
from ebpflb.dataplane.flows.client_uses import client_key
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.kernel.sock_diag import SockDiag
from ebpflb.dataplane.layout.capacity import UPLINKS
from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    DescFlag,
    DeviceFlag,
    DeviceKind,
    Hook,
    SettingFlag,
)
from ebpflb.dataplane.layout.records import (
    TRIAL,
    USABLE,
    AddrRecord,
    BackendRecord,
    DescRecord,
    SocketRecord,
    Subnet,
    frontend_key_of,
    pack_index,
    unpack_limits,
    unpack_name,
)
from ebpflb.dataplane.layout.structs import (
    LbAddr,
    LbAffinity,
    LbClientKey,
    LbClientUse,
    LbDest,
    LbDevice,
    LbFailures,
    LbServiceNets,
    LbSettings,
    LbUplink,
)
from ebpflb.dataplane.services.addresses import fold
from ebpflb.dataplane.services.open_counts import open_of
from ebpflb.dataplane.services.source_ranges import SourceRanges
from ebpflb.dataplane.services.tables import weights_in
from ebpflb.errors import ProbeError
from ebpflb.model.address import WILDCARD, Address, Family, family_of
from ebpflb.model.extensions.limits import NO_LIMITS, Limits
from ebpflb.model.plan import FrontendKey
from ebpflb.model.service import ServicePortName
from ebpflb.model.source_ranges import Prefixes

_ZERO = bytes(4)
_SECOND = 1_000_000_000
_LOOPBACK = 127


class SlotRange(NamedTuple):
    """struct lb_range."""

    base: int
    length: int
    if_empty: int
    table: int = 0


class IndexedBackend(NamedTuple):
    """A backend that a new connection may get, and its index."""

    map_index: int
    record: BackendRecord


class Lookups:
    """The maps of one node. Every method may raise MapError."""

    def __init__(self, maps: MapSet) -> None:
        self.maps = maps
        self.settings = LbSettings.from_buffer_copy(maps["lb_settings"].lookup(_ZERO) or b"")

    def has_setting(self, flag: SettingFlag) -> bool:
        """Whether a flag is set in lb_settings."""
        return bool(self.settings.flags & flag)

    def node_address(self, family: Family) -> Address:
        """The node's primary address; all zero without one."""
        found = self.settings.node4 if family is Family.IPV4 else self.settings.node6
        return Address(bytes(found))

    def addr_flags_of(self, address: Address) -> AddrFlag:
        """The flags of an address; 0 if it is neither a Service address nor one of this node."""
        found = self.addr_flags_in_place(address)
        index = None if found else self.maps["lb_addrs"].lookup(address)
        value = self.maps["lb_addr_flags"].lookup(index) if index else None
        return AddrFlag(AddrRecord.unpack(value).flags) if value else found

    def addr_flags_in_place(self, address: Address) -> AddrFlag:
        """The same without lb_addrs; 0 if another address has the same index."""
        known = self._dest(fold(address)).known
        value = self.maps["lb_addr_flags"].lookup(pack_index(known - 1)) if known else None
        state = AddrRecord.unpack(value) if value else None
        return AddrFlag(state.flags if state and state.address == address else 0)

    def is_known(self, address: Address) -> bool:
        """Whether it is in lb_addrs, even if only for existing flows."""
        return self.maps["lb_addrs"].lookup(address) is not None

    def is_cluster_ip_of_node(self, address: Address) -> bool:
        """Whether it is both a ClusterIP and an address of the node (listener.h)."""
        both = AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_NODE
        found = self.filter_flags(address) & both == both
        return found and self.addr_flags_of(address) & both == both

    def has_listener(self, key: FrontendKey) -> bool:
        """Whether a socket of the calling thread's namespace listens on exactly this address.

        Only checks ClusterIPs that the node has. ProbeError.
        """
        if not self.is_cluster_ip_of_node(key.address):
            return False
        try:
            with SockDiag() as diag:
                return (key.address, key.port) in diag.waiting(key.protocol)
        except OSError as error:
            raise ProbeError(f"cannot list sockets: {error}") from error

    def frontend_lookup(self, key: FrontendKey) -> DescRecord | None:
        """The descriptor in force."""
        wanted = SocketRecord(*key).pack()
        index = self.maps["lb_frontends"].lookup(wanted)
        word = self.maps["lb_current"].lookup(index) if index else None
        value = self.maps["lb_descs"].lookup(pack_index(_number(word))) if word else None
        desc = DescRecord.unpack(value) if value else None
        return desc if desc and desc.frontend == wanted else None

    def node_port_lookup(self, key: FrontendKey) -> DescRecord | None:
        """The same port on the wildcard address of the family."""
        return self.frontend_lookup(key._replace(address=WILDCARD[family_of(key.address)]))

    def may_be_request(self, key: FrontendKey) -> bool:
        """Whether lb_dest_filter makes tc look the packet up (filter.h)."""
        flags = self.filter_flags(key.address)
        if flags & (AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_EXTERNAL):
            return True
        at_node = flags & AddrFlag.LB_ADDR_NODE
        return bool(at_node and self._dest(key.port).flags & AddrFlag.LB_ADDR_NODE_PORT)

    def filter_flags(self, address: Address) -> int:
        """The flags in lb_dest_filter for addresses with the same last two bytes."""
        return int(self._dest(int.from_bytes(address[14:], "big")).flags)

    def _dest(self, index: int) -> LbDest:
        return LbDest.from_buffer_copy(self.maps["lb_dest_filter"].lookup(pack_index(index)) or b"")

    def backends(self, slots: SlotRange) -> tuple[IndexedBackend, ...]:
        """The backends of a range, in the order of its slots."""
        found = map(self.backend_at, range(slots.base, slots.base + slots.length))
        return tuple(each for each in found if each)

    def weights(
        self, slots: SlotRange, backends: Iterable[IndexedBackend], *, is_hashed: bool
    ) -> Sequence[int]:
        """How many slots of the range's table each of its backends has; 1 without weights."""
        first = slots.base + slots.length
        table = (
            self.maps["lb_slots"].lookup(pack_index(slot)) or _ZERO
            for slot in range(first, first + slots.table)
        )
        indices = [each.map_index for each in backends]
        return weights_in(b"".join(table), indices, is_hashed=is_hashed)

    def backend_at(self, slot: int) -> IndexedBackend | None:
        """The backend in a slot."""
        index = self.maps["lb_slots"].lookup(pack_index(slot)) or _ZERO
        value = self.maps["lb_backends"].lookup(index)
        return IndexedBackend(_number(index), BackendRecord.unpack(value)) if value else None

    def source_ranges(self, desc: DescRecord) -> Prefixes:
        """The clients that a frontend allows; empty for all."""
        if not desc.flags & DescFlag.LB_DESC_SOURCE_RANGES:
            return ()
        sets = SourceRanges(self.maps["lb_src_ranges"])
        sets.load()
        return sets.prefixes(desc.source_ranges)

    def limits(self, desc: DescRecord) -> Limits:
        """Those of a Service port."""
        if not desc.flags & DescFlag.LB_DESC_LIMITS:
            return NO_LIMITS
        return unpack_limits(self.maps["lb_limits"].lookup(pack_index(desc.service)))

    def client_use(self, desc: DescRecord, client: Address, hook: Hook) -> LbClientUse:
        """What a client has of them; nothing if it is not known."""
        value = self.maps["lb_client_uses"].lookup(client_key(desc.service, client, hook))
        return LbClientUse.from_buffer_copy(value) if value else LbClientUse()

    def open_of(self, backend: int) -> int:
        """Open connections of the backend with this index."""
        return open_of(self.maps, backend)

    def affinity_of(self, desc: DescRecord, client: Address) -> LbAffinity | None:
        """The client's entry, even if it has expired."""
        key = LbClientKey(service=desc.service, client=LbAddr.from_buffer_copy(client))
        value = self.maps["lb_affinity"].lookup(bytes(key))
        return LbAffinity.from_buffer_copy(value) if value else None

    def affinity_recall(
        self, entry: LbAffinity, timeout: int, slots: SlotRange, client_bit: int
    ) -> IndexedBackend | None:
        """The backend of an unexpired entry, if it can still be chosen."""
        if seconds_since(entry.last_used) >= timeout:
            return None
        for each in self.backends(slots):
            same = (each.map_index, each.record.serial) == (entry.backend, entry.serial)
            usable = each.record.flags & USABLE
            if same and usable and self.backend_admits(each, client_bit):
                return each
        return None

    def client_bit(self, desc: DescRecord, client: Address, hook: Hook) -> int:
        """lb_opening_client_bit() at tc."""
        key = client_key(desc.service, client, hook)
        is_known = self.maps["lb_clients"].lookup(key) is not None
        shown = LbClientKey.from_buffer_copy(key).client
        return 1 << (client_hash(Address(bytes(shown))) >> 26) if is_known else 0

    def backend_admits(self, backend: IndexedBackend, client_bit: int) -> bool:
        """Whether a backend accepts a new connection, now: see lb_trial_admits()."""
        if not backend.record.flags & TRIAL:
            return True
        value = self.maps["lb_failures"].lookup(pack_index(backend.map_index))
        counted = LbFailures.from_buffer_copy(value) if value else LbFailures()
        if not counted.in_a_row:
            return True
        is_busy = seconds_since(counted.busy_until) < 0
        return bool(client_bit & ~counted.tried) and not is_busy

    def pod_node(self, pod: Address) -> Address | None:
        """The node that packets for a remote pod are tunneled to."""
        found = self.maps["lb_pod_nodes"].lookup(pod)
        return Address(found) if found else None

    def is_of_cluster(self, client: Address) -> bool:
        """Whether it is another node or one of its known pods (dsr.h)."""
        return any(self.maps[name].lookup(client) for name in ("lb_nodes", "lb_pod_nodes"))

    def device(self, ifindex: int) -> LbDevice | None:
        """A device with ebpflb's programs."""
        value = self.maps["lb_devices"].lookup(pack_index(ifindex))
        return LbDevice.from_buffer_copy(value) if value else None

    def masquerade_source(self, ifindex: int, next_hop: Address) -> Address | None:
        """The SNAT address of a host device; None for others, which lead to pods of this node.

        next_hop: the destination itself if the next hop is link-local.
        """
        value = self.maps["lb_uplinks"].lookup(pack_index(ifindex % UPLINKS))
        uplink = LbUplink.from_buffer_copy(value) if value else None
        found = uplink if uplink and uplink.ifindex == ifindex else self._host_device(ifindex)
        if found is None:
            return None
        if found.flags & DeviceFlag.LB_DEVICE_SUBNETS:
            source = self._masquerade_by_subnet(ifindex, next_hop)
            if source:
                return source
        is_ipv4 = family_of(next_hop) is Family.IPV4
        return Address(bytes(found.snat4 if is_ipv4 else found.snat6))

    def _masquerade_by_subnet(self, ifindex: int, next_hop: Address) -> Address | None:
        found = {}
        for key, source in self.maps["lb_subnets"].items():
            subnet = Subnet.unpack(key)
            if subnet.ifindex == ifindex and subnet.next_hops.covers(next_hop):
                found[subnet.next_hops.length] = Address(source)
        return found[max(found)] if found else None

    def _host_device(self, ifindex: int) -> LbDevice | None:
        found = self.device(ifindex)
        return found if found and found.kind == DeviceKind.LB_DEVICE_HOST else None

    def is_unused(self, address: Address) -> bool:
        """Whether it is inside a ServiceCIDR but not the address of a Service (service_cidr.h)."""
        value = self.maps["lb_service_nets"].lookup(_ZERO)
        if not value or self.addr_flags_of(address):
            return False
        nets = LbServiceNets.from_buffer_copy(value)
        if family_of(address) is Family.IPV4:
            end = int.from_bytes(address[12:], "big")
            return any(each.mask and not (end ^ each.net) & each.mask for each in nets.ipv4)
        whole = int.from_bytes(address, "big")
        return any(
            mask and not (whole ^ int.from_bytes(bytes(each.net), "big")) & mask
            for each in nets.ipv6
            if (mask := int.from_bytes(bytes(each.mask), "big"))
        )

    def name_of(self, desc: DescRecord) -> ServicePortName | None:
        """The Service port of a frontend."""
        value = self.maps["lb_names"].lookup(pack_index(desc.service))
        protocol = desc.protocol
        return unpack_name(value, protocol) if value else None


def is_own_host(address: Address) -> bool:
    """127.0.0.0/8, ::1 and the two wildcards (addr.h)."""
    if family_of(address) is Family.IPV4:
        return address in WILDCARD.values() or address[12] == _LOOPBACK
    return int.from_bytes(address, "big") in (0, 1)


def seconds_since(moment: int) -> float:
    """Seconds since a time in the maps, in nanoseconds of CLOCK_MONOTONIC."""
    return (time.monotonic_ns() - moment) / _SECOND


def backend_key(record: BackendRecord) -> FrontendKey:
    """The address, port and protocol of a backend."""
    return frontend_key_of(record.socket)


def _number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", byteorder)

# SPDX-License-Identifier: Apache-2.0
"""The real programs and maps: a test fills the maps, test-runs a program on a frame, and inspects
the resulting frame and the maps.
"""

import time
from array import array
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from scapy.layers.l2 import Ether
from scapy.packet import Packet

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES
from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.capacity import MAPS, UPLINKS
from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    BackendFlag,
    CtState,
    DescFlag,
    DeviceFlag,
    DropReason,
    FrontendTypeCode,
    IfEmptyCode,
    SchedulerCode,
    XdpResult,
)
from ebpflb.dataplane.layout.structs import (
    LbAddr,
    LbAddrState,
    LbBackend,
    LbConntrack,
    LbCounts,
    LbDesc,
    LbDest,
    LbDevice,
    LbFrontendKey,
    LbPortRange,
    LbRange,
    LbSettings,
    LbTuple,
    LbUplink,
    Struct,
)
from ebpflb.dataplane.services.addresses import fold
from ebpflb.dataplane.view.counts import read_drops, sum_drops
from ebpflb.model.address import Protocol
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.numbers import number, u32, u64
from tests.bpf.harness.packets import NODE_MAC, End, assert_same, mapped
from tests.bpf.harness.programs import prog_test_run

# Large, and unused elements do no harm.
FILTERS = {"lb_peer_filter", "lb_reply_filter", "lb_flow_filter", "lb_dest_filter"}
RING = "lb_flows"
SNAT_PORTS = ((1024, 29999), (61000, 65535))
SERVICE = 7

_XDP_RUNS = 5
_LONG = 1000 * 10**9
_Struct = TypeVar("_Struct", bound=Struct)
_CONTEXT_BYTES = 192
_IFINDEX_AT, _GSO_SIZE_AT = 40, 176


def skb_context(ifindex: int, gso_size: int = 0) -> bytes:
    """The struct __sk_buff of a frame from this device, for a test run at tc."""
    context = bytearray(_CONTEXT_BYTES)
    context[_IFINDEX_AT : _IFINDEX_AT + 4] = u32(ifindex)
    context[_GSO_SIZE_AT : _GSO_SIZE_AT + 4] = u32(gso_size)
    return bytes(context)


class Verdict(IntEnum):
    """TC_ACT_*: continue with the next program, drop, or redirect as a helper has set up."""

    PASS = 0xFFFFFFFF
    DROP = 2
    REDIRECT = 7


class XdpAction(IntEnum):
    """enum xdp_action, the values that the programs return."""

    PASS = 2
    TX = 3
    REDIRECT = 4


class Result(NamedTuple):
    """A program's return value, and the resulting frame."""

    verdict: Verdict
    packet: Packet


class Datapath:
    """Maps to fill and programs to run. Indices are allocated from 1 on."""

    def __init__(self, loaded: Loaded) -> None:
        self.maps = loaded.maps
        self._programs = loaded.programs
        self._restart()

    def reset(self) -> None:
        """Empty every map except the filters, then write the settings."""
        for name in self.maps.keys() - FILTERS - {RING}:
            self.clear(name)
        self._restart()
        self.settings()

    def clear(self, name: str) -> None:
        """Delete every element; those of an array become zero."""
        each = self.maps[name]
        # A test's own maps are arrays.
        if name in MAPS and not MAPS[name].is_array:
            each.delete_batch([key for key, _ in each.items()])
        elif any(chunk.values.strip(b"\0") for chunk in each.chunks()):
            zero = bytes(each.value_size)
            each.update_batch([(u32(index), zero) for index in range(each.max_entries)])

    def _restart(self) -> None:
        self._next = dict.fromkeys(("address", "frontend", "desc", "slot", "backend"), 1)

    # Writing

    def settings(self, snat_ports: Sequence[tuple[int, int]] = SNAT_PORTS, **changes: Any) -> None:
        """lb_settings: the defaults of the tests, with changes."""
        fields: dict[str, Any] = {
            "tcp_opening_timeout": 60,
            "tcp_established_timeout": 3600,
            "tcp_closed_timeout": 60,
            "tcp_close_wait_timeout": 600,
            "udp_timeout": 120,
            "udp_stream_timeout": 120,
            "node4": addr("192.0.2.1"),
            "node6": addr("2001:db8:2::1"),
        }
        value = LbSettings(**(fields | changes))
        value.snat_ports[:] = [LbPortRange(*ports) for ports in snat_ports]
        self.maps["lb_settings"].update(bytes(4), bytes(value))

    def address(self, text: str, flags: AddrFlag | int) -> None:
        """Make an address a Service address."""
        index = self._take("address")
        state = LbAddrState(flags=int(flags), addr=addr(text))
        self.maps["lb_addr_flags"].update(u32(index), bytes(state))
        self.maps["lb_addrs"].update(mapped(text), u32(index))
        self._let_pass(_last_bits(text), flags & ~AddrFlag.LB_ADDR_NODE_PORT)
        self._let_pass(fold(mapped(text)), known=index + 1)

    def _let_pass(self, place: int, flags: int = 0, known: int = 0) -> None:
        """Add to an element of lb_dest_filter."""
        found = LbDest.from_buffer_copy(self.maps["lb_dest_filter"].lookup(u32(place)) or b"")
        found.flags |= flags
        found.known = known or found.known
        self.maps["lb_dest_filter"].update(u32(place), bytes(found))

    def device(
        self, ifindex: int, snat4: str = "", snat6: str = "", mtu: int = 0, *, xdp: bool = False
    ) -> None:
        """A host device and what it masquerades with."""
        flags = DeviceFlag.LB_DEVICE_ETHERNET | (DeviceFlag.LB_DEVICE_XDP_SENDS if xdp else 0)
        value = LbDevice(kind=1, flags=flags, mtu=mtu)
        value.snat4 = addr(snat4) if snat4 else LbAddr()
        value.snat6 = addr(snat6) if snat6 else LbAddr()
        value.mac[:] = bytes.fromhex(NODE_MAC.replace(":", ""))
        self.maps["lb_devices"].update(u32(ifindex), bytes(value))
        uplink = LbUplink(ifindex, flags, value.snat4, value.snat6, value.mac)
        self.maps["lb_uplinks"].update(u32(ifindex % UPLINKS), bytes(uplink))

    def backend(
        self, end: End, proto: Protocol, *, flags: BackendFlag | int = 0, serial: int = 1
    ) -> int:
        """A usable backend; returns its index. `flags`: additional ones."""
        index = self._take("backend")
        self.write_backend(index, end, proto, flags=flags, serial=serial)
        return index

    def write_backend(
        self, index: int, end: End, proto: Protocol, *, flags: int = 0, serial: int = 1
    ) -> None:
        """Give an index to an endpoint, which is usable."""
        value = LbBackend(
            addr=addr(end.address),
            port=end.port,
            proto=proto,
            flags=flags | BackendFlag.LB_BACKEND_USABLE,
            serial=serial,
            service=SERVICE,
        )
        self.maps["lb_backends"].update(u32(index), bytes(value))

    def retire_backend(self, index: int, *, serving: bool = False) -> None:
        """Clear LB_BACKEND_USABLE: no range names it any more. `serving`: set
        LB_BACKEND_SERVING.
        """
        value = self.backend_at(index)
        value.flags &= ~(BackendFlag.LB_BACKEND_USABLE | BackendFlag.LB_BACKEND_SERVING)
        value.flags |= BackendFlag.LB_BACKEND_SERVING * serving
        self.maps["lb_backends"].update(u32(index), bytes(value))

    def replace_backends(self, old: int, new: int, *, serving: bool = False) -> None:
        """Retire a backend and have every slot name another one."""
        self.retire_backend(old, serving=serving)
        for slot in range(1, self._next["slot"]):
            self.maps["lb_slots"].update(u32(slot), u32(new))

    def frontend(
        self,
        end: End,
        proto: Protocol,
        *,
        local: Sequence[int] = (),
        others: Sequence[int] = (),
        if_empty: IfEmptyCode = IfEmptyCode.LB_EMPTY_REFUSE,
        kind: FrontendTypeCode = FrontendTypeCode.LB_CLUSTER_IP,
    ) -> int:
        """A frontend with backends for local sources and for others; returns its index."""
        index = self._take("frontend")
        if kind is FrontendTypeCode.LB_NODE_PORT:
            self._let_pass(end.port, AddrFlag.LB_ADDR_NODE_PORT)
        elif kind is FrontendTypeCode.LB_CLUSTER_IP:
            self._let_pass(_last_bits(end.address), AddrFlag.LB_ADDR_CLUSTER_IP)
        else:
            self._let_pass(_last_bits(end.address), AddrFlag.LB_ADDR_EXTERNAL)
            self._let_pass(end.port, AddrFlag.LB_ADDR_EXTERNAL_PORT)
        key = frontend_key(end, proto)
        self.maps["lb_frontends"].update(bytes(key), u32(index))
        self.write_desc(
            index, key, self._range(local, if_empty), self._range(others, if_empty), kind
        )
        return index

    def write_desc(
        self,
        index: int,
        key: LbFrontendKey,
        local: LbRange,
        others: LbRange,
        kind: FrontendTypeCode = FrontendTypeCode.LB_CLUSTER_IP,
    ) -> None:
        """Write a new descriptor and make it the current one of the frontend `index`."""
        desc = self._take("desc")
        value = LbDesc(frontend=key, service=SERVICE, local=local, others=others, type=kind)
        self.maps["lb_descs"].update(u32(desc), bytes(value))
        self.maps["lb_current"].update(u32(index), u64(desc))

    def flag_frontends(self, flags: DescFlag) -> None:
        """Set flags in the descriptors of all frontends so far."""
        for index in range(1, self._next["desc"]):
            value = self._array("lb_descs", index, LbDesc)
            value.flags |= flags
            self.maps["lb_descs"].update(u32(index), bytes(value))

    def schedule_frontends(self, scheduler: SchedulerCode) -> None:
        """Set the scheduler of all frontends so far."""
        for index in range(1, self._next["desc"]):
            value = self._array("lb_descs", index, LbDesc)
            value.scheduler = scheduler
            self.maps["lb_descs"].update(u32(index), bytes(value))

    def _range(self, backends: Sequence[int], if_empty: IfEmptyCode) -> LbRange:
        base = self._next["slot"]
        for backend in backends:
            self.maps["lb_slots"].update(u32(self._take("slot")), u32(backend))
        return LbRange(base, len(backends), if_empty)

    def _take(self, what: str) -> int:
        self._next[what] += 1
        return self._next[what] - 1

    # Running

    def run(
        self, program: str, packet: Packet | bytes, *, ifindex: int = 1, gso_size: int = 0
    ) -> Result:
        """Run a program on a frame that came in by the device `ifindex` (1: the loopback)."""
        retval, frame = self.run_bytes(program, bytes(packet), ifindex=ifindex, gso_size=gso_size)
        return Result(Verdict(retval), Ether(frame))

    def run_bytes(
        self, program: str, frame: bytes, *, ifindex: int, gso_size: int = 0
    ) -> tuple[int, bytes]:
        """As `run()`, with the frame left as bytes."""
        run = prog_test_run(self._programs[program], frame, ctx=skb_context(ifindex, gso_size))
        return run.retval, run.packet

    def run_xdp(self, frame: bytes, *, ifindex: int) -> tuple[XdpAction, bytes]:
        """Run lb_xdp on a frame from the device; retry if the only result was a neighbour probe."""
        context = bytes(4) + u32(len(frame)) + bytes(4) + u32(ifindex) + bytes(8)
        # Once a second; a second may begin between two runs.
        for _ in range(_XDP_RUNS):
            before = self.xdp_results()
            run = prog_test_run(self._programs["lb_xdp"], frame, ctx=context)
            if XdpResult.LB_XDP_NEIGHBOUR not in self.xdp_results() - before:
                break
            assert (run.retval, run.packet) == (XdpAction.PASS, frame)
        return XdpAction(run.retval), run.packet

    # Reading

    def xdp_results(self) -> Counter[XdpResult]:
        """The results counted at XDP."""
        return Counter(
            {
                each: sum(number(value) for value in self._cpus("lb_count_xdp", each))
                for each in XdpResult
            }
        )

    def snapshot(self) -> dict[str, dict[bytes, bytes]]:
        """Every element of every map except the filters."""
        names = self.maps.keys() - FILTERS
        return {name: dict(self.maps[name].items()) for name in names}

    def established(self) -> dict[LbTuple, LbConntrack]:
        """lb_conntrack, and lb_ct_stream."""
        return self._entries("lb_conntrack") | self._entries("lb_ct_stream")

    def short(self) -> dict[LbTuple, LbConntrack]:
        """lb_ct_short, and lb_ct_udp."""
        return self._entries("lb_ct_short") | self._entries("lb_ct_udp")

    def tunneled(self) -> dict[LbTuple, LbConntrack]:
        """lb_ct_dsr."""
        return self._entries("lb_ct_dsr")

    def entry(self, source: End, target: End, proto: Protocol) -> LbConntrack:
        """The entry of the packets from `source` to `target`, wherever it is."""
        known = self.established() | self.tunneled() | self.short()
        return known[flow_tuple(source, target, proto)]

    def states(self) -> set[CtState]:
        """The states that occur in any table."""
        entries = [
            *self.established().values(),
            *self.tunneled().values(),
            *self.short().values(),
        ]
        return {CtState(entry.whole_state) for entry in entries}

    def backend_at(self, index: int) -> LbBackend:
        """An element of lb_backends."""
        return self._array("lb_backends", index, LbBackend)

    def drops(self) -> dict[DropReason, int]:
        """The drop reasons that were counted."""
        counts = sum_drops(read_drops(self.maps))
        return {reason: count for reason, count in counts.items() if count}

    def counts(self, name: str, index: int) -> tuple[int, int, int]:
        """Connections, refused and dropped, of `lb_count_front` or `lb_count_back`."""
        counts = self.all_counts(name, index)
        return counts.connections, counts.refused, counts.dropped

    def all_counts(self, name: str, index: int) -> LbCounts:
        """An element of `lb_count_front` or `lb_count_back`, of all CPUs."""
        rows = [memoryview(value).cast("Q") for value in self._cpus(name, index)]
        sums = array("Q", map(sum, zip(*rows, strict=True)))
        return LbCounts.from_buffer_copy(sums.tobytes())

    def keep_young(self) -> None:
        """Keep flows that are not established from expiring, however long the test takes."""
        later = time.monotonic_ns() + _LONG
        for key in self.short():
            self.write_entry(key, created=later, last_seen=later)

    def wait_a_second(self) -> None:
        """Make the last packets of all established flows a second older, in the same order."""
        for key, entry in self.established().items():
            self.write_entry(key, last_seen=entry.last_seen - 10**9)

    def write_entry(self, key: LbTuple, **changes: Any) -> None:
        """Change fields of an entry, in every flow table that has it."""
        for table in self._tables_with(key):
            value = self._entries(table.name)[key]
            for name, change in changes.items():
                setattr(value, name, change)
            table.update(bytes(key), bytes(value))

    def delete_entry(self, key: LbTuple) -> None:
        """Delete an entry from every flow table that has it."""
        for table in self._tables_with(key):
            table.delete(bytes(key))

    def _tables_with(self, key: LbTuple) -> list[BpfMap]:
        found = [self.maps[name] for name in FLOW_TABLES if self.maps[name].lookup(bytes(key))]
        assert found
        return found

    def _entries(self, name: str) -> dict[LbTuple, LbConntrack]:
        return {
            LbTuple.from_buffer_copy(key): LbConntrack.from_buffer_copy(value)
            for key, value in self.maps[name].items()
        }

    def _array(self, name: str, index: int, kind: type[_Struct]) -> _Struct:
        value = self.maps[name].lookup(u32(index))
        assert value is not None
        return kind.from_buffer_copy(value)

    def _cpus(self, name: str, index: int) -> list[bytes]:
        value = self.maps[name].lookup(u32(index))
        assert value is not None
        stride = len(value) // self.maps[name].cpus
        return [value[at : at + stride] for at in range(0, len(value), stride)]


def assert_untouched(datapath: Datapath, program: str, packet: Packet, *, ifindex: int = 1) -> None:
    """The frame passes unchanged, and no map changes."""
    before = datapath.snapshot()
    result = datapath.run(program, packet, ifindex=ifindex)
    assert result.verdict is Verdict.PASS
    assert_same(result.packet, packet)
    assert datapath.snapshot() == before


def addr(text: str) -> LbAddr:
    """struct lb_addr."""
    return LbAddr.from_buffer_copy(mapped(text))


def _last_bits(address: str) -> int:
    """The last 16 bits."""
    return int.from_bytes(mapped(address)[-2:], "big")


def frontend_key(end: End, proto: Protocol) -> LbFrontendKey:
    """struct lb_frontend_key."""
    return LbFrontendKey(addr=addr(end.address), port=end.port, proto=proto)


def flow_tuple(source: End, target: End, proto: Protocol) -> LbTuple:
    """struct lb_tuple of the packets from `source` to `target`."""
    return LbTuple(
        saddr=addr(source.address),
        daddr=addr(target.address),
        sport=source.port,
        dport=target.port,
        proto=proto,
    )

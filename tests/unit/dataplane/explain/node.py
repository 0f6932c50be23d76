# SPDX-License-Identifier: Apache-2.0
"""A node with maps and routes for `explain`."""

from sys import byteorder

from ebpflb.dataplane.explain.hooks import walk
from ebpflb.dataplane.explain.lookups import Lookups, backend_key
from ebpflb.dataplane.kernel.rtnetlink import Route
from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    DeviceKind,
)
from ebpflb.dataplane.layout.records import BackendRecord
from ebpflb.dataplane.layout.structs import (
    LbAddr,
    LbDevice,
    LbSettings,
    LbTuple,
)
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import Address, format_address, parse_address
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import by_service

NODE, OTHER_NODE, CLIENT = "192.0.2.1", "192.0.2.2", "198.51.100.9"
POD, NEAR, REMOTE = "10.1.0.1", "10.1.0.2", "10.2.0.1"
UPLINK, VETH = 2, 7


def route(address: Address) -> Route | None:
    text = format_address(address)
    if text == NODE:
        return Route(1, is_local=True)
    if text.startswith("203.0.113."):
        return None
    return Route(VETH if text == POD else UPLINK, is_local=False)


class Node:
    """Memory maps with an uplink, a pod's device and two addresses, of which one has NodePorts."""

    def __init__(self) -> None:
        self.maps = memory_maps()
        self.sync = Sync(self.maps, quiesce=lambda: None)
        plain, accepts = AddrFlag.LB_ADDR_NODE, AddrFlag.LB_ADDR_NODE_PORT
        self.sync.load()
        self.sync.set_node_addresses(
            {parse_address(NODE): plain | accepts, parse_address(OTHER_NODE): plain}
        )
        self.settings()
        self.device(UPLINK, DeviceKind.LB_DEVICE_HOST, NODE)
        self.device(VETH, DeviceKind.LB_DEVICE_WORKLOAD)

    def settings(self, flags=0, node=NODE):
        value = LbSettings(flags=flags, node4=addr(node), udp_timeout=60, udp_stream_timeout=60)
        self.maps["lb_settings"].update(bytes(4), bytes(value))

    def device(self, ifindex, kind, snat=""):
        value = LbDevice(kind=kind, snat4=addr(snat) if snat else LbAddr())
        self.maps["lb_devices"].update(ifindex.to_bytes(4, byteorder), bytes(value))

    def serve(self, *frontends):
        assert not self.sync.resync(by_service(*frontends))

    def ask(self, client, target):
        """The last step of the path."""
        return walk(Lookups(self.maps), client, target, route)[-1]

    def backend(self, text):
        """The index of a backend and what it holds."""
        for index, value in self.maps["lb_backends"].items():
            record = BackendRecord.unpack(value)
            if record.flags and backend_key(record).address == parse_address(text):
                return int.from_bytes(index, byteorder), record
        raise AssertionError(text)


def addr(text):
    return LbAddr.from_buffer_copy(parse_address(text))


def tuple_of(saddr, sport, daddr, dport):
    return LbTuple(saddr=addr(saddr), daddr=addr(daddr), sport=sport, dport=dport, proto=6)

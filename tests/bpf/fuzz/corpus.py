# SPDX-License-Identifier: Apache-2.0
"""A node with Services and flows of every kind, and a valid packet of each.

Every source address lies in 8.0.0.0/16 or 2001:db8:86dd::/48: without an Ethernet header, a
test-run takes these bytes of it for the protocol, see `seen_by()` of test_malformed.py.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_network
from random import Random

from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES
from ebpflb.dataplane.flows.settings import write_service_nets
from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    BackendFlag,
    DescFlag,
    FrontendTypeCode,
    IfEmptyCode,
    SchedulerCode,
)
from ebpflb.dataplane.layout.structs import LbDesc, LbLimit, LbPodKey, LbSourceRange
from ebpflb.model.address import Family, Protocol
from tests.bpf.fuzz.judge import HOOKS, Judge, Offers, Shot
from tests.bpf.fuzz.tunnels import ADDRESSES, KEY, PORT, wrap
from tests.bpf.harness.datapath import SERVICE, SNAT_PORTS, Datapath, addr
from tests.bpf.harness.errors import QUOTES, TIME_EXCEEDED, TOO_BIG, UNREACHABLE, error
from tests.bpf.harness.fragments import HEADERS, fragments, with_headers
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import (
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    Net,
    built,
    mapped,
    source_of,
    target_of,
)
from tests.bpf.harness.services import BACKEND_PORT

V4 = Net(
    family=Family.IPV4,
    pod="8.0.1.5",
    local="8.0.1.6",
    remote="8.0.2.7",
    cluster_ip="10.96.0.10",
    external_ip="203.0.113.10",
    node="8.0.0.1",
    overlay="8.0.0.2",
    client="8.0.9.9",
)
V6 = Net(
    family=Family.IPV6,
    pod="2001:db8:86dd:1::5",
    local="2001:db8:86dd:1::6",
    remote="2001:db8:86dd:2::7",
    cluster_ip="fd00:96::10",
    external_ip="2001:db8:113::10",
    node="2001:db8:86dd::1",
    overlay="2001:db8:86dd::2",
    client="2001:db8:86dd:9::9",
)
KINDS = [Kind(net, proto) for net in (V4, V6) for proto in (Protocol.TCP, Protocol.UDP)]

_ROUTES = """
route {verb} 8.0.1.0/24 dev pod
route {verb} 8.0.2.0/24 via 172.16.0.2
route {verb} 8.0.0.0/24 via 192.0.2.254
route {verb} 8.0.9.0/24 via 192.0.2.254
route {verb} 2001:db8:86dd:1::/64 dev pod
route {verb} 2001:db8:86dd:2::/64 via fd00:16::2
route {verb} 2001:db8:86dd::/64 via 2001:db8:2::fe
route {verb} 2001:db8:86dd:9::/64 via 2001:db8:2::fe
"""
PLAIN, MASQUERADE, RANGES, AFFINITY, REFUSED, DROPPED, HAIRPIN, ELSEWHERE, DSR = range(80, 89)
_PORTS = range(PLAIN, DSR + 1)
_NODE_PORTS = 30000
_WILDCARD = {V4: "0.0.0.0", V6: "::"}
_REQUESTS = ("lb_pod_ingress", "lb_host_ingress", "lb_l3_ingress", "lb_host_egress", "lb_l3_egress")
_FLOWS = (*FLOW_TABLES, "lb_fragments", "lb_affinity")
_LIMITED = DescFlag.LB_DESC_LIMITS | DescFlag.LB_DESC_COUNTS_OPEN
# Nobody reaches them, but all that a client uses is noted.
_LIMITS = LbLimit(interval=1, burst=1 << 60, open=1 << 31, client_open=1 << 31)
_LINK = 14
# How much lower than its client's port the source port allocated to a flow may be.
_SNAT_BELOW = 20000


@contextmanager
def routed() -> Iterator[None]:
    """Routes to these addresses in the node's namespace."""
    _routes("add")
    try:
        yield
    finally:
        _routes("del")


def _routes(verb: str) -> None:
    for family in ("-4", "-6"):
        lines = [each for each in _ROUTES.splitlines() if (":" in each) == (family == "-6")]
        script = "\n".join(filter(None, lines)).format(verb=verb) + "\n"
        subprocess.run(["ip", family, "-batch", "-"], input=script, text=True, check=True)


class Corpus:
    """Services, flows and seeds; `restore()` resets the flows.

    Identical in each process: backends are chosen in turn, and only one source port is available
    while a flow begins.
    """

    def __init__(self, datapath: Datapath, node: Node) -> None:
        self._datapath, self._node = datapath, node
        self._frontends: dict[bytes, frozenset[bytes]] = {}
        self.seeds: list[Shot] = []
        self._write_node()
        for kind in KINDS:
            self._write_services(kind)
        addresses = [getattr(net, name) for net in (V4, V6) for name in ("node", "overlay")]
        self.offers = Offers(
            self._frontends,
            frozenset(map(mapped, addresses)),
            frozenset(mapped(there) for _, there in ADDRESSES.values()),
            (mapped(V4.local)[:15], mapped(V6.local)[:8]),
        )
        self._judge = Judge(datapath, self.offers)
        self._begin_flows()
        self._set()
        self.seeds += [
            each._replace(frame=self.wrapped(each)) for each in self.seeds[::7] if each.may_arrive
        ]
        self.seeds += [
            each._replace(program="lb_xdp")
            for each in self.seeds
            if each.program == "lb_host_ingress"
        ]
        self.flows = {name: dict(datapath.maps[name].items()) for name in _FLOWS}

    def wrapped(self, shot: Shot, *, port: int = BACKEND_PORT, is_returned: bool = False) -> bytes:
        """A frame in a tunnel from the other node, for a pod of this one, or back from there."""
        net = V6 if shot.frame[shot.network] >> 4 == 6 else V4
        return wrap(shot.frame, shot.network, mapped(net.local), (port, is_returned))

    def restore(self, number: int = 0) -> None:
        """Reset the flows to those of the start. number: where round robin begins."""
        for name, entries in self.flows.items():
            each = self._datapath.maps[name]
            each.delete_batch([key for key, _ in each.items()])
            each.update_batch(list(entries.items()))
        self._begin_turns(number)

    def _set(self, snat_ports: Sequence[tuple[int, int]] = SNAT_PORTS) -> None:
        self._datapath.settings(snat_ports, node4=addr(V4.node), node6=addr(V6.node), dsr_port=PORT)

    def _begin_turns(self, number: int) -> None:
        """As a node does when it finds zero, but the result depends on the number only."""
        turns, random = self._datapath.maps["lb_turns"], Random(number)
        words = [random.randrange(1, 1 << 31) for _ in range(turns.max_entries)]
        turns.update_batch([(u32(index), u32(word)) for index, word in enumerate(words)])

    def _write_node(self) -> None:
        datapath, node = self._datapath, self._node
        self._set()
        self._begin_turns(0)
        datapath.maps["lb_tunnel_keys"].update(bytes(4), 2 * KEY)
        datapath.maps["lb_limits"].update(u32(SERVICE), bytes(_LIMITS))
        for net, (_, there) in zip((V4, V6), ADDRESSES.values(), strict=True):
            datapath.maps["lb_nodes"].update(mapped(there), b"\1")
            datapath.maps["lb_pod_nodes"].update(mapped(net.remote), mapped(there))
        flags = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
        for net in (V4, V6):
            datapath.address(net.node, flags)
            datapath.address(net.overlay, flags)
            datapath.address(net.cluster_ip, AddrFlag.LB_ADDR_CLUSTER_IP)
            datapath.address(net.external_ip, AddrFlag.LB_ADDR_EXTERNAL)
        datapath.device(node.uplink.ifindex, snat4=V4.node, snat6=V6.node, xdp=True)
        for tap in (node.overlay, node.tunnel):
            is_ethernet = tap.has_ethernet
            datapath.device(tap.ifindex, snat4=V4.overlay, snat6=V6.overlay, xdp=is_ethernet)
        write_service_nets(datapath.maps["lb_service_nets"], ["10.96.0.0/24", "fd00:96::/120"])
        for net in (V4, V6):
            for address in (net.client, net.node):
                self._allow(address)

    def _allow(self, address: str) -> None:
        network = ip_network(address)
        length = 32 + network.prefixlen + (96 if network.version == 4 else 0)
        key = LbSourceRange(length, 1, addr(address))
        self._datapath.maps["lb_src_ranges"].update(bytes(key), b"\1")

    def _write_services(self, kind: Kind) -> None:
        net, datapath = kind.net, self._datapath
        remote = datapath.backend(End(net.remote, BACKEND_PORT), kind.proto)
        here = [
            datapath.backend(
                End(address, BACKEND_PORT), kind.proto, flags=BackendFlag.LB_BACKEND_LOCAL
            )
            for address in (net.local, net.pod)
        ]
        pod = LbPodKey(addr=addr(net.local), port=BACKEND_PORT, proto=kind.proto, service=SERVICE)
        datapath.maps["lb_pods_here"].update(bytes(pod), u32(here[0]))
        for port in _PORTS:
            backends = {
                REFUSED: [],
                DROPPED: [],
                HAIRPIN: here[1:],
                ELSEWHERE: [remote],
            }.get(port, [remote, here[0]])
            self._write_frontends(kind, port, backends)

    def _write_frontends(self, kind: Kind, port: int, backends: list[int]) -> None:
        ends = {
            FrontendTypeCode.LB_CLUSTER_IP: End(kind.net.cluster_ip, port),
            FrontendTypeCode.LB_EXTERNAL_IP: End(kind.net.external_ip, port),
            FrontendTypeCode.LB_NODE_PORT: End(_WILDCARD[kind.net], _NODE_PORTS + port),
        }
        found = (self._datapath.backend_at(index) for index in backends)
        targets = frozenset(bytes(each.addr) + int(each.port).to_bytes(2, "big") for each in found)
        for type_, end in ends.items():
            if_empty = IfEmptyCode.LB_EMPTY_DROP if port == DROPPED else IfEmptyCode.LB_EMPTY_REFUSE
            index = self._datapath.frontend(
                end, kind.proto, local=backends, others=backends, if_empty=if_empty, kind=type_
            )
            self._mark(index, port)
            key = mapped(end.address) + end.port.to_bytes(2, "big") + bytes([kind.proto])
            self._frontends[key] = targets

    def _mark(self, index: int, port: int) -> None:
        """Give each descriptor the number of its frontend."""
        place = self._datapath.maps["lb_descs"]
        desc = LbDesc.from_buffer_copy(place.lookup(u32(index)) or b"")
        desc.flags = {
            MASQUERADE: DescFlag.LB_DESC_MASQUERADE | _LIMITED,
            RANGES: DescFlag.LB_DESC_SOURCE_RANGES,
            AFFINITY: _LIMITED,
            DSR: DescFlag.LB_DESC_DSR | _LIMITED,
        }.get(port, 0)
        desc.source_ranges = 1
        desc.scheduler = SchedulerCode["LB_SCHEDULER_ROUND_ROBIN"]
        desc.affinity_timeout = 100 if port == AFFINITY else 0
        place.update(u32(index), bytes(desc))

    # Flows and their packets

    def _begin_flows(self) -> None:
        source_port = 40000
        for number, kind in enumerate(KINDS):
            for port in _PORTS:
                for program in _REQUESTS:
                    source_port += 1
                    self._set([(source_port - _SNAT_BELOW,) * 2] * 2)
                    target = self._targets(kind, port)[(number + source_port) % 3]
                    self._begin(
                        kind, program, End(self._client(kind, program), source_port), target
                    )

    def _targets(self, kind: Kind, port: int) -> list[End]:
        net = kind.net
        return [
            End(net.cluster_ip, port),
            End(net.external_ip, port),
            End(net.node, _NODE_PORTS + port),
        ]

    def _client(self, kind: Kind, program: str) -> str:
        if program == "lb_pod_ingress":
            return kind.net.pod
        return kind.net.node if "egress" in program else kind.net.client

    def _begin(self, kind: Kind, program: str, source: End, target: End) -> None:
        request = kind.frame(source, target)
        sent = self._play(program, request)
        # As often as from all other ports together.
        for _ in range(DSR - PLAIN if target.port % 100 == DSR else 1):
            self._add_requests(kind, program, source, target)
        if sent is None:
            return
        backend, seen = target_of(sent), source_of(sent)
        reply = kind.frame(backend, seen, "SA")
        for each in self._reply_programs(program, request, sent):
            answer = self._play(each, reply)
            if answer is None:
                continue
            if source.port % 2:
                self._play(program, kind.frame(source, target, "A"))
            self._add_replies(kind, each, backend, seen)
            self._add_errors(kind, each, backend.address, sent)
            self._add_errors(kind, program, source.address, answer)
            break

    def _reply_programs(self, program: str, request: Packet, sent: Packet) -> list[str]:
        """The programs at the hook of the reply's entry."""
        kinds = [name for name in HOOKS if "l3" not in name and name != "lb_xdp"]
        return [name.replace("host", "l3") if "l3" in program else name for name in kinds]

    def _play(self, program: str, frame: Packet) -> Packet | None:
        """The frame that comes out, if it was translated."""
        shot = self._shot(program, frame)
        if self._judge.run(shot) != "translated":
            return None
        out = self._judge.out
        if "l3" in program:
            link = bytes(frame)[:_LINK]
            out = link + (out[_LINK:] if out[:_LINK] == bytes(_LINK) else out)[:-_LINK]
        return Ether(out)

    def _shot(self, program: str, frame: Packet | bytes) -> Shot:
        whole, node = bytes(frame), self._node
        if "l3" in program:
            return Shot(program, node.tunnel.ifindex, whole[_LINK:] + bytes(_LINK))
        return Shot(program, (node.pod if "pod" in program else node.uplink).ifindex, whole)

    def _add(self, program: str, *frames: Packet) -> None:
        self.seeds += [self._shot(program, frame) for frame in frames]

    def _add_requests(self, kind: Kind, program: str, source: End, target: End) -> None:
        for flags in ("S", "A", "PA", "FA", "R"):
            self._add(program, kind.frame(source, target, flags))
        self._add_odd(program, kind.frame(source, target), kind)
        self._add(program, kind.frame(source, target, "PA", payload=bytes(1400)))
        self._add(program, kind.frame(source, target, ttl=1))

    def _add_replies(self, kind: Kind, program: str, source: End, target: End) -> None:
        for flags in ("SA", "A", "PA", "FA", "R"):
            self._add(program, kind.frame(source, target, flags))
        self._add_odd(program, kind.frame(source, target, "PA"), kind)

    def _add_odd(self, program: str, frame: Packet, kind: Kind) -> None:
        for name in HEADERS[kind.net.family]:
            self._add(program, with_headers(frame, name))
        long = kind.frame(source_of(frame), target_of(frame), payload=bytes(300))
        self._add(program, *fragments(long, 160))
        self._add(
            program, built(Ether(src=SENDER_MAC, dst=NODE_MAC) / Dot1Q(vlan=0) / frame.payload)
        )

    def _add_errors(self, kind: Kind, program: str, source: str, quoted: Packet) -> None:
        """Add errors about a packet from `source` and from a router."""
        for what, size in zip((UNREACHABLE, TIME_EXCEEDED, TOO_BIG), QUOTES, strict=True):
            mtu = 1300 if what == TOO_BIG else 0
            sender = source if what == UNREACHABLE else kind.net.remote
            self._add(program, error(kind, sender, quoted, what=what, mtu=mtu, transport=size))

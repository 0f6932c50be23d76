# SPDX-License-Identifier: Apache-2.0
"""ebpflb's programs: each lane is a path that packets of a Service take through them.

Flows are aged by writing their entries. They are deleted after the agent's timeouts.
"""

import time
from dataclasses import dataclass

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, flow_key, reverse
from ebpflb.dataplane.flows.timeouts import (
    TCP_CLOSED_SECONDS,
    TCP_OPENING_SECONDS,
    Timeouts,
    tcp_timeout,
    udp_timeout,
)
from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    BackendFlag,
    CtState,
    DescFlag,
    FrontendTypeCode,
)
from ebpflb.dataplane.layout.structs import LbConntrack, LbSettings
from ebpflb.model.address import Protocol
from tests.bpf.dsr.tunnel import KEY, PEER, PORT, place_here, set_keys
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction
from tests.bpf.harness.node import Node, Tap
from tests.bpf.harness.packets import IPV4, IPV6, KINDS, End, Kind, Net, mapped
from tests.bpf.harness.services import node_addresses
from tests.bpf.netfilter.script import Sent, Side
from tests.bpf.netfilter.seen import Outcome, Seen, State
from tests.bpf.netfilter.wire import Flow, arrived

_SECOND, _WRAP = 1_000_000_000, 1 << 64
_HOST_INGRESS, _HOST_EGRESS = "lb_host_ingress", "lb_host_egress"

Entries = dict[tuple[str, bytes], LbConntrack]
"""By table and key."""


@dataclass(frozen=True)
class Lane:
    """is_elsewhere: the endpoint is on another node; has_dsr: it replies directly to the client."""

    name: str
    port: int
    is_elsewhere: bool = False
    has_dsr: bool = False
    has_xdp: bool = False

    def frontend(self, net: Net) -> End:
        """The frontend of its Service."""
        return End(net.external_ip, self.port)

    def backend(self, net: Net) -> End:
        """Its only endpoint. With DSR it is a pod of the node at the end of the tunnel."""
        return End(net.remote if self.is_elsewhere else net.pod, 8000 + self.port)

    def flow(self, kind: Kind, client_port: int) -> Flow:
        """A client's connection."""
        client = End(kind.net.client, client_port)
        seen = End(kind.net.overlay, client_port) if self.is_elsewhere else client
        return Flow(kind, client, self.frontend(kind.net), self.backend(kind.net), seen)


LANES = (
    Lane("tc, endpoint here", 80),
    Lane("tc, masqueraded", 81, is_elsewhere=True),
    Lane("XDP, masqueraded", 82, is_elsewhere=True, has_xdp=True),
    Lane("DSR from tc", 83, has_dsr=True),
    Lane("DSR from XDP", 84, has_dsr=True, has_xdp=True),
)


class Ours:
    """Two nodes in one namespace: one that clients reach, and the endpoint's node with DSR."""

    def __init__(self, entry: Datapath, far: Datapath, node: Node) -> None:
        self._entry, self._far, self._node = entry, far, node
        for each in (entry, far):
            each.reset()
        self._write_entry()
        self._write_far()

    def begin(self, client_port: int) -> None:
        """Masqueraded flows keep the client's port, as netfilter's do."""
        values = Timeouts()
        for each in (self._entry, self._far):
            each.settings(
                ((client_port, client_port), (client_port, client_port)),
                tcp_opening_timeout=TCP_OPENING_SECONDS,
                tcp_closed_timeout=TCP_CLOSED_SECONDS,
                tcp_established_timeout=values.tcp_established,
                tcp_close_wait_timeout=values.tcp_close_wait,
                udp_timeout=values.udp,
                udp_stream_timeout=values.udp_stream,
                dsr_port=PORT,
            )

    def play(self, lane: Lane, flow: Flow, sent: Sent) -> Outcome:
        """What becomes of a packet."""
        frame = flow.frame(sent)
        if sent.side is Side.ENDPOINT:
            verdict, out = self._reply(lane, frame)
        else:
            verdict, out = self._request(lane, frame)
        if flow.is_delivered(sent, out):
            return Outcome.DELIVERED
        if verdict == Verdict.DROP:
            return Outcome.DROPPED
        return Outcome.LEFT if out == frame else Outcome.RESET

    def _request(self, lane: Lane, frame: bytes) -> tuple[int, bytes]:
        verdict, out = self._run(self._entry, lane, frame, self._node.uplink)
        if not lane.has_dsr or verdict != Verdict.REDIRECT:
            return verdict, out
        arriving = arrived(out)
        verdict, out = self._far.run_bytes(
            _HOST_INGRESS, arriving, ifindex=self._node.uplink.ifindex
        )
        return verdict, frame if out == arriving else out

    def _reply(self, lane: Lane, frame: bytes) -> tuple[int, bytes]:
        if lane.is_elsewhere:
            return self._run(self._entry, lane, frame, self._node.overlay)
        datapath = self._far if lane.has_dsr else self._entry
        return datapath.run_bytes(_HOST_EGRESS, frame, ifindex=self._node.uplink.ifindex)

    def _run(self, datapath: Datapath, lane: Lane, frame: bytes, tap: Tap) -> tuple[int, bytes]:
        """tc gets what XDP passes."""
        if lane.has_xdp:
            action, out = datapath.run_xdp(frame, ifindex=tap.ifindex)
            if action is not XdpAction.PASS:
                return Verdict.REDIRECT, out
        return datapath.run_bytes(_HOST_INGRESS, frame, ifindex=tap.ifindex)

    def look(self, lane: Lane, flow: Flow, outcome: Outcome | None) -> Seen:
        """The state at the endpoint's node, or at the one that masquerades."""
        datapath = self._far if lane.has_dsr else self._entry
        entries = _entries(datapath, _key(flow))
        if not entries:
            return Seen(outcome)
        state = _state(_whole_state(entries))
        return Seen(outcome, state, _seconds(datapath, flow, entries))

    def age(self, flow: Flow, seconds: int) -> None:
        """Let that much time pass for a flow. Times before the machine's start wrap around."""
        for datapath in (self._entry, self._far):
            entries = _entries(datapath, _key(flow))
            is_over = _seconds(datapath, flow, entries) < seconds
            for (name, key), entry in entries.items():
                entry.created -= seconds * _SECOND
                entry.last_seen -= seconds * _SECOND
                if is_over:
                    datapath.maps[name].delete(key)
                else:
                    datapath.maps[name].update(key, bytes(entry))

    def forget(self) -> None:
        """Delete all flows."""
        for datapath in (self._entry, self._far):
            for name in FLOW_TABLES:
                table = datapath.maps[name]
                table.delete_batch([key for key, _ in table.items()])

    def _write_entry(self) -> None:
        datapath, uplink, overlay = self._entry, self._node.uplink, self._node.overlay
        node_addresses(datapath, self._node)
        datapath.device(uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, mtu=1500, xdp=True)
        datapath.device(overlay.ifindex, snat4=IPV4.overlay, snat6=IPV6.overlay, xdp=True)
        set_keys(datapath, KEY)
        for net in (IPV4, IPV6):
            datapath.address(net.external_ip, AddrFlag.LB_ADDR_EXTERNAL)
            datapath.maps["lb_nodes"].update(mapped(PEER[net]), b"\1")
            datapath.maps["lb_pod_nodes"].update(mapped(net.pod), mapped(PEER[net]))
        self._serve(datapath, has_dsr=True)
        self._serve(datapath, has_dsr=False)

    def _write_far(self) -> None:
        datapath = self._far
        set_keys(datapath, KEY)
        flags = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
        for net in (IPV4, IPV6):
            datapath.address(PEER[net], flags)
            datapath.address(net.external_ip, AddrFlag.LB_ADDR_EXTERNAL)
            datapath.maps["lb_nodes"].update(mapped(net.node), b"\1")
        datapath.device(self._node.uplink.ifindex, snat4=PEER[IPV4], snat6=PEER[IPV6], mtu=1500)
        self._serve(datapath, has_dsr=True)

    def _serve(self, datapath: Datapath, *, has_dsr: bool) -> None:
        """The Services with DSR come first: the flag is set on all frontends so far."""
        for kind in KINDS:
            for lane in LANES:
                if lane.has_dsr is has_dsr:
                    self._serve_lane(datapath, kind, lane)
        if has_dsr:
            datapath.flag_frontends(DescFlag.LB_DESC_DSR)

    def _serve_lane(self, datapath: Datapath, kind: Kind, lane: Lane) -> None:
        frontend, backend = lane.frontend(kind.net), lane.backend(kind.net)
        is_far = datapath is self._far
        is_here = is_far or not (lane.is_elsewhere or lane.has_dsr)
        flags = BackendFlag.LB_BACKEND_LOCAL if is_here else 0
        index = datapath.backend(backend, kind.proto, flags=flags)
        if is_far:
            place_here(datapath, kind, backend, index)
        type_ = FrontendTypeCode.LB_EXTERNAL_IP
        datapath.frontend(frontend, kind.proto, local=[index], others=[index], kind=type_)


def _key(flow: Flow) -> bytes:
    ends = [(mapped(end.address), end.port) for end in (flow.client, flow.frontend)]
    return flow_key(ends[0], ends[1], flow.kind.proto)


def _entries(datapath: Datapath, key: bytes) -> Entries:
    """Both entries of a flow, from any table."""
    found = {}
    for name in FLOW_TABLES:
        if value := datapath.maps[name].lookup(key):
            found[name, key] = LbConntrack.from_buffer_copy(value)
    for entry in list(found.values()):
        other = reverse(bytes(entry.to))
        for name in FLOW_TABLES:
            if value := datapath.maps[name].lookup(other):
                found[name, other] = LbConntrack.from_buffer_copy(value)
    return found


def _whole_state(entries: Entries) -> int:
    state = 0
    for entry in entries.values():
        state |= entry.whole_state
    return state


def _seconds(datapath: Datapath, flow: Flow, entries: Entries) -> float:
    """Seconds until the agent deletes the flow."""
    settings = LbSettings.from_buffer_copy(datapath.maps["lb_settings"].lookup(bytes(4)) or b"")
    by_state = udp_timeout if flow.kind.proto is Protocol.UDP else tcp_timeout
    now = time.monotonic_ns()
    ages = [(now - entry.last_seen) % _WRAP for entry in entries.values()]
    return by_state(settings, _whole_state(entries)) - min(ages, default=0) / _SECOND


def _state(state: int) -> State:
    if state & CtState.LB_CT_CLOSED:
        return State.CLOSED
    if not state & CtState.LB_CT_ESTABLISHED:
        return State.OPENING
    return State.CLOSING if state & CtState.LB_CT_OTHER_FIN else State.ESTABLISHED

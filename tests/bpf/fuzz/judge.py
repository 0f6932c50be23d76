# SPDX-License-Identifier: Apache-2.0
"""The oracle: a packet passes unchanged, is dropped or answered for a reason that is counted, or is
translated correctly in every respect, as part of a flow or as the start of one.
"""

import time
from collections.abc import Mapping
from typing import NamedTuple

from ebpflb.dataplane.flows.conntrack import PROTOCOL_AT
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction
from ebpflb.dataplane.layout.structs import LbConntrack, LbSettings
from tests.bpf.fuzz.strict import Headers, Piece, key_of, read, reverse
from tests.bpf.fuzz.translation import check_answer, check_error, check_translation
from tests.bpf.fuzz.tunnels import KEY, PORT, Tunnel, check_sent, read_tunnel
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction
from tests.bpf.harness.numbers import number

# enum lb_hook: where a flow's entries were established.
HOOKS = {
    "lb_host_ingress": 1,
    "lb_l3_ingress": 1,
    "lb_host_egress": 2,
    "lb_l3_egress": 2,
    "lb_pod_ingress": 3,
    "lb_pod_egress": 4,
    "lb_xdp": 1,
}
_TUPLE, _DIRECTION_AT, _HOOK_AT, _STATE_AT, _FLAGS_AT, _PEER_STATE_AT = 40, 88, 89, 90, 91, 102
_TCP, _UDP, _SYN_ALONE = 6, 17, 0x16


class Shot(NamedTuple):
    """A frame and the hook that sees it."""

    program: str
    ifindex: int
    frame: bytes
    gso_size: int = 0

    @property
    def network(self) -> int:
        """Offset of the IP header."""
        return 0 if "l3" in self.program else 14

    @property
    def may_arrive(self) -> bool:
        """Whether tunnels from other nodes are accepted here; a test-run needs a link header."""
        return self.program == "lb_host_ingress"

    def __str__(self) -> str:
        size = f" gso_size={self.gso_size}" if self.gso_size else ""
        return f"{self.program} ifindex={self.ifindex}{size} {self.frame.hex()}"


class Offers(NamedTuple):
    """The possible results for new flows: backends by frontend, and stand-ins for their clients.

    A frontend is address, port and protocol; a backend and a client's stand-in begin with an
    address. peers: nodes that may send tunnels; pods_here: address prefixes of this node's pods.
    """

    frontends: Mapping[bytes, frozenset[bytes]]
    stand_ins: frozenset[bytes]
    peers: frozenset[bytes]
    pods_here: tuple[bytes, ...]


class Judge:
    """Runs programs on frames. Raises AssertionError when the result is wrong."""

    def __init__(self, datapath: Datapath, offers: Offers) -> None:
        self._datapath, self._offers = datapath, offers
        self._maps = datapath.maps
        # Tuples of the flows that the runs may have advanced.
        self.touched: set[bytes] = set()
        # The pod that the other node chose for the last frame.
        self._chosen = b""
        # The last output frame.
        self.out = b""
        self.begin()

    def begin(self) -> None:
        """Read the maps again after somebody else wrote them."""
        self._established = self._read_established()
        self._drops = self._read_drops()
        self.touched.clear()

    def opened(self, reply: bytes | None) -> bool:
        """Whether this is the reply entry of a flow that the runs advanced."""
        return reply is not None and reverse(reply[:_TUPLE]) in self.touched

    def run(self, shot: Shot) -> str:
        """Run a program; returns the outcome as one word."""
        tunnel, self._chosen = self._tunnel(shot), b""
        inner = shot._replace(frame=tunnel.inner) if tunnel else shot
        headers = read(inner.frame, shot.network, shot.gso_size, shot.frame[12:14])
        key, known = self._known(headers, HOOKS[shot.program])
        verdict, self.out = self._outcome(shot)
        self._check_flows(headers, key, known)
        drops, self._drops = self._drops, self._read_drops()
        dropped = 0 if drops == self._drops else _total(self._drops) - _total(drops)
        if verdict == Verdict.DROP:
            assert dropped == 1
            return "dropped"
        if tunnel:
            assert tunnel.source in self._offers.peers, "a tunnel from an unknown node was accepted"
            assert tunnel.key == KEY, "a tunnel without the key was accepted"
            assert self.out != tunnel.inner, "a packet was decapsulated but not translated"
            if tunnel.is_control:
                return self._check_question(shot, verdict)
            if not tunnel.is_returned:
                self._chosen = tunnel.pod + tunnel.words[:2]
        if dropped:
            assert (dropped, verdict) == (1, Verdict.REDIRECT)
            assert headers, "a malformed packet was answered"
            check_answer(inner.frame, _without_link(shot, self.out), headers)
            return "answered"
        if self.out == inner.frame:
            assert verdict == Verdict.PASS
            return "passed"
        assert headers, "a malformed packet was altered"
        return self._check_altered(inner, headers, known, verdict, tunnel)

    def _check_altered(
        self, shot: Shot, headers: Headers, known: bytes, verdict: int, tunnel: Tunnel | None
    ) -> str:
        out = _without_link(shot, self.out)
        sent = read_tunnel(out, shot.network, shot.frame[12:14])
        if sent and not (tunnel and tunnel.is_returned):
            assert verdict == Verdict.REDIRECT
            # A test-run assumes a link header and makes space after it.
            is_whole = shot.network > 0
            check_sent(shot.frame[: headers.end], out, shot.network, sent, is_whole=is_whole)
            assert sent.is_returned == bool(tunnel)
            if tunnel:
                assert (sent.pod, sent.words[:2]) == (tunnel.pod, tunnel.words[:2])
            return "returned" if tunnel else "tunneled"
        after = read(out, shot.network, shot.gso_size, shot.frame[12:14])
        self._check_way(shot, headers, known, after)
        check = check_error if headers.quote else check_translation
        check(shot.frame, out, headers, leaves=verdict == Verdict.REDIRECT)
        return "error translated" if headers.quote else "translated"

    def _tunnel(self, shot: Shot) -> Tunnel | None:
        """The tunnel to this node that the programs have to accept or reject."""
        if not shot.may_arrive:
            return None
        tunnel = read_tunnel(shot.frame, shot.network, shot.frame[12:14])
        return tunnel if tunnel and tunnel.target in self._offers.stand_ins else None

    def _check_question(self, shot: Shot, verdict: int) -> str:
        """The other node probes whether this one takes part in DSR."""
        assert verdict == Verdict.REDIRECT
        out = _without_link(shot, self.out)
        source_port = shot.network + (20 if shot.frame[12:14] == b"\x08\x00" else 40)
        assert out[source_port : source_port + 2] == PORT.to_bytes(2, "big")
        answer = read_tunnel(out, shot.network, shot.frame[12:14])
        assert answer is None or answer.words[:2] == bytes(2)
        return "answered"

    def _outcome(self, shot: Shot) -> tuple[int, bytes]:
        if shot.program == "lb_xdp":
            action, out = self._datapath.run_xdp(shot.frame, ifindex=shot.ifindex)
            return Verdict.PASS if action is XdpAction.PASS else Verdict.REDIRECT, out
        return self._datapath.run_bytes(
            shot.program, shot.frame, ifindex=shot.ifindex, gso_size=shot.gso_size
        )

    def _known(self, headers: Headers | None, hook: int) -> tuple[bytes, bytes]:
        """The tuple whose entry decides, and that entry; empty if there is none.

        A flow that is established at another hook may begin again at this one.
        """
        if headers is None:
            return b"", b""
        key = reverse(headers.quote.key) if headers.quote else headers.key
        if headers.piece is Piece.LATER:
            first = self._maps["lb_fragments"].lookup(key)
            if first is None:
                return b"", b""
            key = key_of(headers.source, headers.target, first[8:12], headers.protocol)
        settled = self._established.get(key)
        if key[PROTOCOL_AT] == _UDP:
            return key, self._maps["lb_ct_udp"].lookup(key) or settled or b""
        if settled and (headers.quote or settled[_HOOK_AT] == hook):
            return key, settled
        return key, self._maps["lb_ct_short"].lookup(key) or settled or b""

    def _check_flows(self, headers: Headers | None, key: bytes, known: bytes) -> None:
        """Only its own packets change an established flow; one that has ended may be removed."""
        before, self._established = self._established, self._read_established()
        own: set[bytes] = set()
        if headers and not headers.quote:
            own = {key, *(reverse(each[:_TUPLE]) for each in (known, before.get(key, b"")))}
            self.touched |= own
        if before == self._established:
            return
        for each in before.keys() | self._established.keys():
            old, new = before.get(each), self._established.get(each)
            if old != new and each not in own:
                assert old, "a packet established another flow"
                assert not new, "a packet changed another flow"
                if each[PROTOCOL_AT] == _UDP:
                    same_flow = old[:_TUPLE] == reverse(key)
                    assert same_flow or self._is_idle(old), "a packet ended a stream in use"
                    continue
                state = old[_STATE_AT] | old[_PEER_STATE_AT]
                is_whole = before.get(reverse(old[:_TUPLE]), b"")[:_TUPLE] == reverse(each)
                has_ended = state & CtState.LB_CT_CLOSED or not is_whole
                assert has_ended, "a packet ended another flow"

    def _is_idle(self, stream: bytes) -> bool:
        """Whether a stream may lose its port."""
        settings = LbSettings.from_buffer_copy(self._maps["lb_settings"].lookup(bytes(4)) or b"")
        silent = time.monotonic_ns() - LbConntrack.from_buffer_copy(stream).last_seen
        return bool(silent >= settings.udp_stream_timeout * 1_000_000_000)

    def _check_way(self, shot: Shot, headers: Headers, known: bytes, after: Headers | None) -> None:
        """The packet goes where its flow goes, or to a backend of its frontend."""
        assert after, "malformed after translation"
        to = known[:_TUPLE]
        is_here = bool(known) and known[_HOOK_AT] == HOOKS[shot.program]
        if headers.quote:
            assert is_here, "an error about a flow of another hook"
            assert after.quote
            ways = (to, _between(reverse(headers.quote.key), known))
            assert after.quote.key in [reverse(each) for each in ways if each]
            assert after.target == to[16:32]
            assert after.source in (to[:16], headers.source)
        elif headers.piece is Piece.LATER:
            assert is_here, "a later fragment for a flow of another hook"
            assert after.key[:32] in (to[:32], _between(headers.key, known)[:32])
        elif is_here and after.key in (to, _between(headers.key, known)):
            return
        elif after.key != self._routed(headers.key):
            self._check_new_flow(shot, headers, after)

    def _routed(self, key: bytes) -> bytes:
        """What a packet becomes that the stack routes for ebpflb; empty for other packets."""
        return (self._maps["lb_stack_nat"].lookup(key) or b"")[:_TUPLE]

    def _check_new_flow(self, shot: Shot, headers: Headers, after: Headers) -> None:
        assert shot.program != "lb_pod_egress"
        if headers.protocol == _TCP:
            assert shot.frame[headers.transport + 13] & _SYN_ALONE == 0x02, "opened without a SYN"
        protocol = bytes([headers.protocol])
        places = (headers.target, headers.target[:12] + bytes(4), bytes(16))
        keys = {each + headers.key[34:36] + protocol for each in places}
        offered = [self._offers.frontends[key] for key in keys & self._offers.frontends.keys()]
        backends: frozenset[bytes] = frozenset().union(*offered)
        if self._chosen:
            assert offered, "a tunnel without a Service"
            is_here = self._chosen.startswith((*self._offers.pods_here, *self._offers.stand_ins))
            backends = frozenset([self._chosen] if is_here else [])
        assert after.target + after.key[34:36] in backends, "not a backend of the frontend"
        assert after.source in (headers.source, *self._offers.stand_ins)
        if after.source == headers.source and after.key[32:34] != headers.key[32:34]:
            assert number(after.key[33:31:-1]) >= 1024

    def _read_established(self) -> dict[bytes, bytes]:
        names = "lb_conntrack", "lb_ct_stream", "lb_ct_dsr"
        return {key: value for name in names for key, value in self._maps[name].items()}

    def _read_drops(self) -> bytes:
        return b"".join(chunk.values for chunk in self._maps["lb_count_drop"].chunks())


def _between(key: bytes, known: bytes) -> bytes:
    """A packet of a masqueraded flow that the stack routes: bpf/stack_route.h."""
    if not known[_FLAGS_AT] & CtFlag.LB_CT_SNAT:
        return b""
    to = known[:_TUPLE]
    if known[_DIRECTION_AT] == Direction.LB_DIR_REPLY:
        return key[:16] + to[16:32] + key[32:]
    return key[:16] + to[16:]


def _total(counts: bytes) -> int:
    return sum(number(counts[at : at + 8]) for at in range(0, len(counts), 8))


def _without_link(shot: Shot, out: bytes) -> bytes:
    """A frame that leaves a device without Ethernet headers may have got an empty one."""
    is_longer = shot.network == 0 and out[:14] == bytes(14)
    return out[14:] if is_longer else out

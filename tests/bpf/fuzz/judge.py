# SPDX-License-Identifier: Apache-2.0
"""What may become of a packet: it passes as it is, is dropped or answered for a reason that is
counted, or is translated, if it is right in every respect and belongs to a flow or begins one.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ebpflb.dataplane.layout.enums import CtState
from tests.bpf.fuzz.strict import Headers, Piece, key_of, read, reverse
from tests.bpf.fuzz.translation import check_answer, check_error, check_translation
from tests.bpf.harness.datapath import Datapath, Verdict
from tests.bpf.harness.numbers import number

# enum lb_hook: where the entries of a flow count.
HOOKS = {
    "lb_host_ingress": 1,
    "lb_l3_ingress": 1,
    "lb_host_egress": 2,
    "lb_l3_egress": 2,
    "lb_pod_ingress": 3,
    "lb_pod_egress": 4,
}
_TUPLE, _HOOK_AT, _STATE_AT, _PEER_STATE_AT = 40, 89, 90, 102
_TCP, _SYN_ALONE = 6, 0x16


class Shot(NamedTuple):
    """A frame, and where it is seen."""

    program: str
    ifindex: int
    frame: bytes
    gso_size: int = 0

    @property
    def network(self) -> int:
        """Where the IP header is."""
        return 0 if "l3" in self.program else 14

    def __str__(self) -> str:
        size = f" gso_size={self.gso_size}" if self.gso_size else ""
        return f"{self.program} ifindex={self.ifindex}{size} {self.frame.hex()}"


class Offers(NamedTuple):
    """What new flows may become: backends by frontend, and what may stand for their clients.

    A frontend is address, port and protocol; a backend and a client's stand-in begin with an
    address.
    """

    frontends: Mapping[bytes, frozenset[bytes]]
    stand_ins: frozenset[bytes]


class Judge:
    """Runs programs over frames. AssertionError: what one did was wrong."""

    def __init__(self, datapath: Datapath, offers: Offers) -> None:
        self._datapath, self._offers = datapath, offers
        self._maps = datapath.maps
        # The tuples whose flows are moved on by what was run.
        self.touched: set[bytes] = set()
        # The last frame that came out.
        self.out = b""
        self.begin()

    def begin(self) -> None:
        """Look at the maps anew, which somebody else has written."""
        self._established = self._read_established()
        self._drops = self._read_drops()
        self.touched.clear()

    def run(self, shot: Shot) -> str:
        """Run a program; in a word what became of the frame."""
        headers = read(shot.frame, shot.network, shot.gso_size)
        key, known = self._known(headers)
        verdict, out = self._datapath.run_bytes(
            shot.program, shot.frame, ifindex=shot.ifindex, gso_size=shot.gso_size
        )
        self.out = out
        self._check_flows(headers, key, known)
        drops, self._drops = self._drops, self._read_drops()
        dropped = 0 if drops == self._drops else _total(self._drops) - _total(drops)
        if verdict == Verdict.DROP:
            assert dropped == 1
            return "dropped"
        if dropped:
            assert (dropped, verdict) == (1, Verdict.REDIRECT)
            assert headers, "an answer to what is malformed"
            check_answer(shot.frame, _without_link(shot, out), headers)
            return "answered"
        if out == shot.frame:
            assert verdict == Verdict.PASS
            return "passed"
        assert headers, "malformed, and sent out altered"
        out = _without_link(shot, out)
        after = read(out, shot.network, shot.gso_size, shot.frame[12:14])
        self._check_way(shot, headers, known, after)
        check = check_error if headers.quote else check_translation
        check(shot.frame, out, headers, leaves=verdict == Verdict.REDIRECT)
        return "error translated" if headers.quote else "translated"

    def _known(self, headers: Headers | None) -> tuple[bytes, bytes]:
        """The tuple whose entry decides, and that entry; empty if there is none."""
        if headers is None:
            return b"", b""
        key = reverse(headers.quote.key) if headers.quote else headers.key
        if headers.piece is Piece.LATER:
            first = self._maps["lb_fragments"].lookup(key)
            if first is None:
                return b"", b""
            key = key_of(headers.source, headers.target, first[8:12], headers.protocol)
        return key, self._established.get(key) or self._maps["lb_ct_short"].lookup(key) or b""

    def _check_flows(self, headers: Headers | None, key: bytes, known: bytes) -> None:
        """Established flows change by their own packets alone; and one that has ended may go."""
        before, self._established = self._established, self._read_established()
        own: set[bytes] = set()
        if headers and not headers.quote:
            own = {key, reverse(known[:_TUPLE])}
            self.touched |= own
        if before == self._established:
            return
        for each in before.keys() | self._established.keys():
            old, new = before.get(each), self._established.get(each)
            if old != new and each not in own:
                assert old, "a flow is established that is not the packet's"
                assert not new, "a packet changed a flow that is not its own"
                state = old[_STATE_AT] | old[_PEER_STATE_AT]
                assert state & CtState.LB_CT_CLOSED, "a packet ended another flow"

    def _check_way(self, shot: Shot, headers: Headers, known: bytes, after: Headers | None) -> None:
        """It goes where the flow goes, or where the frontend may send it."""
        assert after, "malformed after its translation"
        to = known[:_TUPLE]
        is_here = bool(known) and known[_HOOK_AT] == HOOKS[shot.program]
        if headers.quote:
            assert is_here
            assert after.quote
            assert after.quote.key == reverse(to)
            assert after.target == to[16:32]
            assert after.source in (to[:16], headers.source)
        elif headers.piece is Piece.LATER:
            assert is_here
            assert after.key[:32] == to[:32]
        elif not is_here or after.key != to:
            self._check_new_flow(shot, headers, after)

    def _check_new_flow(self, shot: Shot, headers: Headers, after: Headers) -> None:
        assert shot.program != "lb_pod_egress"
        if headers.protocol == _TCP:
            assert shot.frame[headers.transport + 13] & _SYN_ALONE == 0x02, "opened by no SYN"
        protocol = bytes([headers.protocol])
        backends: frozenset[bytes] = frozenset()
        for address in (headers.target, headers.target[:12] + bytes(4), bytes(16)):
            backends |= self._offers.frontends.get(
                address + headers.key[34:36] + protocol, backends
            )
        assert after.target + after.key[34:36] in backends, "it has no such backend"
        assert after.source in (headers.source, *self._offers.stand_ins)
        if after.source == headers.source and after.key[32:34] != headers.key[32:34]:
            assert number(after.key[33:31:-1]) >= 1024

    def _read_established(self) -> dict[bytes, bytes]:
        return dict(self._maps["lb_conntrack"].items())

    def _read_drops(self) -> bytes:
        return b"".join(chunk.values for chunk in self._maps["lb_count_drop"].chunks())


def _total(counts: bytes) -> int:
    return sum(number(counts[at : at + 8]) for at in range(0, len(counts), 8))


def _without_link(shot: Shot, out: bytes) -> bytes:
    """What leaves a device without Ethernet headers may have got an empty one."""
    is_longer = shot.network == 0 and out[:14] == bytes(14)
    return out[14:] if is_longer else out

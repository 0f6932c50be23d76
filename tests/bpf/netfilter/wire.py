# SPDX-License-Identifier: Apache-2.0
"""A step as a frame: its addresses for a given Service, and what the other side must receive."""

import struct
from typing import NamedTuple

from ebpflb.model.address import Protocol
from tests.bpf.fuzz.strict import read
from tests.bpf.fuzz.translation import residue
from tests.bpf.harness.packets import IPV4, NODE_MAC, SENDER_MAC, End, Kind, mapped
from tests.bpf.netfilter.script import Flaw, Sent, Side

LINK = 14
_FLAGS = {"F": 1, "S": 2, "R": 4, "P": 8, "A": 16, "U": 32}
_WINDOW = 65535


class Flow(NamedTuple):
    """The two ends. seen: the client's address and port, as the endpoint sees them."""

    kind: Kind
    client: End
    frontend: End
    backend: End
    seen: End

    def ends(self, side: Side) -> tuple[End, End]:
        """Source and destination of what a side sends."""
        return (self.client, self.frontend) if side is Side.CLIENT else (self.backend, self.seen)

    def frame(self, sent: Sent) -> bytes:
        """What a side sends."""
        source, target = self.ends(sent.side)
        addresses = [self._packed(each.address) for each in (source, target)]
        transport = self._transport(sent, source.port, target.port)
        at = 16 if self.kind.proto is Protocol.TCP else 6
        covered = b"".join(addresses) + struct.pack(">II", len(transport), self.kind.proto)
        check = 0xFFFF - residue(covered + transport)
        if sent.flaw is Flaw.CHECKSUM:
            check ^= 0x5A5A
        transport = transport[:at] + check.to_bytes(2, "big") + transport[at + 2 :]
        target_mac = SENDER_MAC if sent.flaw is Flaw.MAC else NODE_MAC
        link = bytes.fromhex((target_mac + SENDER_MAC).replace(":", ""))
        return link + self._network(addresses, len(transport)) + transport

    def is_delivered(self, sent: Sent, frame: bytes) -> bool:
        """Whether this is what the other side must receive."""
        source, target = self.ends(sent.side.other)
        headers = read(frame, LINK)
        if headers is None or headers.protocol != self.kind.proto:
            return False
        ports = target.port.to_bytes(2, "big") + source.port.to_bytes(2, "big")
        wanted = (mapped(target.address), mapped(source.address), ports)
        return (headers.source, headers.target, headers.ports) == wanted

    def _packed(self, address: str) -> bytes:
        return mapped(address)[-4 if self.kind.net is IPV4 else -16 :]

    def _network(self, addresses: list[bytes], length: int) -> bytes:
        if self.kind.net is not IPV4:
            head = struct.pack(">IHBB", 6 << 28, length, self.kind.proto, 64)
            return b"\x86\xdd" + head + b"".join(addresses)
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + length, 0, 0x4000, 64, self.kind.proto, 0)
        check = 0xFFFF - residue(head + b"".join(addresses))
        return b"\x08\x00" + head[:10] + check.to_bytes(2, "big") + b"".join(addresses)

    def _transport(self, sent: Sent, source: int, target: int) -> bytes:
        payload = b"x" * sent.size
        if self.kind.proto is Protocol.UDP:
            return struct.pack(">HHHH", source, target, 8 + sent.size, 0) + payload
        flags = sum(_FLAGS[each] for each in sent.flags)
        options = bytes([3, 3, sent.scale, 0]) if "S" in sent.flags and sent.scale else b""
        words = (20 + len(options)) // 4 << 12 | flags
        head = struct.pack(">HHIIHHHH", source, target, sent.seq, sent.ack, words, _WINDOW, 0, 0)
        return head + options + payload


def arrived(frame: bytes) -> bytes:
    """The frame as the next node receives it."""
    return bytes.fromhex((NODE_MAC + SENDER_MAC).replace(":", "")) + frame[12:]

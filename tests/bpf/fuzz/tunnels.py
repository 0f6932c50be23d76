# SPDX-License-Identifier: Apache-2.0
"""DSR tunnels in plain Python: which frames are valid tunnels, and what they contain.

RFC 8926, with one option, of an experimental class, that names the pod.
"""

from typing import NamedTuple

from tests.bpf.fuzz.translation import residue
from tests.bpf.harness.packets import mapped

PORT = 6089
KEY = bytes.fromhex("0123456789abcdef")
ADDRESSES = {4: ("8.0.0.1", "8.0.0.3"), 6: ("2001:db8:86dd::1", "2001:db8:86dd::3")}
"""This node and the other one."""

_ETHERTYPES = {4: b"\x08\x00", 6: b"\x86\xdd"}
_MAPPED = bytes(10) + b"\xff\xff"
_IP, _ADDRESS, _UDP, _GENEVE = {4: 20, 6: 40}, {4: 4, 6: 16}, 8, 40
_PROTOCOL_UDP, _DONT_FRAGMENT = 17, b"\x40\x00"
_OPTION = b"\xff\x6c\x81\x07"
_CONTROL, _CRITICAL = 0x80, 0x40


class Tunnel(NamedTuple):
    """Addresses have 16 bytes. `inner`: the packet in the tunnel; `kind`: its ethertype."""

    source: bytes
    target: bytes
    is_control: bool
    kind: bytes
    pod: bytes
    words: bytes
    key: bytes
    inner: bytes

    @property
    def is_returned(self) -> bool:
        """Whether the pod's node sent it back."""
        return self.words[2:] != bytes(2)


def read_tunnel(frame: bytes, network: int, ethertype: bytes) -> Tunnel | None:
    """None if its format or port is not that of a DSR tunnel."""
    version = {kind: number for number, kind in _ETHERTYPES.items()}.get(ethertype)
    if version is None:
        return None
    length = _IP[version]
    end = network + length + _UDP + _GENEVE
    if len(frame) < end or not _is_plain_udp(frame[network : network + length], version):
        return None
    udp = frame[network + length :]
    geneve = udp[_UDP : _UDP + _GENEVE]
    if int.from_bytes(udp[2:4], "big") != PORT or geneve[0] != 8 or geneve[8:12] != _OPTION:
        return None
    source, target = _ends(frame[network:], version)
    return Tunnel(
        source=source,
        target=target,
        is_control=bool(geneve[1] & _CONTROL),
        kind=geneve[2:4],
        pod=geneve[12:28],
        words=geneve[28:32],
        key=geneve[32:40],
        inner=frame[:network] + frame[end:],
    )


def _is_plain_udp(header: bytes, version: int) -> bool:
    if version == 6:
        return header[6] == _PROTOCOL_UDP
    is_whole = not int.from_bytes(header[6:8], "big") & 0x3FFF
    return header[0] & 15 == 5 and is_whole and header[9] == _PROTOCOL_UDP


def _ends(header: bytes, version: int) -> tuple[bytes, bytes]:
    if version == 6:
        return header[8:24], header[24:40]
    return _MAPPED + header[12:16], _MAPPED + header[16:20]


def wrap(frame: bytes, network: int, pod: bytes, words: tuple[int, int]) -> bytes:
    """The frame as the other node would send it here in a tunnel, for a pod.

    words: the pod's port, and whether the frame is returned.
    """
    version = frame[network] >> 4 if frame[network] >> 4 in _IP else 4
    inner = frame[network:]
    geneve = bytes([8, _CRITICAL]) + _ETHERTYPES[version] + bytes(4) + _OPTION
    geneve += pod + b"".join(each.to_bytes(2, "big") for each in words) + KEY
    length = _UDP + _GENEVE + len(inner)
    udp = (0xC001).to_bytes(2, "big") + PORT.to_bytes(2, "big") + length.to_bytes(2, "big")
    return frame[:network] + _header(version, length) + udp + bytes(2) + geneve + inner


def _header(version: int, length: int) -> bytes:
    here, there = (mapped(each)[-_ADDRESS[version] :] for each in ADDRESSES[version])
    if version == 6:
        start = bytes([0x60, 0, 0, 0]) + length.to_bytes(2, "big")
        return start + bytes([_PROTOCOL_UDP, 64]) + there + here
    start = bytes([0x45, 0]) + (20 + length).to_bytes(2, "big") + bytes(2) + _DONT_FRAGMENT
    start += bytes([64, _PROTOCOL_UDP])
    check = 0xFFFF - residue(start + bytes(2) + there + here)
    return start + check.to_bytes(2, "big") + there + here


def check_sent(frame: bytes, out: bytes, network: int, tunnel: Tunnel, *, is_whole: bool) -> None:
    """The packet in the tunnel is the original frame, sent by this node to the other one.

    `is_whole`: the frame can be compared.
    """
    version = frame[network] >> 4
    here, there = map(mapped, ADDRESSES[version])
    assert (tunnel.source, tunnel.target) == (here, there), "wrong tunnel endpoints"
    assert not tunnel.is_control
    assert tunnel.kind == _ETHERTYPES[version]
    if is_whole:
        assert tunnel.inner[network : len(frame)] == frame[network:], (
            "the packet in the tunnel was altered"
        )
    assert tunnel.words[2:] in (bytes(2), b"\0\1")
    assert tunnel.key == KEY
    if version == 4:
        assert residue(out[network : network + 20]) == 0, "wrong checksum"

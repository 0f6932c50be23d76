# SPDX-License-Identifier: Apache-2.0
"""The hash of client and frontend, as computed in bpf/flow_hash.h: 32-bit MurmurHash3.

Its words are in network byte order and its seed is fixed, so all nodes compute the same.
"""

from ebpflb.model.address import Address

_SEED = 0x65627066
_MASK = (1 << 32) - 1
_WORD = 4


def client_hash(client: Address) -> int:
    """Hash of the client's address alone."""
    return _murmur3(client)


def flow_hash(client: Address, client_port: int, frontend: tuple[Address, int, int]) -> int:
    """Hash of a client's address and port, and a frontend's address, port and protocol."""
    address, port, protocol = frontend
    return _murmur3(
        client + address + client_port.to_bytes(_WORD, "big") + (port << 16 | protocol).to_bytes(4)
    )


def place_of(hashed: int, size: int) -> int:
    """Maps a hash to one of `size` slots."""
    return hashed * size >> 32


def _murmur3(text: bytes) -> int:
    found = _SEED
    for at in range(0, len(text), _WORD):
        word = int.from_bytes(text[at : at + _WORD], "big") * 0xCC9E2D51 & _MASK
        word = _rotate_left(word, 15) * 0x1B873593 & _MASK
        found = (_rotate_left(found ^ word, 13) * 5 + 0xE6546B64) & _MASK
    found ^= len(text)
    found = (found ^ found >> 16) * 0x85EBCA6B & _MASK
    found = (found ^ found >> 13) * 0xC2B2AE35 & _MASK
    return found ^ found >> 16


def _rotate_left(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK

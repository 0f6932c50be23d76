# SPDX-License-Identifier: Apache-2.0
"""Looks up chains of netfilter by name, in nftables and in legacy iptables.

Everything concerns the network namespace of the calling thread. Chains are queried one at a time,
so the cost does not depend on how many there are.
"""

import contextlib
import errno
import socket
import struct
from collections.abc import Collection, Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.kernel.libc import ask_socket
from ebpflb.dataplane.kernel.modules import has_loaded
from ebpflb.dataplane.kernel.netlink import Netlink

NETLINK_NETFILTER = 12
# The table of a chain, and its name: NFTA_CHAIN_*.
NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME = 1, 3
NF_INET_LOCAL_OUT = 3
# The family of tables for both IPv4 and IPv6.
NFPROTO_INET = 1

_ATTRIBUTE = struct.Struct("=HH")
# IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES and those of IPv6. struct ipt_getinfo has the name, a word,
# for each hook the offsets of its chain and of its policy, and the number and size of all rules.
_GET_INFO, _GET_ENTRIES = 64, 65
_INFO = struct.Struct("=32s4x20s20s4xI")
# struct ipt_get_entries: the name, the size, and the rules, aligned to 8.
_ENTRIES = struct.Struct("=32sI4x")
# A chain starts with a target of this name, which contains the chain's (struct xt_error_target).
_CHAIN_HEAD = b"ERROR".ljust(30, b"\0")
_TRIES = 5


class NftRequest(IntEnum):
    """NFT_MSG_GETCHAIN of NFNL_SUBSYS_NFTABLES."""

    CHAINS = 10 << 8 | 4


class NftChain(NamedTuple):
    """`family`: AF_INET, AF_INET6 or NFPROTO_INET."""

    family: int
    table: str
    name: str


class LegacyLayout(NamedTuple):
    """A table of legacy iptables: where its hooks begin, where their policies are, and how long all
    its rules are, in bytes.
    """

    chains: bytes
    policies: bytes
    size: int


class Legacy(NamedTuple):
    """Legacy iptables of one family."""

    tables: Path
    family: int
    level: int

    def layout(self, table: str) -> LegacyLayout | None:
        """None for a table that is not in use: querying it would create it. OSError."""
        try:
            if table not in self.tables.read_text().split():
                return None
        except FileNotFoundError:
            return None
        with self._socket() as raw:
            wanted = _INFO.pack(table.encode(), b"", b"", 0)
            answer = ask_socket(raw.fileno(), self.level, _GET_INFO, wanted)
        return LegacyLayout(*_INFO.unpack(answer)[1:])

    def chains_of(self, table: str, names: Collection[str]) -> set[str]:
        """Which of these user-defined chains a table has. OSError."""
        for _ in range(_TRIES):
            found = self.layout(table)
            if found is None:
                break
            wanted = _ENTRIES.pack(table.encode(), found.size) + bytes(found.size)
            # EAGAIN: the size has changed.
            with contextlib.suppress(BlockingIOError), self._socket() as raw:
                rules = ask_socket(raw.fileno(), self.level, _GET_ENTRIES, wanted)
                return {each for each in names if _CHAIN_HEAD + each.encode() + b"\0" in rules}
        return set()

    def _socket(self) -> socket.socket:
        return socket.socket(self.family, socket.SOCK_RAW, socket.IPPROTO_RAW)


class LegacyChains:
    """Which of these user-defined chains a table has.

    To read 20,000 rules takes 60 ms. That happens only when their layout has changed.
    """

    def __init__(self, legacy: Legacy, table: str, names: Collection[str]) -> None:
        self._legacy, self._table, self._names = legacy, table, names
        self._layout: LegacyLayout | None = None
        self._found: set[str] = set()

    def present(self) -> set[str]:
        """OSError."""
        layout = self._legacy.layout(self._table)
        if layout is None:
            return set()
        if layout != self._layout:
            self._found = self._legacy.chains_of(self._table, self._names)
            self._layout = layout
        return self._found


LEGACY = (
    Legacy(Path("/proc/thread-self/net/ip_tables_names"), socket.AF_INET, socket.IPPROTO_IP),
    Legacy(Path("/proc/thread-self/net/ip6_tables_names"), socket.AF_INET6, socket.IPPROTO_IPV6),
)


def nft_chains(wanted: Collection[NftChain]) -> Iterator[NftChain]:
    """Which of these exist. OSError."""
    if not has_nftables():
        return
    with Netlink(NETLINK_NETFILTER) as netlink:
        for chain in wanted:
            names = ((NFTA_CHAIN_TABLE, chain.table), (NFTA_CHAIN_NAME, chain.name))
            body = nft_head(chain.family) + b"".join(_text(*each) for each in names)
            try:
                netlink.request(NftRequest.CHAINS, body)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
                continue
            yield chain


def has_nftables() -> bool:
    """Whether nftables is loaded: a request would make the kernel load the module."""
    return has_loaded("nf_tables", "nf_tables_getchain")


def nft_head(family: int) -> bytes:
    """struct nfgenmsg, which also begins requests about connection tracking."""
    return struct.pack("=BBH", family, 0, 0)


def _text(kind: int, value: str) -> bytes:
    payload = value.encode() + b"\0"
    head = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(payload), kind)
    return head + payload + bytes(-len(payload) % 4)

# SPDX-License-Identifier: Apache-2.0
"""kube-proxy's chains and jumps in the tables of iptables: both families, legacy and nft.

iptables-save without -t shows the tables that exist and makes none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ebpflb.dataplane.kube_proxy.chains import Removal, parse, removal, unreadable_tables
from ebpflb.dataplane.kube_proxy.nftables import iptables_chains
from ebpflb.dataplane.kube_proxy.tools import ask, find, proc_net, show
from ebpflb.errors import ProbeError

_PROGRAMS = ("iptables", "ip6tables")
_BACKENDS = ("legacy", "nft")
_TABLE_NAMES = {"iptables": "ip_tables_names", "ip6tables": "ip6_tables_names"}
# Seconds to wait for the lock that all users of legacy iptables share.
_LOCK_SECONDS = "30"


class Tool(NamedTuple):
    """One of the (up to) four: `name` is iptables-legacy, ip6tables-nft and so on."""

    name: str
    save: str
    restore: str


@dataclass(frozen=True, slots=True)
class Found:
    """What one tool sees. `unreadable`: tables that it cannot print."""

    tool: Tool
    removals: list[Removal]
    unreadable: list[str]


def look() -> tuple[list[Found], list[str]]:
    """What each tool sees, and the names of those that are not installed and not needed.

    ProbeError when one that is not installed is needed.
    """
    found, missing = [], []
    for program in _PROGRAMS:
        tools = dict(_tools(program))
        for backend in _BACKENDS:
            if backend in tools:
                found.append(_look(tools[backend]))
            else:
                _refuse_if_needed(program, backend)
                missing.append(f"{program}-{backend}")
    return found, missing


def remove(tool: Tool, what: Removal) -> None:
    """Take it out of the table, at once. EbpflbError: nothing of it was removed."""
    ask(tool.restore, "--noflush", "--wait", _LOCK_SECONDS, given=what.text())


def _look(tool: Tool) -> Found:
    saved = show(tool.save)
    removals = [each for table in parse(saved) if (each := removal(table))]
    # nat first: it brings what keeps established connections translated.
    removals.sort(key=lambda each: each.table != "nat")
    return Found(tool, removals, unreadable_tables(saved))


def _tools(program: str) -> Iterator[tuple[str, Tool]]:
    """Backend and tool. A distribution with only one backend may have no names with a backend."""
    plain = _tool(program)
    if plain:
        yield _backend_of(plain), plain
    for backend in _BACKENDS:
        tool = _tool(f"{program}-{backend}")
        if tool:
            yield backend, tool


def _tool(name: str) -> Tool | None:
    save, restore = find(f"{name}-save"), find(f"{name}-restore")
    return Tool(name, save, restore) if save and restore else None


def _backend_of(plain: Tool) -> str:
    return "nft" if "nf_tables" in ask(plain.save, "--version") else "legacy"


def _refuse_if_needed(program: str, backend: str) -> None:
    seen = _legacy_tables(program) if backend == "legacy" else _nft_chains(program)
    if seen:
        raise ProbeError(
            f"{program}-{backend}-save is not installed, and there is {seen[0]}: install iptables"
        )


def _legacy_tables(program: str) -> list[str]:
    return [f"a legacy table {name}" for name in proc_net(_TABLE_NAMES[program]).split()]


def _nft_chains(program: str) -> list[str]:
    family = "ip " if program == "iptables" else "ip6 "
    return [f"a chain {chain}" for chain in iptables_chains() if chain.startswith(family)]

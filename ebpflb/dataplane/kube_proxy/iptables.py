# SPDX-License-Identifier: Apache-2.0
"""kube-proxy's chains in iptables (both families, legacy and nft), and its tables in nftables.

iptables-save without -t prints existing tables and does not create any.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ebpflb.dataplane.kube_proxy.chains import (
    NFT_TABLE,
    Removal,
    is_of_kube_proxy,
    parse,
    removal,
    unreadable_tables,
)
from ebpflb.dataplane.kube_proxy.tools import proc_net, program_path, run, run_if_supported
from ebpflb.errors import EbpflbError, ProbeError

_PROGRAMS = ("iptables", "ip6tables")
_BACKENDS = ("legacy", "nft")
_TABLE_NAMES = {"iptables": "ip_tables_names", "ip6tables": "ip6_tables_names"}
# Seconds to wait for the lock that all users of legacy iptables share.
_LOCK_SECONDS = "30"

FAMILIES = ("ip", "ip6")
KEEPER_TABLE = "ebpflb-keep-nat"

# The kernel translates packets of established connections only as long as the network namespace
# has a chain of type nat (nf_nat_register_fn), and a rule that needs connection tracking
# (nf_ct_netns_get), which here matches no packet.
_REPLACE = f"""\
add table {{family}} {KEEPER_TABLE}
add chain {{family}} {KEEPER_TABLE} nat {{{{ type nat hook input priority 100; }}}}
add chain {{family}} {KEEPER_TABLE} unused
flush chain {{family}} {KEEPER_TABLE} unused
add rule {{family}} {KEEPER_TABLE} unused ct state established return
delete table {{family}} {NFT_TABLE}
"""


class Tool(NamedTuple):
    """One of up to four tools: `name` is iptables-legacy, ip6tables-nft and so on."""

    name: str
    save: str
    restore: str


@dataclass(frozen=True, slots=True)
class FoundRules:
    """What one tool shows. `unreadable`: tables that it cannot print."""

    tool: Tool
    removals: list[Removal]
    unreadable: list[str]


def find_rules() -> tuple[list[FoundRules], list[str]]:
    """What each tool shows, and the names of the missing tools.

    ProbeError if kube-proxy left something that only a missing tool can remove.
    """
    found, missing = [], []
    for program in _PROGRAMS:
        tools = dict(_tools(program))
        for backend in _BACKENDS:
            if backend in tools:
                found.append(_find_with(tools[backend]))
            else:
                _refuse_if_needed(program, backend)
                missing.append(f"{program}-{backend}")
    return found, missing


def saved_rules() -> Iterator[tuple[str, str]]:
    """For each installed tool: its name, and the output of its iptables-save."""
    for program in _PROGRAMS:
        for tool in dict(_tools(program)).values():
            yield tool.name, run_if_supported(tool.save)


def remove_rules(tool: Tool, what: Removal) -> None:
    """Remove everything from the tables, each atomically. EbpflbError: nothing was removed."""
    run(tool.restore, "--noflush", "--wait", _LOCK_SECONDS, stdin=what.text())


def _find_with(tool: Tool) -> FoundRules:
    saved = run_if_supported(tool.save)
    removals = [each for table in parse(saved) if (each := removal(table))]
    # nat first: it adds what keeps established connections translated.
    removals.sort(key=lambda each: each.table != "nat")
    return FoundRules(tool, removals, unreadable_tables(saved))


def _tools(program: str) -> Iterator[tuple[str, Tool]]:
    """Tools by backend. A distribution with one backend may have only `iptables-save`."""
    plain = _tool(program)
    if plain:
        yield "nft" if "nf_tables" in run(plain.save, "--version") else "legacy", plain
    for backend in _BACKENDS:
        tool = _tool(f"{program}-{backend}")
        if tool:
            yield backend, tool


def _tool(name: str) -> Tool | None:
    save, restore = program_path(f"{name}-save"), program_path(f"{name}-restore")
    return Tool(name, save, restore) if save and restore else None


def _refuse_if_needed(program: str, backend: str) -> None:
    if backend == "legacy":
        seen = [f"a legacy table {name}" for name in proc_net(_TABLE_NAMES[program]).split()]
    else:
        family = "ip " if program == "iptables" else "ip6 "
        seen = [f"a chain {chain}" for chain in _nft_chains() if chain.startswith(family)]
    if seen:
        raise ProbeError(
            f"{program}-{backend}-save is not installed, and there is {seen[0]}: install iptables"
        )


def kube_proxy_families(nft: str) -> list[str]:
    """The families in which kube-proxy has a table."""
    tables = parse_json(run_if_supported(nft, "--json", "list", "tables"), "table")
    found = {table["family"] for table in tables if table["name"] == NFT_TABLE}
    return [family for family in FAMILIES if family in found]


def remove_tables(nft: str, families: list[str]) -> None:
    """Delete kube-proxy's tables, all in one transaction."""
    run(nft, "-f", "-", stdin=removal_text(families))


def removal_text(families: list[str]) -> str:
    """The transaction that deletes kube-proxy's tables of these families."""
    return "".join(_REPLACE.format(family=family) for family in families)


def _nft_chains() -> list[str]:
    """kube-proxy's chains in tables of iptables-nft, in nft's words ("ip nat KUBE-SERVICES")."""
    nft = program_path("nft")
    if nft is None:
        return []
    return [
        f"{chain['family']} {chain['table']} {chain['name']}"
        for chain in parse_json(run_if_supported(nft, "--json", "list", "chains"), "chain")
        if chain["family"] in FAMILIES and is_of_kube_proxy(chain["table"], chain["name"])
    ]


def parse_json(answer: str, kind: str) -> list[dict[str, Any]]:
    """The objects of a kind in nft's JSON; none for empty text."""
    if not answer:
        return []
    try:
        objects = json.loads(answer)["nftables"]
        return [each[kind] for each in objects if kind in each]
    except (ValueError, KeyError, TypeError) as error:
        raise EbpflbError(f"nft --json printed something else: {answer[:80]!r}") from error

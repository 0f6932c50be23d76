# SPDX-License-Identifier: Apache-2.0
"""Which iptables chains are kube-proxy's, and the text that removes them from a table. Pure.

The names are those of kube-proxy 1.36 (pkg/proxy/iptables and pkg/proxy/ipvs, cleanup.go), plus
KUBE-XLB- and KUBE-FIRE-WALL of releases before 1.24. The kubelet's own chains (KUBE-FIREWALL,
KUBE-MARK-DROP, KUBE-KUBELET-CANARY, KUBE-IPTABLES-HINT) are not included.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

KEEPER = "EBPFLB-KEEP-NAT"

# The chain by which it is known in iptables and ipvs mode, and its table in nftables mode.
SERVICES = "KUBE-SERVICES"
NFT_TABLE = "kube-proxy"

# What iptables-save prints instead of a policy for user-defined chains.
_NO_POLICY = "-"
_CANARY = "KUBE-PROXY-CANARY"
_FORWARD = "KUBE-FORWARD"
_MARK, _MASQUERADE = "KUBE-MARK-MASQ", "KUBE-POSTROUTING"
# Chains that kube-proxy jumps to from built-in chains; only users' rules jump to its other ones.
_ENTRIES = {
    "filter": {
        "KUBE-EXTERNAL-SERVICES",
        _FORWARD,
        "KUBE-IPVS-FILTER",
        "KUBE-IPVS-OUT-FILTER",
        "KUBE-NODE-PORT",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-FIREWALL",
        SERVICES,
    },
    "nat": {SERVICES, _MASQUERADE},
    "mangle": set(),
}
_OTHERS = {
    "filter": {_CANARY, "KUBE-SOURCE-RANGES-FIREWALL"},
    "nat": {
        _CANARY,
        _MARK,
        "KUBE-FIRE-WALL",
        "KUBE-LOAD-BALANCER",
        "KUBE-NODE-PORT",
        "KUBE-NODEPORTS",
    },
    "mangle": {_CANARY},
}
_OF_SERVICES = re.compile(r"KUBE-(?:SVC|SVL|SEP|EXT|FW|XLB)-.+")

_CHAIN = re.compile(r":(\S+) (\S+) \[\d+:\d+\]")
# Nothing follows the name in a jump to a chain, and quoted text ends with a quote.
_RULE = re.compile(r"-A (\S+)(?: .*)? -[jg] (\S+)")
_UNREADABLE = re.compile(r"# Table .([a-z]+). is incompatible")


class Rule(NamedTuple):
    """A rule that jumps or goes to something; `text` is its line from iptables-save."""

    chain: str
    target: str
    text: str


@dataclass(slots=True)
class Table:
    """The relevant parts of a table: its chains with their policy, and the rules with a target."""

    name: str
    chains: dict[str, str] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Removal:
    """What to remove from a table.

    `jumps`: lines of iptables-save. `kept`: kube-proxy's chains that rules of others jump to, with
    one of those others. `drops_forwarded`: the table drops forwarded packets unless a rule accepts
    them, and kube-proxy's rules did.
    """

    table: str
    chains: tuple[str, ...]
    jumps: tuple[str, ...]
    kept: Mapping[str, str]
    drops_forwarded: bool = False

    def text(self) -> str:
        """Input for iptables-restore --noflush: applied atomically."""
        return "\n".join([f"*{self.table}", *self._commands(), "COMMIT", ""])

    def _commands(self) -> Iterator[str]:
        for chain in self.chains:
            yield f":{chain} - [0:0]"
        if self.table == "nat":
            yield from _keeper()
        for jump in self.jumps:
            yield f"-D{jump.removeprefix('-A')}"
        for chain in self.chains:
            yield f"-X {chain}"


def parse(saved: str) -> list[Table]:
    """The tables in the output of iptables-save. Lines of another form are ignored."""
    tables: list[Table] = []
    for line in saved.split("\n"):
        if line.startswith("*"):
            tables.append(Table(line[1:].strip()))
        elif tables and (chain := _CHAIN.fullmatch(line)):
            tables[-1].chains[chain[1]] = chain[2]
        elif tables and (rule := _RULE.fullmatch(line)):
            tables[-1].rules.append(Rule(rule[1], rule[2], line))
    return tables


def unreadable_tables(saved: str) -> list[str]:
    """The tables that iptables-nft-save could not print, because nft modified them."""
    return _UNREADABLE.findall(saved)


def removal(table: Table) -> Removal | None:
    """What to remove from a table. None: nothing of kube-proxy's, or only what others use."""
    own = {chain for chain in table.chains if is_of_kube_proxy(table.name, chain)}
    kept = _kept(table, own)
    gone = own - kept.keys()
    # What KUBE-MARK-MASQ marks is masqueraded in KUBE-POSTROUTING: both go, or both stay.
    needed = {_MASQUERADE} if _MARK in kept else set()
    jumps = [
        rule.text for rule in table.rules if rule.target in own - needed and _is_entry(table, rule)
    ]
    if not gone and not jumps:
        return None
    drops = _FORWARD in gone and table.chains.get("FORWARD") == "DROP"
    return Removal(table.name, tuple(sorted(gone)), tuple(jumps), kept, drops)


def is_of_kube_proxy(table: str, chain: str) -> bool:
    """Whether a chain of this name in this table is kube-proxy's."""
    if table == "nat" and _OF_SERVICES.fullmatch(chain):
        return True
    return chain in _ENTRIES.get(table, ()) or chain in _OTHERS.get(table, ())


def _is_entry(table: Table, rule: Rule) -> bool:
    """Whether kube-proxy added this rule to a chain that is not its own."""
    is_built_in = table.chains.get(rule.chain, _NO_POLICY) != _NO_POLICY
    return is_built_in and rule.target in _ENTRIES.get(table.name, ())


def _kept(table: Table, own: Collection[str]) -> dict[str, str]:
    """The chains that rules of others need, each with one of its users."""
    kept: dict[str, str] = {}
    for rule in table.rules:
        if rule.target in own and rule.chain not in own and not _is_entry(table, rule):
            kept.setdefault(rule.target, rule.chain)
    waiting = list(kept)
    jumps = _jumps_inside(table.rules, own)
    while waiting:
        chain = waiting.pop()
        for target in jumps.get(chain, ()):
            if target not in kept:
                kept[target] = chain
                waiting.append(target)
    if _MARK in kept and _MASQUERADE in own:
        kept.setdefault(_MASQUERADE, _MARK)
    return kept


def _jumps_inside(rules: Iterable[Rule], own: Collection[str]) -> dict[str, set[str]]:
    jumps: dict[str, set[str]] = {}
    for rule in rules:
        if rule.chain in own and rule.target in own:
            jumps.setdefault(rule.chain, set()).add(rule.target)
    return jumps


def _keeper() -> Iterator[str]:
    """A rule that no packet matches, but which needs connection tracking.

    The kernel translates packets of established connections only as long as some rule in the
    network namespace needs connection tracking (nf_ct_netns_get).
    """
    yield f":{KEEPER} - [0:0]"
    yield f"-A {KEEPER} -m conntrack --ctstate ESTABLISHED -j RETURN"

# SPDX-License-Identifier: Apache-2.0
"""Removes what kube-proxy left in this node's kernel: iptables, nftables, ipvs.

Connections established through kube-proxy's NAT continue: their translation is in the kernel's
connection tracking. The kernel applies it only while rules need it, so a chain of ours that changes
nothing stays (KEEPER in iptables, KEEPER_TABLE in nftables). Connections through ipvs end. Rules of
others are not changed.
"""

from dataclasses import dataclass

from ebpflb.dataplane.kube_proxy.iptables import (
    FoundRules,
    find_rules,
    kube_proxy_families,
    remove_rules,
    remove_tables,
)
from ebpflb.dataplane.kube_proxy.ipvs import find_ipvs, remove_ipvs
from ebpflb.dataplane.kube_proxy.tools import program_path


@dataclass(frozen=True, slots=True)
class RemovedRules:
    """Chains and jump rules of one table; `tool` is iptables-nft, ip6tables-legacy and so on."""

    tool: str
    table: str
    chains: tuple[str, ...]
    jumps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed, or what would be.

    `kept`: chains of kube-proxy's that others use. `unseen`: what could not be checked, and why.
    `warnings`: what may stop working.
    """

    iptables: tuple[RemovedRules, ...] = ()
    nftables: tuple[str, ...] = ()
    virtual_services: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    ip_sets: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """One line for each thing, without a leading "removed"."""
        lines = [
            f"{rules.tool} table {rules.table}: {len(rules.chains)} chains, "
            f"{len(rules.jumps)} jumps to them"
            for rules in self.iptables
        ]
        lines += [f"nftables table {table}" for table in self.nftables]
        lines += [f"ipvs virtual service {service}" for service in self.virtual_services]
        lines += [f"device {device}" for device in self.devices]
        return [*lines, *(f"IP set {name}" for name in self.ip_sets)]


def remove_kube_proxy(dry_run: bool) -> Removed:
    """Remove kube-proxy's state from the network namespace of the calling thread.

    Needs root. Everything is checked first; ProbeError names a tool that is missing and needed,
    EbpflbError one that failed. What was removed before a failure stays removed: call it again.
    Each table of iptables, and all of nftables, is changed atomically. `dry_run` changes nothing.
    """
    found, missing = find_rules()
    program = program_path("nft")
    families = kube_proxy_families(program) if program else []
    of_ipvs, not_installed = find_ipvs()
    if not dry_run:
        for each in found:
            for what in each.removals:
                remove_rules(each.tool, what)
        if program and families:
            remove_tables(program, families)
        remove_ipvs(of_ipvs)
    missing += ([] if program else ["nft"]) + not_installed
    return Removed(
        iptables=tuple(
            RemovedRules(each.tool.name, what.table, what.chains, what.jumps)
            for each in found
            for what in each.removals
        ),
        nftables=tuple(f"{family} kube-proxy" for family in families),
        virtual_services=tuple(map(str, of_ipvs.services)),
        devices=(of_ipvs.device,) if of_ipvs.device else (),
        ip_sets=of_ipvs.sets,
        kept=tuple(line for each in found for line in _kept(each)),
        unseen=(*(f"{name} is not installed" for name in missing), *_unreadable(found)),
        warnings=tuple(line for each in found for line in _warnings(each)),
    )


def _kept(found: FoundRules) -> list[str]:
    return [
        f"{found.tool.name} table {what.table}: {chain}, which {user} jumps to"
        for what in found.removals
        for chain, user in what.kept.items()
    ]


def _warnings(found: FoundRules) -> list[str]:
    return [
        f"{found.tool.name}: the policy of FORWARD is DROP, and kube-proxy's KUBE-FORWARD accepted "
        "Service traffic: another rule (such as the CNI's) must accept traffic to pods"
        for what in found.removals
        if what.drops_forwarded
    ]


def _unreadable(found: list[FoundRules]) -> list[str]:
    return [
        f"{each.tool.name} cannot read the table {table}, which nft has changed"
        for each in found
        for table in each.unreadable
    ]

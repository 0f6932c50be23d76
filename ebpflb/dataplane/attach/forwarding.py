# SPDX-License-Identifier: Apache-2.0
"""Who routes masqueraded packets: the programs, or the kernel, where policies must see them.

Whoever enforces NetworkPolicy in netfilter is known by a device that it makes on every node or for
every pod, or by a chain. Chains are from the sources, as of August 2026, of Calico (felix),
kube-router, kube-network-policies (which kindnet runs too), Azure NPM and Weave Net. A packet that
is redirected is not encrypted, nor dropped, by IPsec either.

Cilium is none of them: its policies are in programs at its devices. In netfilter it has a rule that
masquerades whatever leaves by cilium_host from outside, marks or not, so that the stack's way would
have each packet masqueraded twice, and Cilium's programs there end the chain before ours. So IPsec
that Cilium may have set up is no reason either.
"""

import contextlib
import socket
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from ebpflb.dataplane.kernel.netfilter import (
    LEGACY,
    NFPROTO_INET,
    Legacy,
    LegacyLayout,
    NftChain,
    nft_chains,
)
from ebpflb.dataplane.kernel.xfrm import has_output_policies

_DEVICES = {
    "cali*": "Calico",
    "antrea-gw*": "Antrea",
    "kube-bridge": "kube-router",
    "weave": "Weave Net",
    "ovn-k8s-mp*": "OVN-Kubernetes",
    "ovn0": "Kube-OVN",
}
CILIUM = "cilium_host"
_IPTABLES = "filter"
_IPTABLES_CHAINS = {
    "cali-FORWARD": "Calico",
    "KUBE-ROUTER-FORWARD": "kube-router",
    "WEAVE-NPC": "Weave Net",
    "AZURE-NPM": "Azure NPM",
}
_NFT_CHAINS = {
    NftChain(socket.AF_INET, "calico", "filter-FORWARD"): "Calico",
    NftChain(socket.AF_INET6, "calico", "filter-FORWARD"): "Calico",
    NftChain(socket.AF_INET, "kube-router-filter-ipv4", "KUBE-ROUTER-FORWARD"): "kube-router",
    NftChain(socket.AF_INET6, "kube-router-filter-ipv6", "KUBE-ROUTER-FORWARD"): "kube-router",
    NftChain(NFPROTO_INET, "kube-network-policies", "postrouting"): "kube-network-policies",
    NftChain(NFPROTO_INET, "kindnet-network-policies", "postrouting"): "kindnet",
    **{
        NftChain(family, _IPTABLES, chain): engine
        for family in (socket.AF_INET, socket.AF_INET6)
        for chain, engine in _IPTABLES_CHAINS.items()
    },
}


class PolicyEngine(NamedTuple):
    """What enforces policies in the kernel of this node, and the sign by which it was found."""

    name: str
    sign: str
    what: str = "NetworkPolicy"


class Forwarding(NamedTuple):
    """`way`: "redirect" by the programs, or "stack". `why`: for people."""

    way: str
    why: str


IPSEC = PolicyEngine("IPsec", "ip xfrm policy, direction out", "policies")


class PolicyRules:
    """Looks for rules of policies, in the calling thread's network namespace.

    A look takes some 2 ms. It takes 60 ms when 20,000 rules of legacy iptables must be read, which
    are read again only when their layout has changed.
    """

    def __init__(self) -> None:
        self._legacy: dict[Legacy, tuple[LegacyLayout, set[str]]] = {}

    def engine(self) -> PolicyEngine | None:
        """What the kernel does not tell this time is as nothing: the next look may find it."""
        with contextlib.suppress(OSError):
            for chain in nft_chains(_NFT_CHAINS):
                sign = f"chain {chain.name} of table {chain.table}"
                return PolicyEngine(_NFT_CHAINS[chain], sign)
        with contextlib.suppress(OSError):
            for legacy in LEGACY:
                for name in sorted(self._chains_of(legacy)):
                    sign = f"chain {name} of table {_IPTABLES}"
                    return PolicyEngine(_IPTABLES_CHAINS[name], sign)
        with contextlib.suppress(OSError):
            if has_output_policies():
                return IPSEC
        return None

    def _chains_of(self, legacy: Legacy) -> set[str]:
        layout = legacy.layout(_IPTABLES)
        if layout is None:
            return set()
        known, chains = self._legacy.get(legacy, (None, set[str]()))
        if known != layout:
            chains = legacy.chains_of(_IPTABLES, _IPTABLES_CHAINS)
            self._legacy[legacy] = layout, chains
        return chains


def policy_engine(devices: Iterable[str], rules: PolicyRules) -> PolicyEngine | None:
    """Who enforces policies here; None: nobody who is known. `devices`: names of all."""
    names = list(devices)
    for pattern, engine in _DEVICES.items():
        if any(fnmatchcase(name, pattern) for name in names):
            return PolicyEngine(engine, f"device {pattern}")
    found = rules.engine()
    return None if found == IPSEC and CILIUM in names else found


def forwarding(option: str, engine: PolicyEngine | None) -> Forwarding:
    """The way that the setting `forwarding` means on this node."""
    if option != "auto":
        return Forwarding(option, "the option forwarding")
    if engine is None:
        return Forwarding("redirect", "auto: nothing was found here that enforces policies")
    return Forwarding("stack", f"auto: {engine.name} enforces {engine.what} here ({engine.sign})")

# SPDX-License-Identifier: Apache-2.0
"""Who routes masqueraded packets: our programs, or the kernel if policies must see the packets.

Software that enforces NetworkPolicy in netfilter is recognized by a device that it makes on every
node or for every pod, or by a chain. The chain names are from the sources, as of August 2026, of
Calico (felix), kube-router, kube-network-policies (which kindnet runs too), Azure NPM and Weave
Net. IPsec counts as well: it would neither encrypt nor drop a redirected packet.

Cilium is not included: its policies are in programs at its devices. It also has a netfilter rule
that masquerades everything from outside that leaves by cilium_host, regardless of marks, so packets
routed by the stack would be masqueraded twice, and Cilium's programs there end the chain before
ours. For the same reason, IPsec that Cilium may have set up does not count.
"""

import contextlib
import socket
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from ebpflb.dataplane.kernel.netfilter import (
    LEGACY,
    NFPROTO_INET,
    LegacyChains,
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
    """What enforces policies in this node's kernel, and how it was recognized."""

    name: str
    sign: str
    what: str = "NetworkPolicy"


class Forwarding(NamedTuple):
    """`way`: "redirect" by the programs, or "stack". `why`: for users."""

    way: str
    why: str


IPSEC = PolicyEngine("IPsec", "ip xfrm policy, direction out", "policies")


class PolicyRules:
    """Looks for policy rules in the calling thread's network namespace, in about 2 ms."""

    def __init__(self) -> None:
        self._legacy = [LegacyChains(each, _IPTABLES, _IPTABLES_CHAINS) for each in LEGACY]

    def engine(self) -> PolicyEngine | None:
        """Whatever the kernel does not report counts as absent; a later call may find it."""
        with contextlib.suppress(OSError):
            for chain in nft_chains(_NFT_CHAINS):
                sign = f"chain {chain.name} of table {chain.table}"
                return PolicyEngine(_NFT_CHAINS[chain], sign)
        with contextlib.suppress(OSError):
            for legacy in self._legacy:
                for name in sorted(legacy.present()):
                    sign = f"chain {name} of table {_IPTABLES}"
                    return PolicyEngine(_IPTABLES_CHAINS[name], sign)
        with contextlib.suppress(OSError):
            if has_output_policies():
                return IPSEC
        return None


def policy_engine(devices: Iterable[str], rules: PolicyRules) -> PolicyEngine | None:
    """Who enforces policies here; None if nobody known does. `devices`: the names of all."""
    names = list(devices)
    for pattern, engine in _DEVICES.items():
        if any(fnmatchcase(name, pattern) for name in names):
            return PolicyEngine(engine, f"device {pattern}")
    found = rules.engine()
    return None if found == IPSEC and CILIUM in names else found


def forwarding(option: str, engine: PolicyEngine | None) -> Forwarding:
    """What the setting `forwarding` means on this node."""
    if option != "auto":
        return Forwarding(option, "the option forwarding")
    if engine is None:
        return Forwarding("redirect", "auto: no policy engine found")
    return Forwarding("stack", f"auto: {engine.name} enforces {engine.what} here ({engine.sign})")

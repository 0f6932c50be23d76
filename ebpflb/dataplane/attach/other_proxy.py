# SPDX-License-Identifier: Apache-2.0
"""Whether kube-proxy's rules are in this node's kernel, in any of its modes.

In iptables and ipvs mode it has the chain KUBE-SERVICES, in nftables mode a table of its own.
"""

import socket

from ebpflb.dataplane.kernel.netfilter import LEGACY, LegacyChains, NftChain, nft_chains
from ebpflb.dataplane.kube_proxy.chains import NFT_TABLE, SERVICES

_IPTABLES = "nat"
_NFT_CHAINS = [
    NftChain(family, table, chain)
    for family in (socket.AF_INET, socket.AF_INET6)
    for table, chain in ((NFT_TABLE, "services"), (_IPTABLES, SERVICES))
]


class ProxyRules:
    """Looks for them in the calling thread's network namespace."""

    def __init__(self) -> None:
        self._legacy = [LegacyChains(each, _IPTABLES, [SERVICES]) for each in LEGACY]

    def sign(self) -> str:
        """What shows that they are here; empty if nothing does. OSError."""
        for chain in nft_chains(_NFT_CHAINS):
            return f"chain {chain.name} of table {chain.table}"
        if any(legacy.present() for legacy in self._legacy):
            return f"chain {SERVICES} of table {_IPTABLES}"
        return ""

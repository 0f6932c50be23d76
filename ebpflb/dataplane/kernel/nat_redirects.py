# SPDX-License-Identifier: Apache-2.0
"""Whether a network namespace redirects its own traffic, as the sidecar of a service mesh does.

Its iptables rules (Istio, Linkerd, Kuma) send the connections of the pod's processes through a
proxy, which asks the kernel for the original destination (SO_ORIGINAL_DST).
"""

import socket

from ebpflb.dataplane.kernel.netfilter import (
    LEGACY,
    NETLINK_NETFILTER,
    NF_INET_LOCAL_OUT,
    Legacy,
    NftRequest,
    has_nftables,
    nft_head,
)
from ebpflb.dataplane.kernel.netlink import Netlink, attributes, text

_HEAD = nft_head(socket.AF_UNSPEC)
# NFTA_CHAIN_*, and NFTA_HOOK_HOOKNUM within NFTA_CHAIN_HOOK; their values are in network order.
_HOOK, _USE, _TYPE = 4, 6, 7
_HOOK_NUMBER = 1


def redirects_own_traffic() -> bool:
    """Whether the calling thread's namespace has NAT rules for what its own processes send.

    OSError if the kernel refuses to tell.
    """
    return any(map(_has_legacy_nat, LEGACY)) or _has_nft_nat()


def _has_legacy_nat(legacy: Legacy) -> bool:
    """Whether the table `nat` is in use and has rules for outgoing traffic."""
    layout = legacy.layout("nat")
    place = slice(4 * NF_INET_LOCAL_OUT, 4 * NF_INET_LOCAL_OUT + 4)
    return bool(layout and layout.chains[place] != layout.policies[place])


def _has_nft_nat() -> bool:
    if not has_nftables():
        return False
    with Netlink(NETLINK_NETFILTER) as netlink:
        return any(_is_nat_of_output(body) for body in netlink.dump(NftRequest.CHAINS, _HEAD))


def _is_nat_of_output(body: bytes) -> bool:
    chain = attributes(body, len(_HEAD))
    hook = attributes(chain.get(_HOOK, b"")).get(_HOOK_NUMBER, b"")
    return (
        text(chain.get(_TYPE, b"")) == "nat"
        and int.from_bytes(hook, "big") == NF_INET_LOCAL_OUT
        and bool(hook)
        and int.from_bytes(chain.get(_USE, b""), "big") > 0
    )

# SPDX-License-Identifier: Apache-2.0
"""What the hooks of connect() and sendmsg() would do: the steps of bpf/socket.h, in its order."""

from sys import byteorder

from ebpflb.dataplane.explain.choice import pick
from ebpflb.dataplane.explain.explained import Client, Fate, Side, Step
from ebpflb.dataplane.explain.lookups import Lookups, is_own_host
from ebpflb.dataplane.explain.words import WORDS, ended, why_no_frontend
from ebpflb.dataplane.layout.enums import AddrFlag, DescFlag, DropReason, NetnsFlag, SettingFlag
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.model.address import Address, Family, Protocol, family_of
from ebpflb.model.plan import FrontendKey

_OURS = AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_EXTERNAL | AddrFlag.LB_ADDR_NODE


def at_socket(lookups: Lookups, client: Client, target: FrontendKey) -> Step:
    """lb_socket_select(): connect(), and sendmsg() of a socket that has not sent there before."""
    place = "socket hook"
    if target.protocol is Protocol.SCTP:
        return Step(place, Fate.PASSES, "SCTP is translated at tc only")
    desc, is_refused = _socket_match(lookups, client, target)
    if desc is None and not is_refused:
        return Step(place, Fate.PASSES, why_no_frontend(lookups, target))
    if not _socket_is_ours(lookups, client, target):
        return Step(place, Fate.PASSES, "pods under tc cover are translated there", desc)
    if desc is None:
        return ended(place, None, DropReason.LB_DROP_UNKNOWN_PORT)
    return _socket_client(lookups, client, desc, place) or _socket_choose(
        lookups, client, target, desc
    )


def _socket_match(
    lookups: Lookups, client: Client, key: FrontendKey
) -> tuple[DescRecord | None, bool]:
    """The frontend, or whether the port is refused.

    lb_socket_may_be_service(), lb_socket_match().
    """
    if is_own_host(key.address):
        is_host = client.netns_flags & NetnsFlag.LB_NETNS_HOST
        accepts = lookups.has_setting(SettingFlag.LB_SETTING_LOCALHOST)
        is_ipv4 = family_of(key.address) is Family.IPV4
        return lookups.node_port_lookup(key) if is_host and accepts and is_ipv4 else None, False
    if not lookups.filter_flags(key.address) & _OURS:
        return None, False
    found = lookups.frontend_lookup(key)
    flags = lookups.addr_flags_of(key.address)
    if found is None and flags & AddrFlag.LB_ADDR_NODE_PORT:
        found = lookups.node_port_lookup(key)
    return found, found is None and bool(flags & AddrFlag.LB_ADDR_CLUSTER_IP)


def _socket_is_ours(lookups: Lookups, client: Client, key: FrontendKey) -> bool:
    everybody = not lookups.has_setting(SettingFlag.LB_SETTING_SOCKET_HOST)
    if key.protocol is Protocol.TCP and everybody:
        return True
    return not client.netns_flags & NetnsFlag.LB_NETNS_COVERED


def _socket_client(lookups: Lookups, client: Client, desc: DescRecord, place: str) -> Step | None:
    """lb_socket_check_client() and lb_source_range_of_socket(); None: go on."""
    has_ranges = desc.flags & DescFlag.LB_DESC_SOURCE_RANGES
    if not (has_ranges or desc.affinity_timeout or desc.flags & DescFlag.LB_DESC_MASQUERADE):
        return None
    if client.netns_flags & NetnsFlag.LB_NETNS_COVERED:
        why = "left to tc, because the client's address decides"
        return Step(place, Fate.PASSES, why, desc, Side.THIS_NODE)
    if not has_ranges:
        return None
    reason = DropReason.LB_DROP_SOURCE_RANGE
    if not client.netns_flags & NetnsFlag.LB_NETNS_HOST:
        why = "the address of a pod without tc cover is not known, and so in no source range"
        return Step(place, Fate.REFUSED, why, desc, Side.THIS_NODE, reason)
    if lookups.is_allowed(desc, lookups.node_address(family_of(desc.address))):
        return None
    why = f"{WORDS[reason]}; left to tc, which drops"
    return Step(place, Fate.PASSES, why, desc, Side.THIS_NODE, reason)


def _socket_choose(lookups: Lookups, client: Client, target: FrontendKey, desc: DescRecord) -> Step:
    place, side = "socket hook", Side.THIS_NODE
    picked = pick(lookups, desc, side, client_of_socket(lookups, client, target.address))
    if picked.reason is DropReason.LB_DROP_NO_LOCAL_ENDPOINT:
        why = f"{WORDS[picked.reason]}; left to tc, which drops"
        return Step(place, Fate.PASSES, why, desc, side, picked.reason)
    if picked.reason:
        return ended(place, desc, picked.reason, side)
    found = picked.candidates
    return Step(place, Fate.TRANSLATED, "", desc, side, None, found, picked.affinity)


def client_of_socket(lookups: Lookups, client: Client, peer: Address) -> Address:
    """Who the client is for session affinity (sock_client.h)."""
    family = family_of(peer)
    if client.netns_flags & NetnsFlag.LB_NETNS_HOST:
        return lookups.node_address(family)
    cookie = client.cookie.to_bytes(8, byteorder)
    return Address(bytes(4) + int(family).to_bytes(4, "big") + cookie)

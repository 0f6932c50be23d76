# SPDX-License-Identifier: Apache-2.0
"""kube-proxy's tables of nftables, and what keeps established connections translated after them."""

import json
from typing import Any

from ebpflb.dataplane.kube_proxy.chains import is_kube_proxys
from ebpflb.dataplane.kube_proxy.tools import ask, find, show
from ebpflb.errors import EbpflbError

FAMILIES = ("ip", "ip6")
KEEPER_TABLE = "ebpflb-keep-nat"

_TABLE = "kube-proxy"
# The kernel translates the packets of established connections only as long as the network
# namespace has a chain of type nat (nf_nat_register_fn), and a rule that needs connection tracking
# (nf_ct_netns_get), which here no packet meets.
_REPLACE = f"""\
add table {{family}} {KEEPER_TABLE}
add chain {{family}} {KEEPER_TABLE} nat {{{{ type nat hook input priority 100; }}}}
add chain {{family}} {KEEPER_TABLE} unused
flush chain {{family}} {KEEPER_TABLE} unused
add rule {{family}} {KEEPER_TABLE} unused ct state established return
delete table {{family}} {_TABLE}
"""


def kube_proxy_families(nft: str) -> list[str]:
    """The families in which there is a table of kube-proxy's."""
    tables = parse(show(nft, "--json", "list", "tables"), "table")
    found = {table["family"] for table in tables if table["name"] == _TABLE}
    return [family for family in FAMILIES if family in found]


def remove_tables(nft: str, families: list[str]) -> None:
    """Delete kube-proxy's tables, all in one transaction."""
    ask(nft, "-f", "-", given=removal_text(families))


def removal_text(families: list[str]) -> str:
    """The transaction that deletes kube-proxy's tables of these families."""
    return "".join(_REPLACE.format(family=family) for family in families)


def iptables_chains() -> list[str]:
    """kube-proxy's chains in tables of iptables-nft, as nft sees them ("ip nat KUBE-SERVICES")."""
    nft = find("nft")
    if nft is None:
        return []
    return [
        f"{chain['family']} {chain['table']} {chain['name']}"
        for chain in parse(show(nft, "--json", "list", "chains"), "chain")
        if chain["family"] in FAMILIES and is_kube_proxys(chain["table"], chain["name"])
    ]


def parse(answer: str, kind: str) -> list[dict[str, Any]]:
    """The objects of a kind in nft's JSON; none in an empty text."""
    if not answer:
        return []
    try:
        objects = json.loads(answer)["nftables"]
        return [each[kind] for each in objects if kind in each]
    except (ValueError, KeyError, TypeError) as error:
        raise EbpflbError(f"nft --json printed something else: {answer[:80]!r}") from error

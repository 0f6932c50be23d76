# SPDX-License-Identifier: Apache-2.0
"""Network namespaces with and without NAT rules for locally generated traffic."""

import subprocess

import pytest

from ebpflb.dataplane.kernel.nat_redirects import redirects_own_traffic

REDIRECT = "-p tcp -j REDIRECT --to-ports 15001"
NFT = "nft add table inet t; nft 'add chain inet t c {{ type {kind} hook {hook} priority 0; }}'"
RULE = "; nft add rule inet t c tcp dport 80 counter accept"


@pytest.mark.parametrize(
    ("commands", "redirects"),
    [
        pytest.param("true", False, id="no rules"),
        pytest.param(f"iptables-legacy -t nat -A OUTPUT {REDIRECT}", True, id="legacy"),
        pytest.param(f"ip6tables-legacy -t nat -A OUTPUT {REDIRECT}", True, id="legacy, IPv6"),
        pytest.param(f"iptables-legacy -t nat -A PREROUTING {REDIRECT}", False, id="only arriving"),
        pytest.param(
            f"iptables-legacy -t nat -A OUTPUT {REDIRECT}; iptables-legacy -t nat -F OUTPUT",
            False,
            id="legacy, flushed",
        ),
        pytest.param("iptables-legacy -A OUTPUT -j ACCEPT", False, id="legacy filter"),
        pytest.param(f"iptables-nft -t nat -A OUTPUT {REDIRECT}", True, id="iptables-nft"),
        pytest.param(NFT.format(kind="nat", hook="output") + RULE, True, id="nft"),
        pytest.param(NFT.format(kind="nat", hook="output"), False, id="nft, without a rule"),
        pytest.param(NFT.format(kind="filter", hook="output") + RULE, False, id="nft filter"),
        pytest.param(NFT.format(kind="nat", hook="prerouting") + RULE, False, id="nft arriving"),
    ],
)
def test_only_nat_of_what_is_sent_redirects(network, commands: str, redirects: bool):
    assert redirects_own_traffic() is False
    subprocess.run(["sh", "-ec", commands], check=True, capture_output=True)
    assert redirects_own_traffic() is redirects

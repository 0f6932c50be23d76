# SPDX-License-Identifier: Apache-2.0
"""How the rules of a kube-proxy are recognized."""

import socket

import pytest

from ebpflb.dataplane.attach import other_proxy as module
from ebpflb.dataplane.attach.other_proxy import ProxyRules
from ebpflb.dataplane.kernel.netfilter import NftChain
from tests.unit.dataplane.attach.legacy import Legacy

IPTABLES = "chain KUBE-SERVICES of table nat"


@pytest.mark.parametrize(
    ("nft", "legacy", "sign"),
    [
        ([(socket.AF_INET, "kube-proxy", "services")], [], "chain services of table kube-proxy"),
        ([(socket.AF_INET6, "kube-proxy", "services")], [], "chain services of table kube-proxy"),
        ([(socket.AF_INET6, "nat", "KUBE-SERVICES")], [], IPTABLES),
        ([], ["KUBE-SERVICES"], IPTABLES),
        # Rules that remain after a takeover, and rules that kubelets write.
        (
            [(socket.AF_INET, "nat", "EBPFLB-KEEP-NAT"), (socket.AF_INET, "nat", "KUBE-MARK-MASQ")],
            ["EBPFLB-KEEP-NAT", "KUBE-FIREWALL", "KUBE-POSTROUTING"],
            "",
        ),
    ],
)
def test_they_are_known_by_a_chain(monkeypatch, nft, legacy, sign):
    there = [NftChain(*each) for each in nft]
    monkeypatch.setattr(
        module, "nft_chains", lambda wanted: [each for each in wanted if each in there]
    )
    monkeypatch.setattr(module, "LEGACY", [Legacy(), Legacy(*legacy)])
    assert ProxyRules().sign() == sign

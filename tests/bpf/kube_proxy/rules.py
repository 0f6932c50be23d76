# SPDX-License-Identifier: Apache-2.0
"""Addresses for both families, and the rule files in this folder that use them."""

from collections.abc import Mapping
from pathlib import Path
from string import Template

FAMILIES = {
    4: {
        "ip": "ip",
        "ip_type": "ipv4_addr",
        "client": "192.0.2.2",
        "node": "192.0.2.1",
        "gateway": "10.1.0.1",
        "pod": "10.1.0.2",
        "endpoint": "10.1.0.2:8080",
        "vip": "10.96.0.10",
        "pods": "10.1.0.0/24",
        "local": "127.0.0.0/8",
        "node_port": 30080,
        "host_bits": 32,
        "prefix": 24,
    },
    6: {
        "ip": "ip6",
        "ip_type": "ipv6_addr",
        "client": "2001:db8::2",
        "node": "2001:db8::1",
        "gateway": "fd00:1::1",
        "pod": "fd00:1::2",
        "endpoint": "[fd00:1::2]:8080",
        "vip": "fd00:96::10",
        "pods": "fd00:1::/64",
        "local": "::1/128",
        "node_port": 30080,
        "host_bits": 128,
        "prefix": 64,
    },
}


def rules(file: str, names: Mapping[str, object]) -> str:
    """Input for iptables-restore or nft, with the addresses of a family as in FAMILIES."""
    text = (Path(__file__).parent / file).read_text()
    return Template(text).substitute(names)

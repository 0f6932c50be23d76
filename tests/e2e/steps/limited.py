# SPDX-License-Identifier: Apache-2.0
"""Services with source ranges."""

from dataclasses import replace

from ebpflb.lab import Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster

NOBODY = ("203.0.113.7/32", "2001:db8:113::7/128")


def lone(*members: Member) -> tuple[str, ...]:
    """The ranges of exactly these members, in each family."""
    addresses = (address for member in members for address in member.addresses)
    return tuple(f" {each}/{128 if ':' in each else 32}" for each in addresses)


def limited(spec: ServiceSpec, ranges: tuple[str, ...]) -> ServiceSpec:
    return replace(spec, spec={**spec.spec, "loadBalancerSourceRanges": list(ranges)})


def vips(cluster: Cluster, spec: ServiceSpec) -> list[str]:
    return [cluster.lab.ingress_ip(spec.number, version) for version in cluster.versions]

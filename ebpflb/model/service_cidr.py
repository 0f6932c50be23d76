# SPDX-License-Identifier: Apache-2.0
"""ServiceCIDRs: where the cluster takes ClusterIPs from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceCidr:
    """A ServiceCIDR; ranges: canonical CIDRs, at most one of each family."""

    name: str
    ranges: tuple[str, ...]

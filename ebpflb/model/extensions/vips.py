# SPDX-License-Identifier: Apache-2.0
"""Load-balancer IPs and external IPs: what becomes of packets that no endpoint here gets."""

from enum import StrEnum


class Unserved(StrEnum):
    """What happens to packets to a port that no Service has at the address."""

    REJECT = "reject"
    DROP = "drop"
    PASS = "pass"  # noqa: S105  no password


class NoLocalEndpoint(StrEnum):
    """What happens to clients outside under policy Local if this node has no endpoint."""

    DROP = "drop"
    PASS = "pass"  # noqa: S105  no password

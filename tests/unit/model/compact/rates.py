# SPDX-License-Identifier: Apache-2.0
"""What Service ports carry, and the rows of it."""

from ebpflb.model.compact.rates import BACKEND_SUMS, SUMS, PortRow, port_row
from ebpflb.model.flow import BackendRate, ServiceRate


def backend(address="10.1.0.1", **fields):
    plain = {"local": False, "terminating": False, "offered": True, "active": 0, "share": None}
    state = {"trouble": "", "ejection": "unwatched", **dict.fromkeys(BACKEND_SUMS, 0.0)}
    return BackendRate(**{"address": address, "port": 8080, **state, **plain, **fields})


def service(*backends, **fields):
    shares = dict.fromkeys(("largest_share", "even_share", "cross_node_share"))
    plain = {"namespace": "default", "service": "web", "port": "http", "protocol": "TCP"}
    rest = {"active": 0, "endpoints": len(backends), "troubles": (), "backends": backends}
    return ServiceRate(**{**dict.fromkeys(SUMS, 0.0), **plain, **rest, **shares, **fields})


def rows(*services) -> list[PortRow]:
    return list(map(port_row, services))

# SPDX-License-Identifier: Apache-2.0
"""Results of `explain`."""

from typing import Any

FRONTEND = {
    "this_node": {"backends": [], "if_empty": "refuse"},
    "type": "LoadBalancer",
    "internal_policy": "Cluster",
    "external_policy": "Local",
    "affinity_timeout": 60,
    "allowed_sources": ["192.0.2.0/24"],
    "masquerade": True,
    "scheduler": "round-robin",
}
DEAD = "did not answer its last connection"


def backend(address="10.1.0.5", **fields):
    plain = {"local": True, "chance": 1.0, "masquerade": "", "hairpin": False, "reason": ""}
    return {"address": address, "port": 8080, **plain, **fields}


def answered(verdict="translated", backends=(), **kernel) -> dict[str, Any]:
    step = {"place": "socket hook", "verdict": verdict, "why": ""}
    found = {
        "place": "socket hook",
        "why": "",
        "from": "this node",
        "affinity": "stays with 10.1.0.5:8080, last used 2 s ago",
        "scheduler": "a reason",
        "steps": [step],
        "frontend": FRONTEND,
        "backends": backends,
        "flows": [],
        "sockets": [],
    }
    return {
        "note": "",
        "verdict": verdict,
        "client": {
            "kind": "a pod of this node",
            "address": "fd00::5",
            "port": 40,
            "device": "veth1",
            "tc_cover": False,
        },
        "target": {
            "address": "192.0.2.9",
            "port": 80,
            "protocol": "TCP",
            "service": "default/web",
            "port_name": "http",
            "type": "LoadBalancer",
        },
        "kernel": {**found, **kernel},
        "model": {"unasked": "no agent", "frontend": None, "endpoints": [], "left_out": ""},
        "agree": None,
        "differences": [],
        "at": "",
        "since": "",
    }

# SPDX-License-Identifier: Apache-2.0
"""What `ebpflb` commands print on nodes as JSON, as far as the plugin reads it."""

import json

from ebpflb.cli.digests import rates
from ebpflb.cli.digests.frontends import FrontendOfNode, short
from ebpflb.kubectl.top import service_rate


def flow(second, *, namespace="default", name="web", pod="default/curl", **more):
    """As an agent prints it."""
    return {
        "time": f"2026-11-23T10:00:{second:02}.000000000Z",
        "event": "end",
        "verdict": "forwarded",
        "protocol": "TCP",
        "path": "socket",
        "client": {"address": "10.1.0.9", "port": 40000 + second, "pod": pod},
        "frontend": {"address": "10.96.0.10", "port": 80},
        "service": {"namespace": namespace, "name": name},
        "seq": second,
        **more,
    }


def lines(*flows):
    return "".join(f"{json.dumps(each)}\n" for each in flows)


def status(version="0.1.0", *, healthy=True, in_sync=True, problems=(), dropped=()):
    """As an agent prints it, as far as it is read."""
    return {
        "state": "served" if healthy else "not served",
        "shown": "served" if healthy else "not served",
        "healthy": healthy,
        "problems": list(problems),
        "agent": {
            "version": version,
            "in_sync": in_sync,
            "last_sync": "2026-11-23T10:00:00.123Z",
            "services": 3,
            "frontends": 5,
        },
        "loaded": {
            "maps": [
                {"name": "lb_ct_udp", "type": "lru_hash", "used": 95, "max": 100},
                {"name": "lb_sockets", "type": "hash", "used": 25, "max": 100},
                {"name": "lb_frontends", "type": "hash", "used": 5, "max": 1024},
                {"name": "lb_settings", "type": "array", "used": 1, "max": 1},
            ],
            "dropped": dict(dropped),
        },
    }


def finding(severity, what, check="agent", where="", advice=""):
    return {"severity": severity, "check": check, "where": where, "what": what, "advice": advice}


def frontend(*backends, address="10.96.0.10", namespace="default", **more):
    """As `ebpflb services -o json` has it."""
    choice = {
        "backends": [{"address": each, "port": 8080} for each in backends],
        "if_empty": "refuse",
    }
    return {
        "protocol": "TCP",
        "address": address,
        "port": 80,
        "type": "ClusterIP",
        "namespace": namespace,
        "service": "web",
        "port_name": "http",
        "internal_policy": "Cluster",
        "external_policy": "Cluster",
        "affinity_timeout": 0,
        "scheduler": "random",
        "dsr": False,
        "source_ranges": [],
        "connections": 2,
        "failed": 4,
        "refused": 1,
        "dropped": 0,
        "local": choice,
        "others": choice,
        "draining": [],
        **more,
    }


def short_services(*frontends):
    """As `ebpflb services --short` has them."""
    return short(map(FrontendOfNode.of, frontends))


def backend(address, connections=0.0, **more):
    plain = {"address": address, "port": 8080, "local": False, "terminating": False}
    rates = {"active": 1, "failed": 0.5, "original_bytes": 10.0, "reply_bytes": 20.0}
    state = {"offered": True, "share": None, "trouble": "", "standing": "unwatched"}
    pod = {"removed": False, "pod": ""}
    return {**plain, "connections": connections, **rates, **state, **pod, **more}


def service(*backends, name="web", namespace="default", troubles=(), far=None, **more):
    numbers = ("refused", "dropped", "retransmits", "original_bytes", "reply_bytes")
    return {
        "namespace": namespace,
        "service": name,
        "port": "http",
        "protocol": "TCP",
        "connections": sum(each["connections"] for each in backends),
        "active": len(backends),
        "failed": 1.0,
        **dict.fromkeys(numbers, 1.0),
        "endpoints": len(backends),
        "largest_share": 1.0,
        "even_share": 1.0,
        "cross_node_share": far,
        "troubles": list(troubles),
        "backends": list(backends),
        **more,
    }


def short_top(*services, seconds=2.0):
    """As `ebpflb top --short` has them."""
    return rates.short(seconds, map(service_rate, services))

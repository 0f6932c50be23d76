# SPDX-License-Identifier: Apache-2.0
"""What `ebpflb` commands print on nodes as JSON, as far as the plugin reads it."""

import json

import msgspec

from ebpflb.model.compact import compact
from ebpflb.model.compact.frontends import FrontendForm, FrontendName, FrontendRow, FrontendSettings
from ebpflb.model.compact.past_rates import PastRates, RecordedTime, of_records
from ebpflb.model.compact.rates import PortRow, port_row
from ebpflb.model.connection import OpenConnection, connection_line
from ebpflb.model.flow import FlowBackend, FlowClient, FlowFrontend, FlowService, ServiceRate
from tests.unit.agent_reports import agent_report


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
        "agent": agent_report(
            version=version, in_sync=in_sync, last_sync="2026-11-23T10:00:00.123Z"
        ),
        "loaded": {
            "maps": [
                {"name": "lb_ct_udp", "type": "lru_hash", "used": 95, "max": 100},
                {"name": "lb_sockets", "type": "hash", "used": 25, "max": 100},
                {"name": "lb_frontends", "type": "hash", "used": 5, "max": 1024},
                {"name": "lb_settings", "type": "array", "used": 1, "max": 1},
            ],
            "dropped": dict(dropped),
            "last_sync": "2026-11-23T10:00:00.123Z",
        },
    }


def finding(severity, what, check="agent", where="", advice=""):
    return {"severity": severity, "check": check, "where": where, "what": what, "advice": advice}


def frontend(*backends, counts=(2, 4, 1, 0), more=(), outside="", **fields):
    """A row of the compact answer of `ebpflb services`. more: backends that only this node has."""
    name = FrontendName("default", "web", "http", "ClusterIP", "TCP", "10.96.0.10", 80)
    settings = FrontendSettings("Cluster", "Cluster", 0, "random", False, ())
    form = FrontendForm(
        name._replace(**{key: fields[key] for key in name._fields if key in fields}),
        settings._replace(**{key: fields[key] for key in settings._fields if key in fields}),
        tuple(f"{each}:8080" for each in backends),
    )
    own = tuple(f"{each}:8080" for each in more)
    return FrontendRow(msgspec.Raw(msgspec.json.encode(form)), counts, own, outside)


def compact_services(*rows):
    return compact(rows)


def backend(address, connections=0.0, **more):
    plain = {"address": address, "port": 8080, "local": False, "terminating": False}
    rates = {"active": 1, "failed": 0.5, "original_bytes": 10.0, "reply_bytes": 20.0}
    state = {"offered": True, "share": None, "trouble": "", "ejection": "unwatched"}
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


def port_rows(*services) -> list[PortRow]:
    return [port_row(msgspec.convert(each, ServiceRate)) for each in services]


def compact_top(*services):
    return compact(port_rows(*services))


def compact_past(*services, **records):
    """Of records; what they do not tell is left out."""
    time = {"begin": "2026-11-24T02:09:00.000000000Z", "end": "2026-11-24T02:10:00.000000000Z"}
    rates = [of_records(msgspec.convert(each, ServiceRate)) for each in services]
    return compact(PastRates(RecordedTime(**{**time, "oldest": time["begin"], **records}), rates))


def connection(port, *, age=10.0, removed=False, pod="default/curl"):
    """A line of a node's answer."""
    return connection_line(
        OpenConnection(
            path="socket",
            protocol="TCP",
            state="established",
            client=FlowClient(address="10.1.0.9", port=port, pod=pod),
            frontend=FlowFrontend(address="10.96.0.1", port=80),
            service=FlowService(namespace="shop", name="web", port="http"),
            backend=FlowBackend(address="10.1.0.1", port=8080, pod="shop/web-0"),
            removed=removed,
            age=age,
        )
    ).decode()

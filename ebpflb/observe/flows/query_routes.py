# SPDX-License-Identifier: Apache-2.0
"""What an agent answers at its query socket, out of what it knows now."""

from collections.abc import Mapping

from ebpflb.model.address import format_address
from ebpflb.model.changes import Changes
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.queries import FlowQueries, pods_by_name
from ebpflb.observe.http.query_socket import Query, QueryError, Route, json_reply


def query_routes(changes: Changes, flows: FlowLog) -> Mapping[str, Route]:
    """The beginnings of paths, and what answers there; from any thread."""
    return {
        "/v1/flows": FlowQueries(flows, changes).answer,
        "/v1/names": lambda question: json_reply(_names(question, changes)),
    }


def _names(question: Query, changes: Changes) -> Mapping[str, object]:
    """Every Service, and the addresses of every pod that is an endpoint of one."""
    if question.path or question.parameters:
        raise QueryError("/v1/names takes no parameters")
    pods = pods_by_name(changes)
    return {
        "pods": {name: sorted(map(format_address, pods[name])) for name in sorted(pods)},
        "services": sorted(map(str, changes.names())),
    }

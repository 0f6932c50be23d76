# SPDX-License-Identifier: Apache-2.0
"""A flow as a JSON object; unknown fields are left out."""

import json
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ebpflb.model.address import format_address
from ebpflb.model.flow import Flow, FlowNames, Side, Traffic, frontend_type

_encode = json.JSONEncoder(check_circular=False).encode
_SECOND = 1_000_000_000
_UNKNOWN: tuple[object, ...] = (None, "", {})


def flow_line(number: int, flow: Flow, names: FlowNames) -> bytes:
    """The object as a line; `number`: the record's number in the agent's history."""
    return _encode(flow_object(number, flow, names)).encode() + b"\n"


def lost_line(count: int) -> bytes:
    """The line in place of records that were overwritten before they were read."""
    return json.dumps({"lost": count}).encode() + b"\n"


def flow_object(number: int, flow: Flow, names: FlowNames) -> dict[str, Any]:
    port = names.service_port(flow)
    return _known(
        time=rfc3339_ns(flow.time),
        event=flow.event,
        verdict=flow.verdict,
        reason=flow.reason,
        ended=flow.ended,
        protocol=flow.protocol,
        family=flow.family.text,
        path=flow.path,
        client=_client(flow, names),
        frontend={
            **_side(flow.frontend),
            **_known(type=port and frontend_type(port, flow.frontend)),
        },
        service=_service(names),
        backend=_backend(flow, names),
        source=flow.source,
        policy=_known(
            internal=flow.internal_policy,
            external=flow.external_policy,
            affinity_timeout=(port and port.affinity_timeout) or None,
        ),
        snat=flow.snat,
        hairpin=flow.hairpin,
        seconds=flow.seconds,
        bytes=_directions(flow.original, flow.reply, "bytes"),
        packets=_directions(flow.original, flow.reply, "packets"),
        rtt_seconds=flow.rtt,
        retransmits=flow.retransmits,
        seq=number,
    )


def rfc3339_ns(when: int) -> str:
    """Nanoseconds since 1970 as RFC 3339 with nanoseconds, in UTC."""
    seconds, rest = divmod(when, _SECOND)
    return f"{_second(seconds)}.{rest:09d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in _UNKNOWN}


def _side(side: Side) -> dict[str, Any]:
    return {"address": format_address(side.address), "port": side.port}


def _client(flow: Flow, names: FlowNames) -> dict[str, Any] | None:
    if flow.client is None:
        return None
    address, port = format_address(flow.client.address), flow.client.port
    return _known(address=address, port=port or None, **names.client._asdict())


def _service(names: FlowNames) -> dict[str, str]:
    if names.port is None:
        return {}
    return {
        "namespace": names.port.namespace,
        "name": names.port.service,
        **_known(port=names.port.port),
    }


def _backend(flow: Flow, names: FlowNames) -> dict[str, Any]:
    if flow.backend is None:
        return {}
    endpoint = names.endpoint
    pod = (endpoint and endpoint.pod) or names.backend.pod
    known = _known(pod=pod, workload=names.backend.workload if pod == names.backend.pod else "")
    place = endpoint and _known(node=endpoint.node_name, zone=endpoint.zone, local=names.local)
    return {**_side(flow.backend), **known, **(place or {})}


def _directions(
    original: Traffic | None, reply: Traffic | None, what: str
) -> Mapping[str, int] | None:
    if original is None or reply is None:
        return None
    return {"original": getattr(original, what), "reply": getattr(reply, what)}

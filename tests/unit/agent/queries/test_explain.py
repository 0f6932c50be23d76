# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from sys import byteorder
from typing import Any

import pytest

from ebpflb.agent import explain
from ebpflb.agent.explain import Explaining
from ebpflb.dataplane.layout.enums import FlowEnd, FlowEvent
from ebpflb.dataplane.layout.records import pack_name
from ebpflb.model.address import Protocol, SocketAddress, parse_address
from ebpflb.model.changes import Changes
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.http.query_socket import HttpQueryError, Query
from tests.builders import NODE, port_name
from tests.memory_maps import memory_maps
from tests.unit.agent.flows import SERVICE, pod_of, record

SILENT: dict[str, Any] = {"end": FlowEnd.LB_END_NO_ANSWER}
FAILED = {SocketAddress(parse_address("10.1.0.1"), 8080): "did not answer its last connection"}


def explaining(*records: bytes) -> Explaining:
    """Of an agent that has read these records of a Service, and has no maps yet."""
    changes, maps = Changes(NODE), memory_maps({})
    maps["lb_names"].update(SERVICE.to_bytes(4, byteorder), pack_name(port_name()))
    log = FlowLog(100, changes, lambda: maps, pod_of(changes))
    log.accept(records)
    return Explaining(Path("/pins"), lambda: None, lambda asked: asked.answer(changes), log)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, FAILED),
        ({"event": FlowEvent.LB_FLOW_START}, {}),
        ({"proto": Protocol.SCTP}, {}),
        ({"service": 0}, {}),
    ],
)
def test_a_backend_has_failed_lately(fields, found):
    assert explaining(record(**{**SILENT, **fields})).failures("default/web", "TCP") == found


def test_older_failures_may_have_been_fixed(monkeypatch):
    found = explaining(record(**SILENT))
    monkeypatch.setattr(explain, "_LATELY", 0)
    assert not found.failures("default/web", "TCP")


def test_each_service_has_failures_of_its_own():
    assert not explaining(record(**SILENT)).failures("default/api", "TCP")


def test_nothing_is_explained_before_there_are_maps():
    (answer,) = explaining().routes.values()
    with pytest.raises(HttpQueryError, match="no maps yet") as caught:
        answer(Query((), {"to": "default/web"}))
    assert caught.value.status == 503

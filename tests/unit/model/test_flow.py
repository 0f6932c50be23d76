# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any

import pytest

from ebpflb.dataplane.layout.enums import FlowEnd, word
from ebpflb.model.address import Family
from ebpflb.model.flow import Flow, FlowNames, Side, frontend_type
from ebpflb.words.connections import FAILURES, VERDICTS
from tests.builders import address, service, service_port

PORT = service_port(
    "10.96.0.10",
    node_port=30080,
    external_ips=(address("192.0.2.1"),),
    load_balancer_ips=(address("192.0.2.2"),),
)


def flow(event: str = "end", frontend: str = "10.96.0.10") -> Flow:
    side = Side(address(frontend), 80)
    nothing: dict[str, Any] = dict.fromkeys(
        ("backend", "seconds", "original", "reply", "rtt", "retransmits")
    )
    words: dict[str, Any] = dict.fromkeys(
        ("reason", "ended", "path", "source", "internal_policy", "external_policy"), ""
    )
    return Flow(
        time=0,
        event=event,
        protocol="TCP",
        client=side,
        frontend=side,
        snat=False,
        hairpin=False,
        **nothing,
        **words,
    )


@pytest.mark.parametrize(
    ("event", "ended", "verdict"),
    [
        ("start", "", "forwarded"),
        ("end", "closed", "forwarded"),
        ("end", "timed_out", "forwarded"),
        ("end", "replaced", "forwarded"),
        pytest.param("end", "reset", "forwarded", id="as health checks end"),
        ("end", "no_answer", "failed"),
        ("end", "backend_refused", "failed"),
        ("refused", "", "refused"),
        ("dropped", "", "dropped"),
    ],
)
def test_the_event_and_the_end_tell_the_verdict(event: str, ended: str, verdict: str):
    assert flow(event)._replace(ended=ended).verdict == verdict
    assert verdict in VERDICTS


def test_udp_without_an_answer_may_be_one_way_and_has_not_failed():
    silent = flow("end")._replace(ended="no_answer", protocol="UDP")
    assert (silent.verdict, silent._replace(protocol="SCTP").verdict) == ("forwarded", "failed")


def test_every_way_to_end_without_a_backend_is_one_of_the_kernels():
    assert {word(each) for each in FlowEnd} > set(FAILURES)


@pytest.mark.parametrize(
    ("host", "port", "kind"),
    [
        ("10.96.0.10", 80, "ClusterIP"),
        ("192.0.2.1", 80, "ExternalIP"),
        ("192.0.2.2", 80, "LoadBalancer"),
        ("192.168.0.1", 30080, "NodePort"),
        ("192.168.0.1", 80, None),
        ("10.96.0.10", 81, None),
    ],
)
def test_a_frontend_has_its_type_from_the_service(host: str, port: int, kind: str | None):
    assert frontend_type(PORT, Side(address(host), port)) == kind


def test_the_port_is_that_of_the_flows_family():
    six = replace(PORT, family=Family.IPV6, cluster_ip=address("fd00::10"))
    names = FlowNames(port=PORT.name, service=service("web", PORT, six))
    assert names.service_port(flow()) == PORT
    assert names.service_port(flow(frontend="fd00::10")) == six
    assert FlowNames().service_port(flow()) is None

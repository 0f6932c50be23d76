# SPDX-License-Identifier: Apache-2.0
"""Services as the API server or an operator writes them."""

import json
from typing import Any

import pytest
import yaml

from ebpflb.errors import SourceError
from ebpflb.model.address import Family, Protocol, format_address
from ebpflb.model.extensions.annotated import NOTHING, Annotated
from ebpflb.model.extensions.vips import NoLocalEndpoint, Unserved
from ebpflb.model.service import Service, ServiceName, ServicePort, TrafficPolicy
from ebpflb.source.decode import decode
from ebpflb.words.scheduler import Scheduler
from tests.builders import (
    Manifest,
    load_balancer_status,
    port_manifest,
    port_name,
    service,
    service_manifest,
)

DUAL: Manifest = {"clusterIPs": ["10.96.0.10", "fd00::10"], "ipFamilies": ["IPv4", "IPv6"]}


def decoded(manifest: Manifest) -> Service:
    found = decode(json.loads(json.dumps(manifest)))
    assert isinstance(found, Service)
    return found


def port_of(status: Manifest | None = None, **spec: Any) -> ServicePort:
    """The only port of a Service with this spec."""
    manifest = service_manifest(**spec)
    (port,) = decoded({**manifest, "status": status} if status else manifest).ports
    return port


def cluster_ips(**spec: Any) -> list[str]:
    return [format_address(port.cluster_ip) for port in decoded(service_manifest(**spec)).ports]


def texts(addresses: Any) -> list[str]:
    return [format_address(address) for address in addresses]


def test_the_builders_describe_the_same_service():
    assert decoded(service_manifest()) == service()


def test_a_short_manifest_gets_the_defaults_of_the_api_server():
    found = decoded(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]},
        }
    )
    assert found == service()


def test_null_counts_as_absent():
    manifest = service_manifest(
        ports=[{"port": 80, "name": None, "protocol": None, "nodePort": None}],
        clusterIPs=None,
        ipFamilies=None,
        externalIPs=None,
        type=None,
        externalTrafficPolicy=None,
        internalTrafficPolicy=None,
        sessionAffinity=None,
        sessionAffinityConfig=None,
        loadBalancerSourceRanges=None,
        healthCheckNodePort=None,
    )
    manifest["metadata"]["labels"] = None
    assert decoded({**manifest, "status": None}) == service()
    assert decoded({**manifest, "status": {"loadBalancer": {"ingress": None}}}) == service()


@pytest.mark.parametrize(
    "manifest",
    [
        service_manifest(cluster_ip="None"),
        service_manifest(cluster_ip=""),
        service_manifest(cluster_ip="", clusterIPs=["10.96.0.10"]),
        service_manifest(type="ExternalName", externalName="web.example"),
        service_manifest(labels={"service.kubernetes.io/service-proxy-name": "other"}),
        service_manifest(labels={"service.kubernetes.io/service-proxy-name": ""}),
        service_manifest(cluster_ip="10.96.0.300"),
        service_manifest(cluster_ip="0.0.0.0"),
        service_manifest(ports=[]),
        {**service_manifest(), "spec": None},
    ],
)
def test_what_is_not_served_has_no_ports(manifest: Manifest):
    assert decoded(manifest) == Service(ServiceName("default", "web"))


def test_the_ports_of_what_is_not_served_do_not_matter():
    assert not decoded(service_manifest(cluster_ip="None", ports=[{"port": "any"}])).ports


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ["10.96.0.10"]),
        ({"ipFamilies": ["IPv4"]}, ["10.96.0.10"]),
        ({"ipFamilies": ["IPv6"]}, []),
        ({"clusterIPs": ["10.96.0.10", "fd00::10"]}, ["10.96.0.10"]),
        (DUAL, ["10.96.0.10", "fd00::10"]),
        ({**DUAL, "ipFamilies": ["IPv4"]}, ["10.96.0.10"]),
        ({**DUAL, "ipFamilies": ["IPv6", "IPv4"]}, []),
        ({**DUAL, "clusterIPs": ["10.96.0.10"]}, ["10.96.0.10"]),
        ({**DUAL, "clusterIPs": ["10.96.0.10", "fd00::zz"]}, ["10.96.0.10"]),
        ({**DUAL, "clusterIPs": ["bad", "fd00::10"]}, ["fd00::10"]),
        ({"cluster_ip": "fd00::10", "ipFamilies": ["IPv6"]}, ["fd00::10"]),
        ({"cluster_ip": "010.096.00.010 "}, ["10.96.0.10"]),
    ],
)
def test_each_family_with_a_cluster_ip_is_served(spec: Manifest, expected: list[str]):
    assert cluster_ips(**spec) == expected


def test_a_family_has_its_own_addresses():
    spec: Manifest = {**DUAL, "externalIPs": ["fd02::1", "203.0.113.1"], "type": "LoadBalancer"}
    manifest = {
        **service_manifest(**spec),
        "status": load_balancer_status("203.0.113.2", "fd02::2"),
    }
    first, second = decoded(manifest).ports
    assert (first.family, second.family) == (Family.IPV4, Family.IPV6)
    assert texts(first.external_ips + first.load_balancer_ips) == ["203.0.113.1", "203.0.113.2"]
    assert texts(second.external_ips + second.load_balancer_ips) == ["fd02::1", "fd02::2"]


def test_addresses_are_read_leniently_and_once():
    external_ips = ["203.000.113.001", "no address", "0.0.0.0", " 203.0.113.1", "203.0.113.2"]
    # The model refuses the second one, and says so.
    assert texts(port_of(externalIPs=external_ips).external_ips) == [
        *("203.0.113.1", "0.0.0.0", "203.0.113.2")
    ]


def test_load_balancer_ips_are_those_with_mode_vip():
    ingress = [
        {"ip": "203.0.113.1"},
        {"ip": "203.0.113.2", "ipMode": "VIP"},
        {"ip": "203.0.113.3", "ipMode": "Proxy"},
        {"ip": "203.0.113.4", "ipMode": None},
        {"hostname": "lb.example"},
        {"ip": "bogus"},
    ]
    port = port_of({"loadBalancer": {"ingress": ingress}})
    assert texts(port.load_balancer_ips) == ["203.0.113.1", "203.0.113.2", "203.0.113.4"]


def test_the_type_does_not_decide_which_frontends_there_are():
    port = port_of(
        load_balancer_status("203.0.113.1"), type="ClusterIP", ports=[port_manifest(nodePort=30080)]
    )
    assert port.node_port == 30080
    assert port.load_balancer_ips


def test_what_is_for_others_changes_nothing():
    manifest = service_manifest(
        trafficDistribution="PreferSameZone", loadBalancerClass="example.com/other"
    )
    manifest["metadata"]["annotations"] = {"service.kubernetes.io/topology-mode": "Auto"}
    assert decoded(manifest) == service()


def test_ports_keep_their_names_and_protocols():
    ports = [port_manifest(53, "dns", protocol) for protocol in ("TCP", "UDP", "SCTP")]
    found = decoded(service_manifest(ports=ports)).ports
    assert [port.name for port in found] == [port_name("dns", protocol) for protocol in Protocol]


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"type": "LoadBalancer"}, True),
        ({"type": "NodePort"}, True),
        ({"type": "ClusterIP", "externalIPs": ["203.0.113.1"]}, True),
        ({"externalIPs": ["203.0.113.1"]}, True),
        ({"type": "ClusterIP", "externalIPs": []}, False),
        ({}, False),
    ],
)
def test_external_policy_local_counts_for_some_types_only(spec: Manifest, counts: bool):
    port = port_of(externalTrafficPolicy="Local", **spec)
    assert (port.external_policy is TrafficPolicy.LOCAL) is counts


def test_policies_are_read():
    port = port_of(internalTrafficPolicy="Local", externalTrafficPolicy="Cluster", type="NodePort")
    assert port.internal_policy is TrafficPolicy.LOCAL
    assert port.external_policy is TrafficPolicy.CLUSTER


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, 0),
        ({"sessionAffinity": "None"}, 0),
        ({"sessionAffinity": "ClientIP"}, 10800),
        ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": None}}, 10800),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 125}},
            },
            125,
        ),
        ({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 125}}}, 0),
    ],
)
def test_affinity_timeout(spec: Manifest, seconds: int):
    assert port_of(**spec).affinity_timeout == seconds


@pytest.mark.parametrize(
    ("spec", "port"),
    [
        ({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}, 31000),
        ({"type": "LoadBalancer", "externalTrafficPolicy": "Cluster"}, 0),
        ({"type": "NodePort", "externalTrafficPolicy": "Local"}, 0),
    ],
)
def test_the_health_check_node_port_is_for_load_balancers_with_policy_local(
    spec: Manifest, port: int
):
    assert port_of(healthCheckNodePort=31000, **spec).health_check_node_port == port


@pytest.mark.parametrize(
    ("ranges", "ipv4", "ipv6"),
    [
        ([], (), ()),
        (["192.168.0.0/24", " 203.0.113.9/25"], ("192.168.0.0/24", "203.0.113.0/25"), ()),
        (["fd03::/16", "10.0.0.0/8"], ("10.0.0.0/8",), ("fd03::/16",)),
        (["10.0.0.0/8", "0.0.0.0/0", "fd03::/16"], (), ("fd03::/16",)),
        (["bogus", "10.0.0.0/8"], ("10.0.0.0/8",), ()),
        (["bogus", "10.0.0.0/33", ""], (), ()),
        (["fd03::/16", "::/0", " 010.0.0.0/8"], ("10.0.0.0/8",), ()),
    ],
)
def test_source_ranges_belong_to_their_family(ranges: list[str], ipv4: object, ipv6: object):
    first, second = decoded(service_manifest(loadBalancerSourceRanges=ranges, **DUAL)).ports
    assert (first.source_ranges, second.source_ranges) == (ipv4, ipv6)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"ports": [{"port": "abc"}]},
            "ports[0].port: must be a whole number from 1 to 65535",
        ),
        ({"ports": [port_manifest(), {"port": 70000}]}, "ports[1].port: must be"),
        ({"ports": [{"port": -1}]}, "ports[0].port: must be"),
        ({"ports": [{"port": 80.5}]}, "ports[0].port: must be"),
        ({"ports": [{"port": True}]}, "not true"),
        ({"ports": [{"port": 10**5000}]}, "not one that large"),
        ({"ports": [{"name": "web"}]}, "ports[0].port: is missing"),
        ({"ports": [{"port": 0}]}, "ports[0].port: must be a whole number from 1 to 65535, not 0"),
        ({"ports": [{"port": 80, "nodePort": "x"}]}, "ports[0].nodePort: must be"),
        ({"ports": [{"port": 80, "name": "Web!"}]}, "ports[0].name: must consist of"),
        ({"ports": [{"port": 80, "name": "w" * 64}]}, "ports[0].name: must have at most 63"),
        ({"ports": [{"port": 80, "protocol": "tcp"}]}, 'must be one of SCTP, TCP, UDP, not "tcp"'),
        ({"ports": [port_manifest(80), port_manifest(81)]}, "ports[1].name: is used twice"),
        ({"ports": {"port": 80}}, "ports: must be a list, not an object"),
        ({"ports": [80]}, "ports[0]: must be an object, not 80"),
        ({"ports": [None]}, "ports[0]: must be an object, not null"),
        ({"ports": [[]]}, "ports[0]: must be an object, not a list"),
        ({"externalIPs": [1]}, "externalIPs[0]: must be text, not 1"),
        ({"clusterIP": 10.96}, "clusterIP: must be text, not 10.96"),
        ({"ipFamilies": ["IPv5"]}, "ipFamilies[0]: must be one of IPv4, IPv6"),
        (
            {"type": "Cluster"},
            "type: must be one of ClusterIP, ExternalName, LoadBalancer",
        ),
        ({"externalTrafficPolicy": "local"}, "externalTrafficPolicy: must be one of Cluster, "),
        (
            {"internalTrafficPolicy": {}},
            "internalTrafficPolicy: must be one of Cluster, Local, not an",
        ),
        ({"sessionAffinity": "Cookie"}, "sessionAffinity: must be one of ClientIP, None"),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 86401}},
            },
            "sessionAffinityConfig.clientIP.timeoutSeconds: must be a whole number from 0 to 86400",
        ),
    ],
)
def test_errors_name_object_and_field(spec: Manifest, message: str):
    manifest = service_manifest()
    manifest["spec"].update(spec)
    with pytest.raises(SourceError) as caught:
        decode(manifest)
    assert str(caught.value).startswith("Service default/web: spec.")
    assert message in str(caught.value)


def test_errors_in_the_status_are_named_too():
    manifest = service_manifest()
    manifest["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}, {"ip": 1}]}}
    with pytest.raises(SourceError) as caught:
        decode(manifest)
    assert "status.loadBalancer.ingress[1].ip: must be text, not 1" in str(caught.value)


CREATED = "2025-01-01T00:00:00Z"


@pytest.mark.parametrize("labels", [{}, {"service.kubernetes.io/service-proxy-name": "other"}])
def test_a_service_knows_when_it_was_created(labels: dict[str, str]):
    manifest = service_manifest(labels=labels)
    manifest["metadata"]["creationTimestamp"] = CREATED
    assert decoded(manifest).created == CREATED


@pytest.mark.parametrize("created", [None, ""])
def test_a_manifest_may_leave_out_when_it_was_created(created: str | None):
    manifest = service_manifest()
    manifest["metadata"]["creationTimestamp"] = created
    assert decoded(manifest).created == ""


@pytest.mark.parametrize("text", ["2025-01-01T00:00:00Z", "2025-01-01T01:00:00+01:00"])
def test_a_time_without_quotes_is_the_same_time(text: str):
    manifest = service_manifest()
    manifest["metadata"] |= yaml.safe_load(f"creationTimestamp: {text}")
    found = decode(manifest)
    assert isinstance(found, Service)
    assert found.created == CREATED


def test_a_time_of_creation_that_is_no_text_is_named():
    manifest = service_manifest()
    manifest["metadata"]["creationTimestamp"] = 3
    text = r"\AService default/web: metadata\.creationTimestamp: must be text, not 3\Z"
    with pytest.raises(SourceError, match=text):
        decode(manifest)


def annotated(annotations: Any) -> Service:
    manifest = service_manifest()
    manifest["metadata"]["annotations"] = annotations
    return decoded(manifest)


@pytest.mark.parametrize("scheduler", list(Scheduler))
def test_an_annotation_names_the_scheduler(scheduler: Scheduler):
    found = annotated({"ebpflb.io/scheduler": str(scheduler)})
    assert (found.annotated.scheduler, found.problems) == (scheduler, ())


@pytest.mark.parametrize("annotations", [None, {}, {"other.io/scheduler": "x"}])
def test_without_it_the_default_counts(annotations: Any):
    found = annotated(annotations)
    assert (found.annotated.scheduler, found.problems) == (None, ())


@pytest.mark.parametrize("wrong", ["wlc", "Random", 5, ["random"]])
def test_a_wrong_scheduler_leaves_the_service_as_it_is(wrong: Any):
    found = annotated({"ebpflb.io/scheduler": wrong})
    assert (found.annotated.scheduler, found.ports) == (None, annotated(None).ports)
    (line,) = found.problems
    assert line.startswith("metadata.annotations.ebpflb.io/scheduler: must be ")
    assert json.dumps(wrong)[:4] in line or "a list" in line
    assert line.endswith("; the default is used")


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("false", False), ("", None)])
def test_the_annotation_of_direct_server_return(text: str, expected: bool | None):
    found = annotated({"ebpflb.io/dsr": text})
    assert (found.annotated.dsr, found.problems) == (expected, ())


@pytest.mark.parametrize("wrong", ["True", "yes", True])
def test_a_wrong_annotation_of_it_leaves_the_service_as_it_is(wrong: Any):
    found = annotated({"ebpflb.io/dsr": wrong, "ebpflb.io/scheduler": "maglev"})
    assert (found.annotated.dsr, found.annotated.scheduler) == (None, Scheduler.MAGLEV)
    (line,) = found.problems
    assert line.startswith("metadata.annotations.ebpflb.io/dsr: must be ")
    assert line.endswith("; the default is used")


def test_an_annotation_that_does_not_exist_is_named_and_the_others_count():
    found = annotated({"ebpflb.io/schedular": "maglev", "ebpflb.io/dsr": "true", "a": "b"})
    assert found.annotated == Annotated(dsr=True)
    assert found.problems == (
        "metadata.annotations.ebpflb.io/schedular: no annotation of a Service (did you mean "
        "ebpflb.io/scheduler?); it is ignored",
    )


def test_of_thousands_that_do_not_exist_the_first_are_named():
    found = annotated({f"ebpflb.io/{number}": "" for number in range(3000)})
    *named, last = found.problems
    assert [each.split(":")[0][-1] for each in named] == list("0123456789")
    assert last.startswith("metadata.annotations: 2990 more with ebpflb.io/ ")


def with_ejection(value: object):
    manifest = service_manifest()
    manifest["metadata"]["annotations"] = {"ebpflb.io/ejection": value}
    found = decode(manifest)
    assert isinstance(found, Service)
    return found


@pytest.mark.parametrize(("text", "threshold"), [("off", 0), ("on", 5), ("3", 3), ("", None)])
def test_the_annotation_of_ejection(text, threshold):
    found = with_ejection(text)
    assert [port.annotated.ejection for port in found.ports] == [threshold]
    assert found.problems == ()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("maybe", 'want off, on or a number from 0 to 1000, not "maybe"'),
        ("-1", 'want off, on or a number from 0 to 1000, not "-1"'),
        (True, "must be text, not true"),
    ],
)
def test_a_wrong_annotation_of_ejection_does_not_count(value, why):
    found = with_ejection(value)
    assert [port.annotated.ejection for port in found.ports] == [None]
    assert found.problems == (
        f"metadata.annotations.ebpflb.io/ejection: {why}; the default is used",
    )


@pytest.mark.parametrize(
    ("annotation", "text", "field", "value"),
    [
        ("backup", "static", "backup", "static"),
        ("backup", "ops/static-1", "backup", "ops/static-1"),
        ("backup-for", "*", "backup_for", ("*",)),
        ("backup-for", "shop, dev", "backup_for", ("shop", "dev")),
        ("spill-at", "200", "spill_at", 200),
    ],
)
def test_annotations_name_a_backup(annotation: str, text: str, field: str, value: Any):
    found = annotated({f"ebpflb.io/{annotation}": text})
    assert (getattr(found.annotated, field), found.problems) == (value, ())


@pytest.mark.parametrize(
    ("annotation", "text", "wanted"),
    [
        ("backup", "Static", "must be the NAME of another Service, or NAMESPACE/NAME"),
        ("backup", "ops/web/static", "must be the NAME of another Service, or NAMESPACE/NAME"),
        ("backup", "/static", "must be the NAME of another Service, or NAMESPACE/NAME"),
        ("backup-for", "shop,", "must be names of namespaces, separated by commas, or *"),
        ("backup-for", "sh*", "must be names of namespaces, separated by commas, or *"),
        ("spill-at", "0", "want a number from 1 to"),
    ],
)
def test_a_wrong_backup_is_ignored_and_told(annotation: str, text: str, wanted: str):
    found = annotated({f"ebpflb.io/{annotation}": text})
    assert found.annotated == annotated(None).annotated
    (line,) = found.problems
    assert line.startswith(f"metadata.annotations.ebpflb.io/{annotation}: {wanted}")


@pytest.mark.parametrize("wish", Unserved)
def test_what_happens_to_unserved_ports_is_read(wish: Unserved):
    found = annotated({"ebpflb.io/vip-unserved": str(wish)})
    assert (found.annotated.vip_unserved, found.problems) == (wish, ())


@pytest.mark.parametrize("wish", NoLocalEndpoint)
def test_what_happens_without_a_local_endpoint_is_read(wish: NoLocalEndpoint):
    found = annotated({"ebpflb.io/no-local-endpoint": str(wish)})
    assert (found.annotated.no_local_endpoint, found.problems) == (wish, ())


@pytest.mark.parametrize(
    ("name", "choices"),
    [("vip-unserved", "reject, drop, pass"), ("no-local-endpoint", "drop, pass")],
)
def test_another_wish_for_an_address_is_a_problem(name: str, choices: str):
    found = annotated({f"ebpflb.io/{name}": "refuse"})
    assert found.annotated == NOTHING
    assert found.problems == (
        f"metadata.annotations.ebpflb.io/{name}: must be one of {choices}, "
        'not "refuse"; the default is used',
    )

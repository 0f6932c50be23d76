# SPDX-License-Identifier: Apache-2.0
"""With cert-manager the same certificates come from elsewhere."""

from pathlib import Path
from typing import Any

import pytest

from tests.chart.harness.relay import ISSUED, certificates, of_relay
from tests.chart.harness.rendering import Object, agent, mounts, of_kind, pod_of, render
from tests.chart.harness.tls import dns_names, handshake, subject

CA, SERVING, ASKING, AGENTS = (
    *("ebpflb-relay-ca", "ebpflb-relay"),
    *("ebpflb-relay-agents", "ebpflb-observe"),
)


def specs(values: Object, **options: Any) -> dict[str, Object]:
    """The Certificates, by the names of the Secrets that they are written to."""
    found = of_relay(render(values, **options), "Certificate").values()
    return {each["spec"]["secretName"]: each["spec"] for each in found}


def hours(duration: str) -> int:
    assert duration.endswith("h")
    return int(duration[:-1])


def test_the_chart_makes_none_itself() -> None:
    objects = render(ISSUED)
    assert not of_kind(objects, "Secret")
    assert set(specs(ISSUED)) == set(certificates())
    kinds = [*of_kind(objects, "Issuer"), *of_kind(objects, "Certificate")]
    assert {each["apiVersion"] for each in kinds} == {"cert-manager.io/v1"}


def test_pods_mount_the_same_secrets() -> None:
    wanted = {}
    for values in (ISSUED, {"relay": {"enabled": True}}):
        (found,) = of_relay(render(values), "Deployment").values()
        both = {**mounts(pod_of(found), "relay"), **mounts(agent(values), "ebpflb")}
        wanted[str(values)] = {
            path: each["volume"]["secret"]["secretName"]
            for path, each in both.items()
            if "secret" in each["volume"]
        }
    first, second = wanted.values()
    assert first == second
    assert set(first.values()) == {SERVING, ASKING, AGENTS}


def test_a_ca_that_signs_itself_signs_the_others() -> None:
    objects = render(ISSUED)
    issuers = {name: each["spec"] for name, each in of_relay(objects, "Issuer").items()}
    signed = specs(ISSUED)
    authority = signed[CA]
    assert issuers[authority["issuerRef"]["name"]] == {"selfSigned": {}}
    assert authority["isCA"] is True
    for name in (SERVING, ASKING, AGENTS):
        assert issuers[signed[name]["issuerRef"]["name"]] == {"ca": {"secretName": CA}}
        assert "isCA" not in signed[name]
    references = {
        (each["issuerRef"]["kind"], each["issuerRef"]["group"]) for each in signed.values()
    }
    assert references == {("Issuer", "cert-manager.io")}


def test_names_and_lifetimes_are_those_of_the_chart(tmp_path: Path) -> None:
    own, asked = certificates(namespace="network"), specs(ISSUED, namespace="network")
    for name in (SERVING, AGENTS):
        peers = handshake(tmp_path, own[name], own[ASKING], asked[name]["dnsNames"][-1])
        assert subject(peers.server) == asked[name]["commonName"]
        assert dns_names(peers.server) == asked[name]["dnsNames"]
        assert subject(peers.client) == asked[ASKING]["commonName"]
    assert "dnsNames" not in asked[ASKING]
    assert all(len(each["commonName"]) <= 64 for each in asked.values())
    assert {name: hours(each["duration"]) // 24 for name, each in asked.items()} == {
        **dict.fromkeys((SERVING, ASKING, AGENTS), 365),
        CA: 3650,
    }


def test_each_is_for_one_side_of_a_connection() -> None:
    usages = {name: each.get("usages") for name, each in specs(ISSUED).items()}
    assert usages == {
        CA: None,
        SERVING: ["digital signature", "server auth"],
        ASKING: ["digital signature", "client auth"],
        AGENTS: ["digital signature", "server auth"],
    }


@pytest.mark.parametrize(("limit", "expected"), [(0, 1), (1, 1), (90, 90), (300, 300)])
def test_they_are_renewed_at_the_age_of_the_values(limit: int, expected: int) -> None:
    given = {"certManager": True, "renewAfterDays": limit}
    asked = specs({"relay": {"enabled": True, "certificates": given}})
    for name in (SERVING, ASKING, AGENTS):
        spec = asked[name]
        assert hours(spec["duration"]) - hours(spec["renewBefore"]) == expected * 24
        assert spec["privateKey"]["rotationPolicy"] == "Always"
    assert hours(asked[CA]["renewBefore"]) == hours(asked[SERVING]["duration"])
    assert asked[CA]["privateKey"]["rotationPolicy"] == "Never"


def test_it_tells_the_api_whom_to_trust() -> None:
    objects = render({**ISSUED, "namespaceOverride": "network"})
    (api,) = of_relay(objects, "APIService").values()
    (service,) = of_relay(objects, "Service").values()
    where = api["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    namespace, name = where.split("/")
    certificate = of_relay(objects, "Certificate")[name]
    assert certificate["metadata"]["namespace"] == namespace == "network"
    assert f"{service['metadata']['name']}.network.svc" in certificate["spec"]["dnsNames"]
    assert "caBundle" not in api["spec"]


def test_helm_can_take_the_secrets_over_and_argo_cd_does_not_take_them_for_its_own() -> None:
    for each in specs(ISSUED, namespace="network").values():
        assert each["secretTemplate"] == {
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "meta.helm.sh/release-name": "ebpflb",
                "meta.helm.sh/release-namespace": "network",
            },
        }

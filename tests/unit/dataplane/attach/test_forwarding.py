# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.attach import forwarding as module
from ebpflb.dataplane.attach.forwarding import (
    IPSEC,
    PolicyEngine,
    PolicyRules,
    forwarding,
    policy_engine,
)
from tests.unit.dataplane.attach.legacy import Legacy

CALICO = PolicyEngine("Calico", "device cali*")


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *(("cali12", "Calico"), ("kube-bridge", "kube-router")),
        *(("antrea-gw0", "Antrea"), ("weave", "Weave Net"), ("ovn-k8s-mp0", "OVN-Kubernetes")),
        ("ovn0", "Kube-OVN"),
    ],
)
def test_who_enforces_policies_is_known_by_a_device(name, engine):
    found = policy_engine(["lo", name], PolicyRules())
    assert found
    assert found.name == engine


@pytest.mark.parametrize("name", ["eth0", "cni0", "flannel.1", "veth1", "docker0", "cilium_host"])
def test_other_devices_enforce_nothing(monkeypatch, name):
    monkeypatch.setattr(PolicyRules, "engine", lambda _: None)
    assert policy_engine(["lo", name], PolicyRules()) is None


def test_ipsec_beside_cilium_does_not_have_the_kernel_route(monkeypatch):
    monkeypatch.setattr(PolicyRules, "engine", lambda _: IPSEC)
    assert policy_engine(["lo", "eth0"], PolicyRules()) == IPSEC
    assert policy_engine(["lo", "cilium_host"], PolicyRules()) is None


@pytest.mark.parametrize(
    ("nft", "legacy", "engine"),
    [
        *(
            (["KUBE-ROUTER-FORWARD"], [], "kube-router"),
            ([], ["KUBE-ROUTER-FORWARD"], "kube-router"),
        ),
        *((["cali-FORWARD"], [], "Calico"), (["filter-FORWARD"], [], "Calico")),
        *(([], ["AZURE-NPM"], "Azure NPM"), ([], ["WEAVE-NPC"], "Weave Net")),
        *((["postrouting"], [], "kube-network-policies"), (["FORWARD"], ["FORWARD"], None)),
    ],
)
def test_who_enforces_policies_is_known_by_a_chain(monkeypatch, nft, legacy, engine):
    monkeypatch.setattr(
        module, "nft_chains", lambda wanted: [each for each in wanted if each.name in nft]
    )
    monkeypatch.setattr(module, "LEGACY", [Legacy(*legacy)])
    found = PolicyRules().engine()
    assert (found and found.name) == engine


def test_legacy_rules_are_read_again_when_their_layout_has_changed(monkeypatch):
    legacy = Legacy()
    monkeypatch.setattr(module, "nft_chains", lambda _: [])
    monkeypatch.setattr(module, "LEGACY", [legacy])
    chains = PolicyRules()
    assert [chains.engine() for _ in range(3)] == [None] * 3
    assert legacy.reads == 1
    legacy.rules, legacy.chains = 2, {"cali-FORWARD"}
    assert chains.engine() == PolicyEngine("Calico", "chain cali-FORWARD of table filter")


def test_a_kernel_that_does_not_answer_is_asked_again(monkeypatch):
    def refuse(_):
        raise PermissionError

    monkeypatch.setattr(module, "nft_chains", refuse)
    monkeypatch.setattr(module, "has_output_policies", lambda: refuse(None))
    monkeypatch.setattr(module, "LEGACY", [])
    assert PolicyRules().engine() is None


@pytest.mark.parametrize(
    ("option", "engine", "way", "why"),
    [
        ("redirect", CALICO, "redirect", "the option"),
        ("stack", None, "stack", "the option"),
        ("auto", None, "redirect", "auto: no policy engine found"),
        ("auto", IPSEC, "stack", "auto: IPsec enforces policies here (ip xfrm policy"),
        ("auto", CALICO, "stack", "auto: Calico enforces NetworkPolicy here (device cali*)"),
    ],
)
def test_the_way_and_what_chose_it(option, engine, way, why):
    found = forwarding(option, engine)
    assert found.way == way
    assert found.why.startswith(why)

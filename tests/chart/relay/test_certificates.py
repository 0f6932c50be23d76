# SPDX-License-Identifier: Apache-2.0
"""The certificates that the chart makes: whom they let speak with whom, and what upgrades renew."""

import ssl
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.chart.harness.relay import RELAY, certificates, of_relay, upgraded
from tests.chart.harness.rendering import Object, agent, mounts, pod_of, render
from tests.chart.harness.tls import authority, days, dns_names, handshake, subject, text

CA, SERVING, ASKING, AGENTS = (
    *("ebpflb-relay-ca", "ebpflb-relay"),
    *("ebpflb-relay-agents", "ebpflb-observe"),
)
AGENT, CLIENT = "agent.observe.ebpflb.io", "relay.observe.ebpflb.io"
MADE = "ebpflb.io/made"


@pytest.fixture(scope="module")
def made() -> dict[str, Object]:
    return certificates()


def aged(secret: Object, days: float) -> Object:
    """A Secret as if it had been made earlier."""
    found = deepcopy(secret)
    at = datetime.now(UTC) - timedelta(days=days)
    found["metadata"]["annotations"][MADE] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def changed(before: dict[str, Object], after: list[Object]) -> set[str]:
    """The Secrets with another key."""
    now = of_relay(after, "Secret")
    assert set(now) == {CA, SERVING, ASKING, AGENTS}
    return {name for name in now if now[name]["data"] != before.get(name, {}).get("data")}


def all_speak(folder: Path, secrets: dict[str, Object]) -> None:
    """The relay reaches agents, and the API server the relay."""
    handshake(folder, secrets[AGENTS], secrets[ASKING], AGENT)
    handshake(folder, secrets[SERVING], secrets[ASKING], "ebpflb-relay.kube-system.svc")
    assert len({authority(each)["serialNumber"] for each in secrets.values()}) == 1


def test_relay_and_agents_know_each_other_by_name(tmp_path: Path, made: dict[str, Object]) -> None:
    peers = handshake(tmp_path, made[AGENTS], made[ASKING], AGENT)
    assert (subject(peers.server), dns_names(peers.server)) == (AGENT, [AGENT])
    assert (subject(peers.client), dns_names(peers.client)) == (CLIENT, [])


def test_the_api_server_reaches_the_relay_by_the_name_of_its_service(tmp_path: Path) -> None:
    objects = render({**RELAY, "namespaceOverride": "network"}, release="lb")
    secrets = of_relay(objects, "Secret")
    api = of_relay(objects, "APIService")["v1alpha1.observe.ebpflb.io"]["spec"]
    service = api["service"]
    name = f"{service['name']}.{service['namespace']}.svc"
    trusting = deepcopy(secrets["lb-ebpflb-relay-agents"])
    trusting["data"]["ca.crt"] = api["caBundle"]
    server = handshake(tmp_path, secrets["lb-ebpflb-relay"], trusting, name).server
    assert subject(server) == "lb-ebpflb-relay"
    assert dns_names(server) == ["lb-ebpflb-relay", "lb-ebpflb-relay.network", name]


@pytest.mark.parametrize(
    ("server", "name"),
    [(AGENTS, "ebpflb-relay.kube-system.svc"), (SERVING, AGENT), (ASKING, AGENT)],
)
def test_no_certificate_serves_in_place_of_another(
    tmp_path: Path, made: dict[str, Object], server: str, name: str
) -> None:
    with pytest.raises(ssl.SSLError, match="verify failed"):
        handshake(tmp_path, made[server], made[ASKING], name)


def test_only_one_certificate_has_the_name_of_the_client(
    tmp_path: Path, made: dict[str, Object]
) -> None:
    """The CA alone proves nothing: every node holds a certificate of it."""
    leaves = (SERVING, ASKING, AGENTS)
    seen = {each: handshake(tmp_path, made[AGENTS], made[each], AGENT).client for each in leaves}
    assert [name for name in leaves if subject(seen[name]) == CLIENT] == [ASKING]


def test_neither_side_trusts_another_release(tmp_path: Path, made: dict[str, Object]) -> None:
    stranger = certificates()[ASKING]
    with pytest.raises(ssl.SSLError, match="verify failed: self-signed certificate in"):
        handshake(tmp_path, made[AGENTS], stranger, AGENT)
    stranger["data"]["ca.crt"] = made[CA]["data"]["ca.crt"]
    with pytest.raises(ssl.SSLError, match="verify failed"):
        handshake(tmp_path, made[AGENTS], stranger, AGENT)


def test_leaves_last_a_year_and_the_ca_ten(tmp_path: Path, made: dict[str, Object]) -> None:
    assert days(authority(made[AGENTS])) == 3650
    for server, name in ((AGENTS, AGENT), (SERVING, "ebpflb-relay")):
        peers = handshake(tmp_path, made[server], made[ASKING], name)
        assert (days(peers.server), days(peers.client)) == (365, 365)


def test_all_are_tls_secrets_and_none_but_its_own_has_the_key_of_the_ca(
    made: dict[str, Object],
) -> None:
    assert set(made) == {CA, SERVING, ASKING, AGENTS}
    for each in made.values():
        assert each["type"] == "kubernetes.io/tls"
        assert set(each["data"]) == {"ca.crt", "tls.crt", "tls.key"}
        assert text(each, "ca.crt") == text(made[CA], "tls.crt")
    assert len({each["data"]["tls.key"] for each in made.values()}) == 4


def test_each_pod_mounts_what_it_needs_and_not_the_ca(made: dict[str, Object]) -> None:
    objects = render(RELAY)
    relay = pod_of(of_relay(objects, "Deployment")["ebpflb-relay"])
    found = {path: each["volume"]["secret"] for path, each in mounts(relay, "relay").items()}
    assert {path: each["secretName"] for path, each in found.items()} == {
        "/etc/ebpflb/tls": SERVING,
        "/etc/ebpflb/agent-tls": ASKING,
    }
    there = mounts(agent(RELAY), "ebpflb")["/etc/ebpflb/observe"]
    assert there["volume"]["secret"]["secretName"] == AGENTS
    assert there["readOnly"] is True


def test_an_upgrade_keeps_them_with_their_age(made: dict[str, Object]) -> None:
    there = {name: aged(secret, 89) for name, secret in made.items()}
    objects = upgraded(there)
    assert changed(there, objects) == set()
    for name, secret in of_relay(objects, "Secret").items():
        assert secret["metadata"]["annotations"] == there[name]["metadata"]["annotations"]
    (api,) = of_relay(objects, "APIService").values()
    assert api["spec"]["caBundle"] == there[CA]["data"]["tls.crt"]


def test_an_upgrade_renews_what_is_old_with_the_ca_that_others_trust(
    tmp_path: Path, made: dict[str, Object]
) -> None:
    there = {
        **{name: aged(secret, 10) for name, secret in made.items()},
        AGENTS: aged(made[AGENTS], 91),
    }
    objects = upgraded(there)
    assert changed(there, objects) == {AGENTS}
    after = of_relay(objects, "Secret")
    all_speak(tmp_path, {**there, AGENTS: after[AGENTS]})
    assert days(handshake(tmp_path, after[AGENTS], there[ASKING], AGENT).server) == 365
    again = upgraded(after)
    assert changed(after, again) == set()


@pytest.mark.parametrize(("limit", "renewed"), [(0, True), (1, True), (3, False)])
def test_the_age_is_that_of_the_values(made: dict[str, Object], limit: int, renewed: bool) -> None:
    there = {name: aged(secret, 2) for name, secret in made.items()}
    values = {"relay": {"enabled": True, "certificates": {"renewAfterDays": limit}}}
    expected = {SERVING, ASKING, AGENTS} if renewed else set()
    assert changed(there, upgraded(there, values)) == expected


def test_a_ca_goes_before_what_it_signs_would_outlive_it(
    tmp_path: Path, made: dict[str, Object]
) -> None:
    there = {**made, CA: aged(made[CA], 9 * 365 - 1)}
    assert changed(there, upgraded(there)) == set()
    there[CA] = aged(made[CA], 9 * 365 + 1)
    objects = upgraded(there)
    assert changed(there, objects) == {CA, SERVING, ASKING, AGENTS}
    after = of_relay(objects, "Secret")
    all_speak(tmp_path, after)
    (api,) = of_relay(objects, "APIService").values()
    assert api["spec"]["caBundle"] == after[CA]["data"]["tls.crt"]


@pytest.mark.parametrize("lost", [CA, SERVING, ASKING, AGENTS])
def test_what_somebody_removed_is_made_again(
    tmp_path: Path, made: dict[str, Object], lost: str
) -> None:
    there = {name: secret for name, secret in made.items() if name != lost}
    objects = upgraded(there)
    assert changed(there, objects) == (set(made) if lost == CA else {lost})
    all_speak(tmp_path, of_relay(objects, "Secret"))


def test_certificates_that_somebody_else_made_are_replaced(
    tmp_path: Path, made: dict[str, Object]
) -> None:
    there = deepcopy(made)
    for each in there.values():
        del each["metadata"]["annotations"][MADE]
    objects = upgraded(there)
    assert changed(there, objects) == set(made)
    all_speak(tmp_path, of_relay(objects, "Secret"))

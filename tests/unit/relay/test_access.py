# SPDX-License-Identifier: Apache-2.0
import datetime
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kubernetes.config import incluster_config

from ebpflb.errors import ClusterError, ConfigError
from ebpflb.model.service import ServiceName
from ebpflb.relay.access import Kept, PodAccess, PodWithAddress
from tests.certificates import Authority
from tests.unit.relay.cluster import NODES, SHOP_IP, TELLER_IP, add_pod, host_pod

FRONT_PROXY = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
CURL = ServiceName("shop", "curl")


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Reads:
    def __init__(self, *results):
        self.results = list(results)

    def __call__(self):
        found = self.results.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def test_what_is_kept_is_read_again_after_some_time(monkeypatch):
    clock = Clock(monkeypatch)
    kept = Kept(5.0, Reads("one", "two", "three"))
    assert kept.last is None
    assert [kept.get(), kept.get()] == ["one", "one"]
    clock.now += 5
    assert kept.get() == "one"
    clock.now += 0.1
    assert [kept.get(), kept.get(), kept.last] == ["two", "two", "two"]


def test_an_error_is_not_kept_and_what_was_read_before_stays_known(monkeypatch):
    clock = Clock(monkeypatch)
    kept = Kept(5.0, Reads("one", ClusterError("gone"), "two"))
    assert kept.get() == "one"
    clock.now += 6
    with pytest.raises(ClusterError, match="gone"):
        kept.get()
    assert kept.last == "one"
    assert kept.get() == "two"


def test_it_counts_from_when_it_began_to_be_read(monkeypatch):
    clock = Clock(monkeypatch)

    def read():
        clock.now += 4
        return clock.now

    kept = Kept(5.0, read)
    assert kept.get() == 1004
    clock.now += 2
    assert kept.get() == 1010


def test_one_thread_reads_and_its_error_is_that_of_those_who_wait():
    begun, end, calls = threading.Event(), threading.Event(), []

    def read():
        calls.append(1)
        begun.set()
        assert end.wait(60)
        raise ClusterError("unreachable")

    kept = Kept(5.0, read)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(kept.get)
        assert begun.wait(60)
        # Nobody waits to see what is known.
        assert kept.last is None
        second = threads.submit(kept.get)
        end.set()
        for each in (first, second):
            assert isinstance(each.exception(), ClusterError)
    assert len(calls) <= 2


def test_what_another_thread_has_just_read_is_not_read_again():
    kept = Kept(5.0, Reads("one"))
    assert kept.get() == "one"
    # As if it had looked before that.
    assert kept._renewed() == "one"


def test_the_addresses_of_a_pod(relayed):
    assert relayed.cluster.addresses_of(CURL) == [SHOP_IP]


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        ({}, "pod shop/curl has no address yet"),
        ({"status": {"podIPs": None}}, "pod shop/curl has no address yet"),
        ({"status": None}, "an object that this version cannot read"),
        ({"status": {"podIPs": [{}]}}, "an object that this version cannot read"),
        ({"status": {"podIPs": 5}}, "an object that this version cannot read"),
        ([], "what answers is no API server"),
    ],
)
def test_an_odd_pod_is_an_error(relayed, pod, why):
    relayed.objects.texts["/api/v1/namespaces/shop/pods/curl"] = json.dumps(pod)
    with pytest.raises(ClusterError, match=why):
        relayed.cluster.addresses_of(CURL)


def test_a_name_is_part_of_a_path_whatever_is_in_it(relayed):
    with pytest.raises(ClusterError, match="not found: /api/v1/namespaces/shop/pods/%3Fx"):
        relayed.cluster.addresses_of(ServiceName("shop", "?x"))


def test_pods_with_an_address_are_those_that_have_not_ended(relayed):
    assert relayed.cluster.pods_with(TELLER_IP) == [PodWithAddress("bank", False)]
    assert relayed.cluster.pods_with("10.244.9.9") == []
    add_pod(relayed.objects, host_pod("shop", "one", "192.0.2.1"))
    assert relayed.cluster.pods_with("192.0.2.1") == [PodWithAddress("shop", True)]


@pytest.mark.parametrize("odd", [{}, {"metadata": None}, {"metadata": {"namespace": "a"}}])
def test_odd_pods_with_an_address_are_an_error(relayed, odd):
    relayed.objects.selected[f"status.podIP={SHOP_IP}"] = [odd]
    with pytest.raises(ClusterError):
        relayed.cluster.pods_with(SHOP_IP)


def test_nodes_may_be_odd(relayed):
    relayed.objects.lists["/api/v1/nodes"] += [{}, {"status": {"addresses": 5}, "spec": None}]
    found = relayed.cluster.addresses.get()
    assert found.nodes == {address for each in NODES.values() for address in each}
    assert not found.are_complete


def published(client_ca):
    lists = dict.fromkeys(("username-headers", "group-headers"), '["x-remote-user"]')
    more = {"extra-headers-prefix": '["x-remote-extra-"]', "allowed-names": '["front-proxy"]'}
    found = {"client-ca-file": client_ca, **lists, **more}
    return {"data": {f"requestheader-{key}": value for key, value in found.items()}}


def test_the_front_proxy_is_what_the_api_server_has_published(relayed, tmp_path):
    text = Authority(tmp_path / "ca", "proxy").text
    relayed.objects.texts[FRONT_PROXY] = json.dumps(published(f"CA of Zoë\n{text}"))
    assert relayed.cluster.front_proxy.get().client_ca == f"CA of Zo?\n{text}"


@pytest.mark.parametrize(
    ("configmap", "why"),
    [
        ({}, "an object that this version cannot read"),
        ({"data": None}, "an object that this version cannot read"),
        ({"data": {}}, "must run with --requestheader-client-ca-file"),
        (published("no certificate"), "the API server's front proxy has no readable CA"),
        (published("ümlaut"), "the API server's front proxy has no readable CA"),
        (
            published("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            "the API server's front proxy has no readable CA",
        ),
    ],
)
def test_without_a_front_proxy_nobody_can_ask(relayed, configmap, why):
    relayed.objects.texts[FRONT_PROXY] = json.dumps(configmap)
    with pytest.raises(ClusterError, match=why):
        relayed.cluster.front_proxy.get()


@pytest.fixture
def account(tmp_path, monkeypatch):
    """The files of a ServiceAccount."""
    ca = Authority(tmp_path / "account", "kubernetes")
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca.certificate))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    return token


def test_a_pod_reads_its_token_again_in_time(account, monkeypatch):
    found = PodAccess()
    assert found.server == "https://127.0.0.1:6443"
    assert found.cluster == "in-cluster (https://127.0.0.1:6443)"
    assert found._headers()["authorization"] == "bearer first"
    account.write_text("second")
    assert found._headers()["authorization"] == "bearer first"

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(minutes=2)

    monkeypatch.setattr(datetime, "datetime", Later)
    assert found._headers()["authorization"] == "bearer second"


@pytest.mark.parametrize("missing", ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"])
def test_outside_a_pod_there_is_no_access(account, monkeypatch, missing):
    monkeypatch.delenv(missing)
    with pytest.raises(ConfigError, match="not in a pod with a ServiceAccount: Service host/port"):
        PodAccess()


def test_without_a_token_there_is_no_access(account):
    account.unlink()
    with pytest.raises(ConfigError, match="not in a pod with a ServiceAccount: Service token"):
        PodAccess()

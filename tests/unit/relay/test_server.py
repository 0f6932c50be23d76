# SPDX-License-Identifier: Apache-2.0
"""The relay's port over real TLS, with an API server that publishes its front proxy."""

import shutil
import ssl
import threading
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
from kubernetes.config import incluster_config

from ebpflb.config.values import BindAddress
from ebpflb.errors import ClusterError
from ebpflb.observe.http.server import TcpPort
from ebpflb.relay.access import ObservedCluster, PodAccess
from ebpflb.relay.answers import Answers
from ebpflb.relay.following import FlowHub
from ebpflb.relay.server import MOST_AT_ONCE, RelayPort, ServingCertificates
from ebpflb.relay.watching import FlowWatches
from ebpflb.web.server import HttpServer
from ebpflb.words.observe import PATH
from tests.certificates import Authority
from tests.unit.kubectl.api_server import served
from tests.unit.relay.api import Account, reachable
from tests.unit.relay.client import CONFIG_MAP, FRONT_PROXY, NAME, Client, published, read_reply
from tests.unit.relay.cluster import Agents
from tests.unit.relay.talkative import talk

FLOWS = f"{PATH}/namespaces/shop/flows"
# What a client sees of it depends on what it has sent by then.
BROKEN_OFF = (ssl.SSLError, ConnectionError)
REFUSED = "only the API server may ask, for its users"


class Certificates:
    """Of everybody. proxy: the CA of the front proxy."""

    def __init__(self, base):
        self.chart, self.proxy = Authority(base / "chart", "chart"), Authority(base / "proxy", "p")
        self.relay = self.chart.issue(base / "relay", "relay", dns=NAME)
        self.of = {
            "api server": self.proxy.issue(base / "api-server", FRONT_PROXY),
            "another of its CA": self.proxy.issue(base / "another", "kubelet"),
            "agent": self.chart.issue(base / "agent", "agent.observe.ebpflb.io"),
            "relay": self.chart.issue(base / "own", "relay.observe.ebpflb.io"),
            "impostor": self.chart.issue(base / "impostor", FRONT_PROXY),
            "expired": self.proxy.issue(base / "expired", FRONT_PROXY, end=-timedelta(hours=1)),
            "nobody": None,
        }
        self.account = Account(base / "account")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Relay:
    """A relay that listens; agents that hold their answers while `busy` is set."""

    def __init__(self, certificates, folder, api):
        self.certificates = certificates
        self.api = api
        self.cluster = ObservedCluster(PodAccess(), "")
        self.agents = Agents(self._say)
        self.asked = threading.Semaphore(0)
        self.free = threading.Event()
        self.free.set()
        hub = FlowHub(self.cluster.agents.get, self._open)
        watches = FlowWatches(Answers(self.cluster, self.agents), hub.watch)
        port = RelayPort(self.cluster, watches, _front_proxy_is_known(self.cluster))
        found = ServingCertificates(folder, lambda: self.cluster.front_proxy.last)
        self.server = HttpServer()
        self.listening = TcpPort(
            self.server, BindAddress("127.0.0.1", 0), port.respond, encryption=found.context
        )
        self.listening.start(hard_fail=True)

    def _open(self, agent):
        raise OSError(111, "Connection refused")

    def _say(self, agent, question):
        self.asked.release()
        assert self.free.wait(60)
        return talk(agent, question)

    def client(self, who="api server"):
        ca = self.certificates.chart.certificate
        return Client(self.listening.number, ca, self.certificates.of[who])


def _front_proxy_is_known(cluster):
    def ready():
        try:
            cluster.front_proxy.get()
        except ClusterError as error:
            return str(error)
        return ""

    return ready


@pytest.fixture
def relaying(certificates, objects, monkeypatch, tmp_path):
    """Begins a relay, whose certificates are in a directory; the context ends it."""

    @contextmanager
    def begin():
        account = certificates.account
        account.rights.clear()
        account.rights.add("jane shop")
        for name, path in (("TOKEN", account.token), ("CERT", account.certificate)):
            monkeypatch.setattr(incluster_config, f"SERVICE_{name}_FILENAME", str(path))
        with ExitStack() as stack:
            url = stack.enter_context(served(objects))
            api = stack.enter_context(reachable(account, url))
            for name, value in account.environment.items():
                monkeypatch.setenv(name, value)
            relay = Relay(certificates, tmp_path / "relay", api)
            stack.callback(relay.server.stop)
            stack.callback(relay.listening.stop)
            stack.callback(relay.free.set)
            yield relay

    shutil.copytree(certificates.relay, tmp_path / "relay")
    return begin


@pytest.fixture
def relay(relaying, certificates, objects):
    objects.texts[CONFIG_MAP] = published(certificates.proxy.text)
    with relaying() as found:
        assert found.client("nobody").ask("/readyz").status == 200
        yield found


def test_the_api_server_asks_for_its_users(relay):
    reply = relay.client().ask(FLOWS, "jane")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
    assert reply.document["kind"] == "FlowList"
    assert reply.document["items"]
    assert "bank" not in reply.body
    assert "bank" in relay.client().ask(f"{PATH}/flows", "admin").body


def test_it_names_the_user(relay):
    assert relay.client().ask(FLOWS).document["message"] == REFUSED
    # Without rights of its own it sees less.
    assert "shop/curl" in relay.client().ask(FLOWS, "joe").body
    assert "203.0.113.1" not in relay.client().ask(FLOWS, "joe").body
    assert "203.0.113.1" in relay.client().ask(FLOWS, "admin").body


@pytest.mark.parametrize("who", ["nobody", "another of its CA"])
@pytest.mark.parametrize("path", [FLOWS, PATH, "/apis", "/", "/openapi/v2", f"{PATH}/flows"])
def test_others_cannot_ask_for_anybody(relay, who, path):
    reply = relay.client(who).ask(path, "admin", Authorization="Bearer t0k3n")
    assert (reply.status, reply.document["reason"]) == (401, "Unauthorized")
    assert reply.document["message"] == REFUSED
    assert not relay.agents.asked


@pytest.mark.parametrize("who", ["agent", "relay", "impostor", "expired"])
def test_certificates_of_another_authority_are_refused(relay, who):
    with pytest.raises(BROKEN_OFF):
        relay.client(who).ask(FLOWS, "admin")
    assert not relay.agents.asked


def test_a_token_alone_names_nobody(relay):
    reply = relay.client("nobody").ask(FLOWS, Authorization="Bearer t0k3n")
    assert reply.status == 401


@pytest.mark.parametrize("who", ["nobody", "api server"])
def test_probes_need_no_certificate(relay, who):
    for path in ("/livez", "/readyz", "/livez?verbose"):
        reply = relay.client(who).ask(path)
        assert (reply.status, reply.body) == (200, "ok")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "HEAD"])
def test_nothing_but_get_is_answered(relay, method):
    with relay.client().connect() as connection:
        relay.client().send(connection, FLOWS, "admin", method)
        head = connection.recv(1 << 16).split(b"\r\n")[0]
    assert head == b"HTTP/1.1 405 Method Not Allowed"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/apis", "APIGroupList"),
        ("/apis/", "APIGroupList"),
        ("/apis/observe.ebpflb.io", "APIGroup"),
        (PATH, "APIResourceList"),
        (f"{PATH}?timeout=5s", "APIResourceList"),
    ],
)
def test_the_api_server_discovers_what_there_is(relay, path, kind):
    reply = relay.client().ask(path, "system:kube-aggregator")
    assert (reply.status, reply.document["kind"]) == (200, kind)


@pytest.mark.parametrize("path", ["/", "/openapi/v3", f"{PATH}/pods", "/metrics", "*"])
def test_other_paths_are_unknown(relay, path):
    reply = relay.client().ask(path, "admin")
    assert (reply.status, reply.document["reason"]) == (404, "NotFound")


def test_wrong_requests_are_a_status(relay):
    reply = relay.client().ask(f"{FLOWS}?x=1", "jane")
    assert (reply.status, reply.document["kind"]) == (400, "Status")


@pytest.mark.parametrize("published_later", [published("no certificate"), None])
def test_until_the_api_server_has_published_how_it_asks(
    relaying, certificates, objects, published_later
):
    if published_later:
        objects.texts[CONFIG_MAP] = published_later
    with relaying() as relay:
        reply = relay.client().ask("/readyz")
        why = "no readable CA" if published_later else "extension-apiserver-authentication"
        assert reply.status == 503
        assert why in reply.body
        assert len(reply.body.splitlines()) == 1
        assert relay.client().ask("/livez").status == 200
        reply = relay.client().ask(FLOWS, "jane")
        assert (reply.status, reply.document["reason"]) == (503, "ServiceUnavailable")
        objects.texts[CONFIG_MAP] = published(certificates.proxy.text)
        assert relay.client().ask("/readyz").status == 200
        assert relay.client().ask(FLOWS, "jane").status == 200


def test_without_a_certificate_of_its_own_it_waits_for_one(
    relaying, certificates, objects, tmp_path
):
    objects.texts[CONFIG_MAP] = published(certificates.proxy.text)
    (tmp_path / "relay" / "tls.key").rename(tmp_path / "key")
    with relaying() as relay:
        with pytest.raises(BROKEN_OFF):
            relay.client().ask("/livez")
        (tmp_path / "key").rename(tmp_path / "relay" / "tls.key")
        assert relay.client().ask("/livez").status == 200


def test_a_new_authority_of_the_front_proxy_is_taken(relay, objects, tmp_path):
    new = Authority(tmp_path / "new", "new")
    folder = new.issue(tmp_path / "new-api-server", FRONT_PROXY)
    objects.texts[CONFIG_MAP] = published(new.text)
    relay.cluster.front_proxy._read_at -= 61
    assert relay.client("nobody").ask("/readyz").status == 200
    client = relay.client()._replace(folder=folder)
    assert client.ask(FLOWS, "jane").status == 200
    with pytest.raises(BROKEN_OFF):
        relay.client().ask(FLOWS, "jane")


def test_more_than_it_can_answer_at_once_are_told_to_try_again(relay):
    relay.free.clear()
    with ExitStack() as stack:
        waiting = []
        for number in range(1, MOST_AT_ONCE + 1):
            connection = stack.enter_context(relay.client().connect())
            who = f"user-{number % 4}"
            relay.client().send(connection, f"{FLOWS}?limit={number}&node=a", who)
            waiting.append(connection)
            assert relay.asked.acquire(timeout=60)
        reply = relay.client().ask(FLOWS, "jane")
        assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
        assert reply.document["reason"] == "TooManyRequests"
        # These are answered meanwhile.
        assert relay.client("nobody").ask("/readyz").status == 200
        assert relay.client().ask(PATH, "jane").status == 200
        relay.free.set()
        assert {read_reply(each).status for each in waiting} == {200}
    assert relay.client().ask(FLOWS, "jane").status == 200


def test_who_asks_for_the_same_shares_the_agents_answers(relay):
    relay.free.clear()
    with relay.client().connect() as jane, relay.client().connect() as joe:
        relay.client().send(jane, FLOWS, "jane")
        for _ in "ab":
            assert relay.asked.acquire(timeout=60)
        relay.client().send(joe, FLOWS, "jane")
        assert relay.client("nobody").ask("/readyz").status == 200
        relay.free.set()
        assert read_reply(jane).document == read_reply(joe).document


def test_while_the_api_server_is_unreachable_the_reason_is_one_line(relay):
    relay.api.server_close()
    reply = relay.client().ask(f"{PATH}/flows", "admin")
    assert reply.status == 503
    assert len(reply.document["message"].splitlines()) == 1
    assert reply.document["message"].startswith("cannot reach the API server at https://127.0.0.1:")
    relay.cluster.front_proxy._read_at -= 61
    reply = relay.client().ask(FLOWS, "jane")
    assert (reply.status, reply.document["reason"]) == (503, "ServiceUnavailable")
    # The probe does not wait for it.
    assert relay.client("nobody").ask("/livez").status == 200


def test_a_reader_may_be_slow_and_others_idle(relay):
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(relay.client("nobody").connect())
        slow = stack.enter_context(relay.client().connect())
        relay.client().send(slow, f"{PATH}/flows", "admin")
        first = slow.recv(1)
        assert relay.client().ask(FLOWS, "jane").status == 200
        rest = b""
        while piece := slow.recv(1 << 16):
            rest += piece
    assert (first + rest).startswith(b"HTTP/1.1 200 OK")
    assert rest.endswith(b"}")


def test_probes_do_not_wait_for_the_api_server(relaying, certificates, objects, monkeypatch):
    objects.texts[CONFIG_MAP] = published(certificates.proxy.text)
    with relaying() as relay:
        begun, end = threading.Event(), threading.Event()

        def read():
            begun.set()
            assert end.wait(60)
            return published

        monkeypatch.setattr(relay.cluster.front_proxy, "_read", read)
        with relay.client("nobody").connect() as waiting:
            relay.client("nobody").send(waiting, "/readyz", "")
            assert begun.wait(60)
            assert relay.client("nobody").ask("/livez").status == 200
            end.set()
            read_reply(waiting)

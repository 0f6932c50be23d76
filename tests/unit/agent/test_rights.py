# SPDX-License-Identifier: Apache-2.0
"""The thread that reads what clients send has given up files and sockets, and answers over TLS."""

import json
import socket

import pytest

from ebpflb.agent.rights import Rights, client_role
from ebpflb.observe.http.query_port import QueryPort
from ebpflb.observe.http.query_socket import json_reply
from ebpflb.web.answers import Request
from ebpflb.web.server import Clients, HttpServer
from ebpflb.web.tls import Certificates, mutual_server
from ebpflb.words.observe import AGENT
from tests.unit.mutual import Mounted, ask, connected


class Agent:
    """The server of an agent, and the port for the relay."""

    def __init__(self, certificates) -> None:
        self.rights = Rights()
        self.server = HttpServer(lambda: self.rights.give_up(client_role()))
        self.tried: list[str] = []
        encryption = Certificates(certificates, mutual_server).context
        routes = {"/v1/echo": lambda query: json_reply(dict(query.parameters))}
        self.port = QueryPort(self.server, ("127.0.0.1", 0), routes, encryption)
        self.port.start()

    def refused(self, certificates) -> list[str]:
        """What the server's thread may not do."""
        attempts = {
            "system calls": lambda: socket.socket().close(),
            "files": lambda: (certificates / "tls.key").read_bytes(),
        }
        found: list[str] = []

        async def respond(_: Request):
            for what, attempt in attempts.items():
                try:
                    attempt()
                except PermissionError:
                    found.append(what)
            return json_reply(found)

        with socket.create_server(("127.0.0.1", 0)) as listening:
            clients = Clients()
            self.server.listen(listening, respond, clients)
            with socket.create_connection(listening.getsockname(), 60) as client:
                client.sendall(b"GET / HTTP/1.0\r\n\r\n")
                answer = b"".join(iter(lambda: client.recv(4096), b""))
            self.server.close(listening)
        return list(json.loads(answer.partition(b"\r\n\r\n")[2]))


@pytest.fixture
def mounted(tmp_path):
    (tmp_path / "observe").mkdir()
    return Mounted(tmp_path / "observe")


@pytest.fixture
def agent(mounted):
    made = Agent(mounted.directory)
    yield made
    made.port.stop()
    made.server.stop()


def serial_number(agent, parties):
    with connected(agent.port.number, parties.relay) as client:
        return (client.getpeercert() or {})["serialNumber"]


def test_it_takes_no_right_of_that_thread_to_serve_over_tls(agent, mounted, parties, tmp_path):
    mounted.put(parties.agent)
    # What the kernel does not let it give up it keeps.
    given_up = [what for what in ("system calls", "files") if what not in agent.rights.kept]
    assert agent.refused(mounted.directory) == given_up
    for _ in range(2):
        answer = ask(agent.port.number, parties.relay, "/v1/echo?x=1")
        assert (answer.status, json.loads(answer.body)) == (200, {"x": "1"})
    before = serial_number(agent, parties)
    mounted.put(parties.authority.issue(tmp_path / "next", AGENT, dns=AGENT))
    assert serial_number(agent, parties) != before


def test_certificates_may_come_after_the_rights_were_given_up(agent, mounted, parties, caplog):
    with pytest.raises(OSError, match=r"."):
        ask(agent.port.number, parties.relay, "/v1/echo")
    assert "cannot read the certificates" in caplog.text
    mounted.put(parties.agent)
    assert ask(agent.port.number, parties.relay, "/v1/echo").status == 200


def test_other_clients_are_refused_by_that_thread(agent, mounted, parties, tmp_path):
    mounted.put(parties.agent)
    other = parties.authority.issue(tmp_path / "other", "other")
    assert ask(agent.port.number, other, "/v1/echo").status == 403

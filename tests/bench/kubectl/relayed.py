# SPDX-License-Identifier: Apache-2.0
"""A relay between an API server and 200 nodes: the time of its answers, and its memory.

Another process is the API server and all agents, which answer over mutual TLS as large as in a
cluster with 1,000 Services.
"""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ebpflb.observe.http.server import TcpPort
from ebpflb.web.answers import TEXT, Answer, Request, Respond, StreamedAnswer
from ebpflb.web.server import HttpServer
from ebpflb.web.tls import CA, Certificates, mutual_server
from ebpflb.words.observe import AGENT, PATH, RELAY
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, limit_row, plain_row
from tests.bench.kubectl.many_nodes import CALLED, NODES, on_node
from tests.certificates import Authority
from tests.ports import free_port
from tests.proc_status import ProcStatus
from tests.unit.kubectl import answers
from tests.unit.kubectl.api_server import Objects, node, pod, served
from tests.unit.relay.api import Account, reachable
from tests.unit.relay.client import CONFIG_MAP, FRONT_PROXY, NAME, Client, published

SERVICES, WATCHERS, ROUNDS = 1_000, (5, 1_000), 5

_BENCH = "relay"
_INTERVAL, _WATCHED_SECONDS, _FLOWS_A_SECOND = 0.1, 10.0, 20
_FLOWS = 50
_QUESTIONS = ("frontends", f"rates?interval={_INTERVAL}", f"flows?limit={_FLOWS}", "connections")
_PROGRAM = """
import sys
from kubernetes.config import incluster_config as config
config.SERVICE_TOKEN_FILENAME, config.SERVICE_CERT_FILENAME = sys.argv[1:3]
from ebpflb.cli import main
main(sys.argv[3:])
"""


class _Around(NamedTuple):
    """Of a relay: its environment, its account's files, its own certificates, the agents' port."""

    environment: Mapping[str, str]
    account: tuple[str, str]
    agent_port: int


def run(options: Options) -> Iterator[Row]:
    """Two rows for each question, and two for so many watchers."""
    nodes, services = options.scaled(NODES), options.scaled(SERVICES)
    case = f"{nodes} nodes, {services:,} Services"
    with (
        TemporaryDirectory() as name,
        _cluster(Path(name), nodes, services) as around,
        _relay(Path(name), around) as (process, port),
    ):
        folder = Path(name)
        asker = Client(port, folder / "chart" / CA, folder / FRONT_PROXY)
        # By this it learns how to know the API server.
        if asker.ask("/readyz").status != HTTPStatus.OK:
            raise BenchError("the relay is not ready")
        for question in _QUESTIONS:
            seconds = [_ask(asker, question, nodes) for _ in range(ROUNDS)]
            what = f"{question.partition('?')[0]}, {case}"
            yield limit_row(_BENCH, f"{what}: time", seconds, "s", 3)
            yield limit_row(_BENCH, f"{what}: memory, the most so far", [_most(process)], "MB", 150)
        for count in map(options.scaled, WATCHERS):
            with _watching(asker, count):
                used = _used(process)
                time.sleep(_WATCHED_SECONDS)
                share = (_used(process) - used) / _WATCHED_SECONDS
            what = f"{count:,} watchers of {_FLOWS_A_SECOND} flows/s"
            yield plain_row(_BENCH, f"{what}: processor", share * 100, "% of a core")
            yield plain_row(_BENCH, f"{what}: memory, the most so far", _most(process), "MB")


def _ask(asker: Client, question: str, nodes: int) -> float:
    began = time.perf_counter()
    reply = asker.ask(f"{PATH}/{question}", "admin")
    took = time.perf_counter() - began
    if reply.status != HTTPStatus.OK or reply.document["failures"]:
        raise BenchError(
            f"the relay answers {reply.status}: {list(reply.document.items())[-1]!s:.400}"
        )
    return took


@contextmanager
def _watching(asker: Client, count: int) -> Iterator[None]:
    with ExitStack() as opened:
        for number in range(count):
            connection = opened.enter_context(asker.connect())
            asker.send(connection, f"{PATH}/flows?watch=true", f"user-{number % 4}")
            if b" 200 " not in connection.recv(1 << 16):
                raise BenchError("the relay refuses a watcher")
            # What it sends from now on stays in the buffers of the kernel, or is lost.
        yield


@contextmanager
def _relay(folder: Path, around: _Around) -> Iterator[tuple[int, int]]:
    """Its process and port."""
    port = free_port()
    argv = [
        *(sys.executable, "-c", _PROGRAM, *around.account, "relay"),
        *(f"--bind-address=127.0.0.1:{port}", f"--tls-directory={folder / 'served'}"),
        *(f"--agent-tls-directory={folder / 'relay'}", f"--agent-port={around.agent_port}"),
    ]
    environment = {**os.environ, **around.environment}
    with subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE) as process:
        try:
            if not process.stderr or b"started" not in process.stderr.readline():
                raise BenchError("the relay does not start")
            yield process.pid, port
        finally:
            process.kill()


@contextmanager
def _cluster(folder: Path, nodes: int, services: int) -> Iterator[_Around]:
    chart = Authority(folder / "chart")
    chart.issue(folder / "served", "relay", dns=NAME)
    chart.issue(folder / "relay", RELAY)
    chart.issue(folder / "agents", AGENT, dns=AGENT)
    proxy = Authority(folder / "proxy")
    proxy.issue(folder / FRONT_PROXY, FRONT_PROXY)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_serve, args=(theirs, folder, nodes, services)
    )
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.send("end")
        process.join()


def _serve(parent: Connection, folder: Path, nodes: int, services: int) -> None:
    names = [f"node-{number}" for number in range(nodes)]
    objects = Objects()
    objects.lists["/api/v1/pods"] = [_pod(*each) for each in enumerate(names)]
    objects.lists["/api/v1/nodes"] = list(map(node, names))
    objects.texts[CONFIG_MAP] = published((folder / "proxy" / CA).read_text())
    account, http = Account(folder / "account"), HttpServer()
    certificates = Certificates(folder / "agents", mutual_server)
    port = free_port()
    agents = _AgentsPort(
        http, ("0.0.0.0", port), _told(nodes, services), encryption=certificates.context
    )
    agents.start(hard_fail=True)
    with served(objects) as url, reachable(account, url):
        files = str(account.token), str(account.certificate)
        parent.send(_Around(account.environment, files, port))
        parent.recv()
    agents.stop()
    http.stop()


class _AgentsPort(TcpPort):
    most_clients = 2 * NODES


def _pod(number: int, name: str) -> dict[str, Any]:
    found = pod(name)
    return {
        **found,
        "status": {**found["status"], "podIP": f"127.0.{1 + number // 250}.{1 + number % 250}"},
    }


def _told(nodes: int, services: int) -> Respond:
    """What each agent answers; that all say the same makes nothing simpler for the relay."""
    told = on_node(0, nodes, services, min(CALLED, services))
    flows = answers.lines(*map(answers.flow, range(_FLOWS))).encode()
    texts = {
        "/v1/services": told["services --compact"].encode(),
        "/v1/top": told["top --compact"].encode(),
        "/v1/flows": flows,
        "/v1/connections": b"",
    }

    async def respond(request: Request) -> Answer | StreamedAnswer:
        path, _, query = request.target.partition("?")
        if "follow=" in query:
            return StreamedAnswer(_flowing(nodes))
        if path == "/v1/top":
            await asyncio.sleep(_INTERVAL)
        return Answer(texts[path], TEXT)

    return respond


def _flowing(nodes: int) -> Iterator[bytes]:
    line = answers.lines(answers.flow(1)).encode()
    while True:
        time.sleep(nodes / _FLOWS_A_SECOND)
        yield line


def _most(process: int) -> float:
    return ProcStatus.of(process).number("VmHWM") * 1024 / 1e6


def _used(process: int) -> float:
    """Seconds of processor time."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

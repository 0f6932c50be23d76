# SPDX-License-Identifier: Apache-2.0
"""`ebpflb relay` as a process."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
from click.testing import CliRunner

from ebpflb.cli import main
from ebpflb.words.observe import AGENT, PATH, RELAY
from tests.certificates import Authority
from tests.unit.kubectl.api_server import served
from tests.unit.relay.api import Account, reachable
from tests.unit.relay.client import CONFIG_MAP, FRONT_PROXY, NAME, Client, published

# With the files of a ServiceAccount elsewhere than in a pod.
_PROGRAM = """
import sys
from kubernetes.config import incluster_config as config
config.SERVICE_TOKEN_FILENAME, config.SERVICE_CERT_FILENAME = sys.argv[1:3]
from ebpflb.cli import main
main(sys.argv[3:])
"""


@pytest.fixture
def begin(objects, tmp_path):
    """Starts the process with options; its port is free before."""
    with ExitStack() as stack:
        account = Account(tmp_path / "account")
        url = stack.enter_context(served(objects))
        stack.enter_context(reachable(account, url))

        files = account.token, account.certificate

        def started(*options):
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *map(str, (*files, "relay", *options))],
                env={**os.environ, **account.environment},
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield started


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_starts_and_serves_and_ends(begin, objects, tmp_path, number):
    proxy, chart = Authority(tmp_path / "proxy", "proxy"), Authority(tmp_path / "chart", "chart")
    objects.texts[CONFIG_MAP] = published(proxy.text)
    own = chart.issue(tmp_path / "own", "relay", dns=NAME)
    port = free_port()
    process = begin(
        *("--bind-address", f"127.0.0.1:{port}", "--tls-directory", own),
        *("--agent-tls-directory", tmp_path / "agents", "--agent-port", free_port()),
    )
    line = process.stderr.readline()
    assert "started" in line
    assert str(port) in line
    client = Client(port, chart.certificate, proxy.issue(tmp_path / "api", FRONT_PROXY))
    reply = client.ask("/readyz")
    assert reply.status == 503
    assert "ca.crt" in reply.body
    chart.issue(tmp_path / "agents", RELAY, dns=AGENT)
    assert client.ask("/readyz").body == "ok"
    reply = client.ask(f"{PATH}/flows?node=a", "admin")
    assert reply.status == 200
    (why,) = reply.document["failures"]
    assert why.startswith(("cannot be reached", "does not answer in time"))
    process.send_signal(number)
    assert process.wait(30) == 0
    assert "Traceback" not in process.stderr.read()


def test_an_address_that_is_taken_is_an_error(begin, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = begin("--bind-address", f"127.0.0.1:{taken.getsockname()[1]}")
        said = process.stderr.read()
        assert process.wait(30) == 1
    assert said.splitlines()[-1].startswith("Error: cannot listen at 127.0.0.1:")
    assert "Traceback" not in said


def test_outside_a_pod_it_says_so_in_one_line(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = CliRunner().invoke(main, ["relay"])
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        "Error: not in a pod with a ServiceAccount: Service host/port is not set."
    ]


@pytest.mark.parametrize(
    "options",
    [
        ["--bind-address", "8443"],
        ["--bind-address", ""],
        ["--bind-address", "localhost:8443"],
        ["--agent-port", "0"],
        ["--agent-port", "x"],
        ["--no-such-option"],
        ["argument"],
    ],
)
def test_wrong_options_are_a_usage_error(options):
    done = CliRunner().invoke(main, ["relay", *options])
    assert done.exit_code == 2, done.output
    assert "Error: " in done.output

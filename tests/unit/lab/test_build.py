# SPDX-License-Identifier: Apache-2.0
import contextlib
import socket
import threading
from dataclasses import dataclass

import pytest

from ebpflb.errors import ProbeError
from ebpflb.lab.build import Attempt, wait_reachable
from tests.ports import free_port
from tests.unit.lab.serving import serving


@dataclass(frozen=True)
class Here:
    """A member without a namespace."""

    name: str = "here"

    def entered(self):
        return contextlib.nullcontext()


def a_pod(answer=b"pod-1-1\n"):
    def serve(sock):
        sock.recv(64)
        sock.sendall(answer)

    return serving(serve)


def test_paths_that_work_end_the_wait():
    with a_pod() as port:
        wait_reachable([Attempt(Here(), "127.0.0.1", port, "pod-1-1")] * 3, 60)


def test_an_answer_from_somebody_else_is_a_failure(monkeypatch):
    monkeypatch.setattr("ebpflb.lab.build._ATTEMPT_SECONDS", 60)
    with a_pod(b"pod-9-9\n") as port:
        path = Attempt(Here(), "127.0.0.1", port, "pod-1-1")
        with pytest.raises(ProbeError, match=r"here to pod-1-1 .*: answered by 'pod-9-9'"):
            wait_reachable([path], 0.05)


def test_a_refusal_is_a_failure_where_a_pod_must_answer_and_enough_elsewhere():
    port = free_port()
    wait_reachable([Attempt(Here(), "127.0.0.1", port)], 0.05)
    with pytest.raises(ProbeError, match=r"1 of 1 paths fail; .*: refused"):
        wait_reachable([Attempt(Here(), "127.0.0.1", port, "pod-1-1")], 0.05)


def test_a_server_that_comes_late_is_waited_for():
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        port = late.getsockname()[1]

        def serve():
            late.listen()
            with late.accept()[0] as sock:
                sock.recv(64)
                sock.sendall(b"p\n")

        timer = threading.Timer(0.2, serve)
        timer.start()
        wait_reachable([Attempt(Here(), "127.0.0.1", port, "p")], 60)
        timer.join()


def test_silence_is_a_failure():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = Attempt(Here(), "127.0.0.1", silent.getsockname()[1], "p")
        with pytest.raises(ProbeError, match="timed out"):
            wait_reachable([path], 0.05)

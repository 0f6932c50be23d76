# SPDX-License-Identifier: Apache-2.0
"""The load generator with servers that behave and servers that do not."""

import contextlib
import itertools
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ebpflb.errors import EbpflbError
from ebpflb.lab import load
from ebpflb.lab.load import Load, LoadConnection, LoadOptions, parse_output, summarize
from ebpflb.lab.member import LoadRun
from tests.ports import free_port
from tests.unit.lab.serving import serving

SECONDS = 60


def answer(sock):
    """What a good pod does."""
    while sock.recv(64):
        sock.sendall(b"a\n")


def close_at_once(sock):
    sock.recv(64)


def stay_silent(sock):
    while sock.recv(64):
        pass


def break_off(sock):
    sock.recv(64)
    sock.sendall(b"half a na")


def reset(sock):
    sock.recv(64)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


def run(port, timeout=SECONDS, **options):
    done: list[LoadConnection] = []
    Load("127.0.0.1", port, LoadOptions(timeout=timeout, **options), done.append).run()
    return done


def test_every_connection_is_reported_once():
    with serving(answer) as port:
        done = run(port, count=50, workers=5)
    assert sorted(each.number for each in done) == list(range(50))
    assert {(each.pod, each.error, each.exchanges) for each in done} == {("a", "", 1)}
    assert all(each.client.startswith("127.0.0.1 ") for each in done)


@pytest.mark.parametrize(
    ("serve", "error"),
    [
        (close_at_once, "closed"),
        (break_off, "closed"),
        (stay_silent, "timeout"),
        (reset, "reset"),
    ],
)
def test_every_failure_is_noticed_and_named(serve, error):
    with serving(serve) as port:
        done = run(port, timeout=0.2 if error == "timeout" else SECONDS, count=4)
    assert [each.error for each in done] == [error] * 4
    assert {each.pod for each in done} == {""}


def test_a_refused_connection_is_named():
    assert [each.error for each in run(free_port(), count=2)] == ["refused"] * 2


def test_one_failure_among_many_is_not_lost():
    turn = itertools.count()

    def fail_once(sock):
        if next(turn) != 17:
            answer(sock)

    with serving(fail_once) as port:
        done = run(port, count=40, workers=1)
    assert [each.number for each in done if each.error] == [17]


def test_a_held_connection_that_changes_its_pod_has_moved():
    def change(sock):
        for name in (b"a\n", b"a\n", b"b\n"):
            sock.recv(64)
            sock.sendall(name)

    with serving(change) as port:
        (done,) = run(port, count=1, exchanges=5, interval=0.01)
    assert (done.error, done.exchanges, done.pod) == ("moved", 2, "a")


def test_a_held_connection_that_breaks_between_exchanges_is_noticed():
    def twice(sock):
        for _ in range(2):
            sock.recv(64)
            sock.sendall(b"a\n")

    with serving(twice) as port:
        (done,) = run(port, count=1, exchanges=0, duration=SECONDS, interval=0.05)
    assert done.error in {"closed", "reset"}
    assert done.exchanges == 2


def test_the_rate_bounds_how_many_are_made():
    with serving(answer) as port:
        begin = time.monotonic()
        done = run(port, rate=100, count=20)
        assert time.monotonic() - begin >= 0.19
        assert len(done) == 20


def test_the_duration_ends_the_load():
    with serving(answer) as port:
        done = run(port, rate=50, duration=0.2)
    assert 0 < len(done) <= 11


def test_stopping_lets_those_under_way_end_in_order():
    second = threading.Barrier(3, lambda: held.stop())

    def stop_at_the_second_exchange(sock):
        sock.recv(64)
        sock.sendall(b"a\n")
        sock.recv(64)
        second.wait()
        sock.sendall(b"a\n")
        answer(sock)

    with serving(stop_at_the_second_exchange) as port:
        done: list[LoadConnection] = []
        options = LoadOptions(exchanges=0, workers=3, count=3, interval=0.02, timeout=SECONDS)
        held = Load("127.0.0.1", port, options, done.append)
        held.run()
    assert [each.error for each in done] == ["", "", ""]
    assert all(each.exchanges > 1 for each in done)


@pytest.mark.parametrize(
    ("options", "open_ones"),
    [({"exchanges": 0, "workers": 3, "count": 3}, 3), ({"rate": 100.0, "count": 0}, 1)],
)
def test_it_has_begun_when_as_many_as_there_may_be_at_once_had_an_exchange(options, open_ones):
    served, at_first = itertools.count(1), []

    def count(sock):
        next(served)
        answer(sock)

    def begun():
        at_first.append(next(served))
        it.stop()

    with serving(count) as port:
        it = Load("127.0.0.1", port, LoadOptions(**options), lambda _: None, begun)
        it.run()
    (at_begin,) = at_first
    assert at_begin > open_ones


def test_one_that_fails_has_begun_too():
    begun: list[bool] = []
    options = LoadOptions(count=3, workers=2)
    Load("127.0.0.1", free_port(), options, lambda _: None, lambda: begun.append(True)).run()
    assert begun == [True]


class Stalled:
    """As if this process had been without CPU while it waited for an answer."""

    def __init__(self):
        self.is_noticed = threading.Event()
        self._looks = itertools.count(1)

    def watched(self):
        return contextlib.nullcontext()

    @property
    def seconds(self):
        """One look is before the connection, one before the wait, one after it."""
        if next(self._looks) < 3:
            return 0.0
        self.is_noticed.set()
        return 60.0


def test_a_stall_of_the_process_is_no_timeout(monkeypatch):
    stalled = Stalled()
    monkeypatch.setattr(load, "Stalls", lambda: stalled)

    def answer_late(sock):
        sock.recv(64)
        assert stalled.is_noticed.wait(60)
        sock.sendall(b"a\n")

    with serving(answer_late) as port:
        (done,) = run(port, timeout=0.2, count=1)
    assert (done.error, done.pod) == ("", "a")


def test_what_goes_wrong_inside_is_not_swallowed():
    def refuse(_connection):
        raise RuntimeError("full")

    with serving(answer) as port, pytest.raises(RuntimeError, match="full"):
        Load("127.0.0.1", port, LoadOptions(), refuse).run()


@pytest.mark.parametrize("unconnected", [False, True])
def test_udp(unconnected):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve():
            for _ in range(3):
                server.sendto(b"a", server.recvfrom(64)[1])

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        options = {"protocol": "udp", "workers": 1, "unconnected": unconnected}
        done = run(port, count=3, **options) + run(port, timeout=0.2, count=1, **options)
        thread.join()
    assert [each.error for each in done] == ["", "", "", "timeout"]


def test_a_datagram_from_an_address_that_was_not_asked_is_a_failure():
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        server.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=lambda: other.sendto(b"a", server.recvfrom(64)[1]))
        thread.start()
        port = server.getsockname()[1]
        (done,) = run(port, protocol="udp", count=1, unconnected=True)
        thread.join()
    assert done.error == "stranger"


def test_the_summary_counts_pods_and_errors():
    connections = [
        LoadConnection(0, 0.0, ms=1.0, pod="a"),
        LoadConnection(1, 0.0, ms=3.0, pod="b"),
        LoadConnection(2, 0.0, ms=2.0, pod="a"),
        LoadConnection(3, 0.0, ms=900.0, pod="b", error="reset"),
    ]
    result = summarize(connections, 2.0)
    assert (result.attempted, result.ok, result.failed) == (4, 3, 1)
    assert result.pods == {"a": 2, "b": 2}
    assert result.errors == {"reset": 1}
    assert (result.p50_ms, result.p99_ms, result.max_ms) == (2.0, 3.0, 3.0)
    assert result.rate == 2.0


@pytest.mark.parametrize("options", [LoadOptions(), LoadOptions("udp", 3, 1.5, unconnected=True)])
def test_options_survive_the_command_line(options):
    assert load._parse([*options.arguments(), "--", "::1", "80"]) == ("::1", 80, options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "started\n",
        'started\n{"number": 0, "started": 1.0}\n',
        'started\n{"attempted": 1, "ok": 1}\n',
        'started\n{"number": 0, "started": 1.0, "error": "reset"}\n{"attempted": 1, "ok": 1}\n',
    ],
)
def test_output_that_does_not_add_up_is_refused(text):
    with pytest.raises(ValueError, match="the load"):
        parse_output(text)


def test_a_run_reports_from_a_process_of_its_own():
    answered = threading.Event()

    def answer_and_tell(sock):
        answer(sock)
        answered.set()

    options = LoadOptions(timeout=SECONDS)
    with (
        serving(answer_and_tell) as port,
        LoadRun(subprocess.Popen, "127.0.0.1", port, options) as it,
    ):
        assert answered.wait(SECONDS)
        result = it.stop()
    assert result.failed == 0
    assert result.ok == result.attempted == len(result.connections) > 0
    assert result.pods == {"a": result.ok}


def test_the_exit_status_reports_failures():
    command = [
        sys.executable,
        "-I",
        "-S",
        str(Path(load.__file__)),
        "--count",
        "2",
        "--timeout",
        str(SECONDS),
        "--",
    ]
    with serving(answer) as port:
        good = subprocess.run([*command, "127.0.0.1", str(port)], capture_output=True, check=False)
    nobody = str(free_port())
    bad = subprocess.run([*command, "127.0.0.1", nobody], capture_output=True, check=False)
    assert (good.returncode, bad.returncode) == (0, 1)
    assert parse_output(bad.stdout.decode()).errors == {"refused": 2}


def test_a_run_that_is_killed_has_no_result():
    with serving(answer) as port:
        it = LoadRun(subprocess.Popen, "127.0.0.1", port, LoadOptions(rate=10))
        it.wait_started()
        it._process.send_signal(signal.SIGKILL)
        with pytest.raises(EbpflbError, match="without a summary"):
            it.result(SECONDS)


def test_a_run_that_cannot_start_says_why():
    options = LoadOptions(protocol="tcp")
    with (
        LoadRun(subprocess.Popen, "no-address", 1, options) as it,
        pytest.raises(EbpflbError, match="did not start"),
    ):
        it.wait_started()


def test_a_run_that_does_not_end_in_time_is_ended():
    with serving(answer) as port:
        it = LoadRun(subprocess.Popen, "127.0.0.1", port, LoadOptions(rate=10))
        it.wait_started()
        with pytest.raises(EbpflbError, match="still running after"):
            it.result(0.05)

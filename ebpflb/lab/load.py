# SPDX-License-Identifier: Apache-2.0
"""Sends connections to an address and notices each one that fails.

Standard library only and started by path inside a namespace. It prints "started" when as many
connections as there may be at once (without a count: one) have had an exchange or have failed. Then
it prints one JSON line per connection as it ends (the fields of LoadConnection) and a last one with
the summary. Exit status 1 when any connection failed. On SIGTERM or SIGINT no new connections are
made, and open ones end cleanly.

An exchange is an empty line sent and a line with the pod's name received (echo.py). A connection is
good when each of its exchanges was answered in time and always by the same pod.
"""

import argparse
import dataclasses
import errno
import json
import select
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# A line of the output, see above.
STARTED = "started"

# A stall that is shorter does not matter.
_NOTICEABLE = 0.1
_PAUSE = 0.05
_MOST_BYTES = 65536
_STRANGER = "?"
_ERRORS: dict[int | None, str] = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What to send. Times in seconds; rate in connections per second, 0: as fast as possible.

    timeout: of an answer, without the time in which this process had no CPU.
    count, duration: the load ends with whichever comes first; 0: no limit.
    workers: the most connections at once.
    exchanges: per connection, 0: until the load ends; interval: between them.
    unconnected: UDP without connect(2), each datagram with its destination.
    """

    protocol: str = "tcp"
    count: int = 0
    duration: float = 0.0
    rate: float = 0.0
    workers: int = 4
    timeout: float = 2.0
    exchanges: int = 1
    interval: float = 0.1
    unconnected: bool = False

    def arguments(self) -> list[str]:
        line = []
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value is True:
                line.append(f"--{each.name}")
            elif value is not False:
                line += [f"--{each.name}", str(value)]
        return line


@dataclass(slots=True)
class LoadConnection:
    """How one connection went. started: time.monotonic() of the machine; ms: until its end.

    client: its own address and port. pod: who answered, "" when nobody did. error: "" or refused,
    reset, closed, timeout, unreachable, moved (another pod answered), stranger (the answer came
    from another address than the target), or the name of an errno.
    """

    number: int
    started: float
    ms: float = 0.0
    client: str = ""
    pod: str = ""
    exchanges: int = 0
    error: str = ""


@dataclass(slots=True)
class LoadResult:
    """The summary. pods, errors: number of connections by the answering pod and by the error."""

    attempted: int = 0
    ok: int = 0
    failed: int = 0
    seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    pods: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    connections: list[LoadConnection] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.attempted / self.seconds if self.seconds else 0.0

    @property
    def failures(self) -> list[LoadConnection]:
        return [each for each in self.connections if each.error]


class Stalls:
    """How long this process has waited for a CPU, where that was noticeable.

    A machine that is too busy must not look like a network that loses packets.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count in a thread of its own meanwhile."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended,))
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, ended: threading.Event) -> None:
        before = time.monotonic()
        while not ended.wait(_PAUSE):
            now = time.monotonic()
            late = now - before - _PAUSE
            self.seconds += late if late > _NOTICEABLE else 0.0
            before = now


class Load:
    """One run. `report` gets each connection as it ends, from several threads but one at a time.

    `begun` is called once, when "started" may be printed.
    """

    def __init__(
        self,
        address: str,
        port: int,
        options: LoadOptions,
        report: Callable[[LoadConnection], None],
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        packed = socket.inet_pton(self._family, address)
        # As in the peer addresses that recvfrom() returns.
        self._target = (socket.inet_ntop(self._family, packed), port)
        self._options = options
        self._report = report
        self._begun = begun
        self._to_begin = min(options.count, options.workers) or 1
        self._stalls = Stalls()
        self._turn = threading.Lock()
        self._reporting = threading.Lock()
        self._stopped = threading.Event()
        self._issued = 0
        self._started = 0.0

    def stop(self) -> None:
        """No new connections; may be called from a signal's function and from any thread."""
        self._stopped.set()

    def run(self) -> None:
        """Return when all connections have ended; errors in threads are raised here."""
        self._started = time.monotonic()
        with self._stalls.watched(), ThreadPoolExecutor(self._options.workers) as executor:
            running = [executor.submit(self._work) for _ in range(self._options.workers)]
        for each in running:
            each.result()
        if self._to_begin > 0:
            self._begun()

    def _work(self) -> None:
        try:
            while (number := self._next()) is not None:
                connection = LoadConnection(number, time.monotonic())
                self._connect(connection)
                connection.ms = round((time.monotonic() - connection.started) * 1000, 3)
                if not connection.exchanges:
                    self._note_begun()
                with self._reporting:
                    self._report(connection)
        except BaseException:
            self._stopped.set()
            raise

    def _note_begun(self) -> None:
        """Called once for each connection."""
        with self._reporting:
            self._to_begin -= 1
            if self._to_begin == 0:
                self._begun()

    def _next(self) -> int | None:
        """Wait until the next connection is due; None at the end of the load."""
        with self._turn:
            number = self._issued
            if self._is_over() or (self._options.count and number >= self._options.count):
                return None
            self._issued += 1
            if self._options.rate:
                due = self._started + number / self._options.rate
                if self._stopped.wait(max(0.0, due - time.monotonic())) or self._is_over():
                    self._issued -= 1
                    return None
            return number

    def _is_over(self) -> bool:
        limit = self._options.duration
        elapsed = time.monotonic() - self._started
        return self._stopped.is_set() or bool(limit and elapsed >= limit)

    def _connect(self, connection: LoadConnection) -> None:
        kind = socket.SOCK_STREAM if self._options.protocol == "tcp" else socket.SOCK_DGRAM
        try:
            with socket.socket(self._family, kind) as sock:
                sock.setblocking(False)
                if not self._options.unconnected:
                    self._open(sock)
                    connection.client = "{} {}".format(*sock.getsockname())
                self._converse(sock, connection)
        except TimeoutError:
            connection.error = "timeout"
        except OSError as error:
            code = error.errno or 0
            connection.error = _ERRORS.get(code) or errno.errorcode.get(code, str(error))

    def _open(self, sock: socket.socket) -> None:
        error = sock.connect_ex(self._target)
        if error == errno.EINPROGRESS:
            self._await(sock, select.POLLOUT)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, errno.errorcode.get(error, ""))

    def _await(self, sock: socket.socket, event: int) -> None:
        """TimeoutError when it does not come in time; stalls of this process do not count."""
        poll = select.poll()
        poll.register(sock, event)
        left = self._options.timeout
        while left > 0:
            before = self._stalls.seconds
            if poll.poll(left * 1000):
                return
            # After a stall, its watcher may be the last to run again.
            time.sleep(_NOTICEABLE)
            left = self._stalls.seconds - before
        raise TimeoutError

    def _converse(self, sock: socket.socket, connection: LoadConnection) -> None:
        while not connection.error:
            pod = self._exchange(sock)
            if not pod:
                connection.error = "closed"
            elif pod == _STRANGER:
                connection.error = "stranger"
            elif connection.pod not in {"", pod}:
                connection.error = "moved"
            else:
                connection.pod = pod
                connection.exchanges += 1
                if connection.exchanges == 1:
                    self._note_begun()
            if connection.exchanges == self._options.exchanges or self._is_over():
                return
            self._stopped.wait(self._options.interval)

    def _exchange(self, sock: socket.socket) -> str:
        """The name of the pod that answered; "" when the connection was closed instead."""
        if self._options.unconnected:
            sock.sendto(b"\n", self._target)
            self._await(sock, select.POLLIN)
            datagram, peer = sock.recvfrom(_MOST_BYTES)
            is_peer = peer[:2] == self._target
            return datagram.decode("latin-1").strip() if is_peer else _STRANGER
        sock.sendall(b"\n")
        answer = self._receive(sock)
        while self._options.protocol == "tcp" and answer and not answer.endswith(b"\n"):
            more = self._receive(sock)
            answer = answer + more if more else b""
        return answer.decode("latin-1").strip()

    def _receive(self, sock: socket.socket) -> bytes:
        self._await(sock, select.POLLIN)
        return sock.recv(_MOST_BYTES)


def summarize(connections: Sequence[LoadConnection], seconds: float) -> LoadResult:
    good = sorted(each.ms for each in connections if not each.error)
    return LoadResult(
        attempted=len(connections),
        ok=len(good),
        failed=len(connections) - len(good),
        seconds=round(seconds, 3),
        p50_ms=good[len(good) // 2] if good else 0.0,
        p99_ms=good[len(good) * 99 // 100] if good else 0.0,
        max_ms=good[-1] if good else 0.0,
        pods=dict(sorted(Counter(each.pod for each in connections if each.pod).items())),
        errors=dict(sorted(Counter(each.error for each in connections if each.error).items())),
    )


def parse_output(text: str) -> LoadResult:
    """Read back what a run has printed. ValueError when the summary is missing or miscounts."""
    lines = [json.loads(line) for line in text.splitlines() if line != STARTED]
    if not lines or "attempted" not in lines[-1]:
        raise ValueError("the load ended without a summary")
    result = LoadResult(**lines.pop())
    result.connections = [LoadConnection(**line) for line in lines]
    if len(lines) != result.attempted or len(result.failures) != result.failed:
        raise ValueError("the load's summary does not fit its connections")
    return result


def pods_of(text: str) -> Counter[str]:
    """Which pods have answered the connections in some lines of the output."""
    lines = (json.loads(line) for line in text.splitlines() if line != STARTED)
    return Counter(line["pod"] for line in lines if "pod" in line and not line["error"])


def main(arguments: list[str]) -> int:
    address, port, options = _parse(arguments)
    connections: list[LoadConnection] = []

    def report(connection: LoadConnection) -> None:
        connections.append(connection)
        print(json.dumps(dataclasses.asdict(connection)), flush=True)

    load = Load(address, port, options, report, lambda: print(STARTED, flush=True))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: load.stop())
    started = time.monotonic()
    load.run()
    summary = dataclasses.asdict(summarize(connections, time.monotonic() - started))
    del summary["connections"]
    sys.stdout.write(json.dumps(summary) + "\n")
    return 1 if summary["failed"] else 0


def _parse(arguments: list[str]) -> tuple[str, int, LoadOptions]:
    parser = argparse.ArgumentParser(prog="load", description=__doc__)
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    for each in dataclasses.fields(LoadOptions):
        kind: dict[str, Any] = {"type": type(each.default)}
        if each.default is False:
            kind = {"action": "store_true"}
        parser.add_argument(f"--{each.name}", default=each.default, **kind)
    chosen = vars(parser.parse_args(arguments))
    return chosen.pop("address"), chosen.pop("port"), LoadOptions(**chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

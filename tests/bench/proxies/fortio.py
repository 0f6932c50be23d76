# SPDX-License-Identifier: Apache-2.0
"""HTTP requests on a connection each, by fortio: the measure that others publish.

A client and a server that others wrote, on a cluster with one Service. Requests per second of
clock, while both ends and all of the way share the machine's cores.
"""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebpflb.lab import Lab, Member
from tests.bench.cilium import world
from tests.bench.harness import labs, load
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, ratio_row
from tests.bench.harness.rounds import Comparison, in_turns
from tests.bench.harness.ways import Way
from tests.bench.proxies import against
from tests.cluster.harness.binaries import Recipe, built

VERSION = "1.68.2"
FORTIO = Recipe(f"fortio.org/fortio@v{VERSION}", flags=("-ldflags", "-s -w"))

_FAR = 1
_AT_ONCE = 8
_LISTENERS = ("grpc-port", "redirect-port", "tcp-port", "udp-port")
_SHARE_OF_ROUNDS = 3
_START_SECONDS = 10.0
_LOOK_SECONDS = 0.1


def run(options: Options) -> Iterator[Row]:
    """Beside both modes of kube-proxy, and Cilium where it is available."""
    program, fewer = built("fortio", FORTIO), options.fewer(_SHARE_OF_ROUNDS)
    with against.prepared(1) as (pair, control, addresses), _serving(program, pair.ours):
        with _serving(program, pair.other):
            for mode in against.MODES:
                with against.kube_proxy_in(mode, pair, control, addresses):
                    for way in against.ways_of(mode, addresses):
                        yield _row(program, pair.ours, pair.other, way, fewer)
        if world.is_at_hand():
            with (
                world.up(against.objects(addresses)) as made,
                _serving(program, made.lab),
            ):
                for way in against.ways_of("Cilium", addresses):
                    yield _row(program, pair.ours, made.lab, way, fewer)
    if not world.is_at_hand():
        yield Row("fortio", "Cilium", "", world.MISSING)


def _row(program: Path, ours: Lab, other: Lab, way: Way, options: Options) -> Row:
    def rate(lab: Lab) -> float:
        return _rate(program, lab.member(way.source), way.frontend(lab), options.seconds)

    found = in_turns({"other": lambda: rate(other), "ours": lambda: rate(ours)}, options.rounds)
    compared = Comparison(found["ours"], found["other"])
    return ratio_row("fortio", way.case, compared, "/s", way.target)


@contextmanager
def _serving(program: Path, lab: Lab) -> Iterator[None]:
    pod = labs.pod(lab, _FAR)
    off = [f"-{each}=disabled" for each in _LISTENERS]
    argv = [str(program), "server", f"-http-port={load.PORT}", *off]
    with pod.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_listening(pod)
            yield
        finally:
            server.kill()


def _wait_listening(pod: Member) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with pod.entered(), socket.create_connection((pod.ipv4, load.PORT), timeout=1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise BenchError(f"{pod.name}: fortio does not serve") from None
            time.sleep(_LOOK_SECONDS)


def _rate(program: Path, source: Member, goal: load.Goal, seconds: float) -> float:
    """Requests per second. BenchError if one fails."""
    address, port = goal
    url = f"http://{address}:{port}/"
    options = ["-quiet", "-qps=0", f"-c={_AT_ONCE}", f"-t={seconds}s", "-keepalive=false"]
    argv = [str(program), "load", *options, "-json=-", url]
    found = json.loads(source.exec(argv, timeout=seconds + 30).stdout)
    if found["RetCodes"].keys() != {"200"}:
        raise BenchError(f"{source.name} to {url}: {found['RetCodes']}")
    return float(found["ActualQPS"])

# SPDX-License-Identifier: Apache-2.0
"""gRPC channels on two pods, and four more pods come: how long until each pod has its share.

In a pod of each of two nodes, and each channel makes a call a minute, so it is idle in between. The
Services differ in their annotation and the clients in gRPC's retry policy; all run at once.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ebpflb.lab import LabConfig, Member
from tests.bench.harness.member_program import Process, program, ready_program, wait_ready
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row
from tests.e2e.harness.cluster import Cluster, built, started

CHANNELS = 24
PODS = 6
SECONDS = 600
RULE = "idle 30s, 5/min"

_HERE = __package__
_PORT = 50051
_PERIOD_SECONDS = 60
# More than this many times its share is too much for a pod.
_TOLERANCE = 1.1
_CASES: tuple[tuple[dict[str, str], bool], ...] = (
    ({}, False),
    ({"rebalance": RULE}, False),
    ({"rebalance": RULE}, True),
)


class Call(NamedTuple):
    """When it ended, in seconds; the pod, and if it failed, the error instead."""

    channel: tuple[int, int]
    time: float
    pod: str
    error: str


def run(options: Options) -> Iterator[Row]:
    """With and without the annotation, and with and without gRPC's retry policy."""
    if find_spec("grpc") is None:
        raise BenchError("needs grpcio, which is not installed: .venv/bin/pip install grpcio")
    seconds = options.scaled(SECONDS)
    with (
        TemporaryDirectory(prefix="ebpflb-bench-") as logs,
        built(LabConfig("bench-channels", pods=4)) as lab,
        started(lab, Path(logs)) as cluster,
        ExitStack() as stack,
    ):
        *near, first = lab.pods_on("node1")
        *far, second = lab.pods_on("node2")
        pods = [each for pair in zip(near, far, strict=True) for each in pair]
        for pod in pods:
            stack.enter_context(ready_program(pod, f"{_HERE}.server", pod.name, str(_PORT)))
        yield from _compared(cluster, pods, [first, second], seconds)


def _compared(
    cluster: Cluster, pods: Sequence[Member], sources: Sequence[Member], seconds: int
) -> Iterator[Row]:
    under_way = []
    with ExitStack() as stack:
        for annotations, is_retried in _CASES:
            spec = cluster.serve(cluster.new(annotations=annotations), pods[:2], target_port=_PORT)
            place = f"{cluster.lab.cluster_ip(spec.number)}:{spec.port}"
            options = [f"--channels={CHANNELS // len(sources)}", f"--seconds={seconds}"]
            options += [f"--period={_PERIOD_SECONDS}", *(["--retry"] if is_retried else [])]
            clients = [
                stack.enter_context(program(each, f"{_HERE}.client", place, *options))
                for each in sources
            ]
            under_way.append((spec, annotations, is_retried, clients))
        for spec, *_, clients in under_way:
            for each in clients:
                wait_ready(each)
            cluster.serve(spec, pods, target_port=_PORT)
        grown = time.monotonic()
        for _, annotations, is_retried, clients in under_way:
            yield row(_case(annotations, is_retried=is_retried), _calls(clients), grown)


def row(case: str, calls: Sequence[Call], grown: float) -> Row:
    """`grown`: when the other pods came. Failed calls must be none."""
    failed = Counter(each.error for each in calls if each.error)
    spread = sorted(Counter(_pods_of(calls).values()).values(), reverse=True)
    even = even_since(calls)
    result = "not even" if even is None else f"even after {max(0.0, even - grown):.0f} s"
    measured = f"{'/'.join(map(str, spread))} at the end, {len(calls):,} calls"
    for error, count in failed.items():
        measured += f", {count} times {error}"
    verdict = "short" if failed else "OK"
    return Row(
        "channels", case, measured, f"{result}, {failed.total()} failed", "0 failed", verdict
    )


def even_since(calls: Iterable[Call]) -> float | None:
    """The time of the call since which no pod has had more than its share and a tenth."""
    most = ceil(_TOLERANCE * CHANNELS / PODS)
    pods: dict[tuple[int, int], str] = {}
    since = None
    for each in sorted(calls, key=lambda call: call.time):
        pods[each.channel] = each.pod or pods.get(each.channel, "")
        counts = Counter(pod for pod in pods.values() if pod)
        is_even = counts.total() == CHANNELS and max(counts.values()) <= most
        since = None if not is_even else each.time if since is None else since
    return since


def _pods_of(calls: Iterable[Call]) -> Mapping[tuple[int, int], str]:
    """The pod of each channel's last call."""
    ordered = sorted(calls, key=lambda call: call.time)
    return {each.channel: each.pod for each in ordered if each.pod}


def _calls(clients: Iterable[Process]) -> list[Call]:
    found = []
    for place, each in enumerate(clients):
        output, _ = each.communicate()
        found += [Call((place, number), *rest) for number, *rest in json.loads(output)]
    return found


def _case(annotations: Mapping[str, str], *, is_retried: bool) -> str:
    wish = annotations.get("rebalance", "no annotation")
    return f"{CHANNELS} channels, 2 then {PODS} pods, {wish}{', retry policy' * is_retried}"

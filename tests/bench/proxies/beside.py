# SPDX-License-Identifier: Apache-2.0
"""How soon a written slice is in force with ebpflb, and with the real kube-proxy (nftables).

The same node, API server and changes, one after the other. Changes are further apart than
kube-proxy's shortest period between syncs, so that it need not wait for that.
"""

import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench.api import FEW_SERVICES, agent_in_sync, change, committed_after, control_plane
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, percentile_row
from tests.cluster.harness.agent import NODE
from tests.cluster.harness.api_client import ApiClient
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.place import Place

CHANGES = 100

_APART_SECONDS = 1.2
_PATIENCE_SECONDS = 30.0
_FIRST_SYNC_SECONDS = 120.0


def run(options: Options) -> Iterator[Row]:
    """ebpflb first."""
    changes = options.scaled(CHANGES)
    with control_plane(options.scaled(FEW_SERVICES)) as (control, api, addresses):
        case = f"slice written, {len(addresses):,} Services"
        with agent_in_sync(control) as agent:
            maps = agent.maps()
            times = []
            for number in range(changes):
                time.sleep(_APART_SECONDS)
                times.append(committed_after(api, maps, number, addresses))
        yield percentile_row("beside", f"{case}: ebpflb", times, 99, "ms")
        with _kube_proxy_in_sync(control) as events:
            times = [_in_force_after(api, number, events) for number in range(changes)]
        yield percentile_row("beside", f"{case}: kube-proxy, nftables", times, 99, "ms")


@contextmanager
def _kube_proxy_in_sync(control: ControlPlane) -> Iterator[int]:
    """kube-proxy; the file descriptor that reports changes to its table."""
    node = Place.of(control.layout, NODE)
    monitor = node.popen(["stdbuf", "--output=L", "nft", "monitor"], stdout=subprocess.PIPE)
    try:
        daemon = node.start(
            "kube-proxy",
            [
                binary("kube-proxy"),
                *(f"--kubeconfig={control.kubeconfig}", "--proxy-mode=nftables"),
                *(f"--hostname-override={NODE}", f"--bind-address={node.ip}"),
                *("--conntrack-max-per-core=0", "--oom-score-adj=0"),
            ],
        )
        if monitor.stdout is None:
            raise BenchError("nft monitor has no output")
        _await(monitor.stdout.fileno(), _FIRST_SYNC_SECONDS)
        yield monitor.stdout.fileno()
        daemon.check()
    finally:
        for each in node.daemons:
            each.stop()
        monitor.terminate()
        monitor.wait()


def _in_force_after(api: ApiClient, number: int, events: int) -> float:
    """Milliseconds from before a change is written to the first event of its transaction."""
    time.sleep(_APART_SECONDS)
    _drain(events)
    began = time.perf_counter()
    change(api, number, 3)
    _await(events, _PATIENCE_SECONDS)
    return (time.perf_counter() - began) * 1000


def _await(events: int, seconds: float) -> None:
    if not select.select([events], [], [], seconds)[0]:
        raise BenchError(f"kube-proxy has changed nothing within {seconds:g} s")


def _drain(events: int) -> None:
    """Read and discard, until nothing more arrives for a moment."""
    while select.select([events], [], [], 0.05)[0]:
        os.read(events, 1 << 16)

# SPDX-License-Identifier: Apache-2.0
"""New masqueraded UDP flows to one backend, more than there are source ports: the share lost."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.lab import LabConfig, Member
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.e2e.harness.cluster import address_of, built, started
from tests.e2e.traffic.exchanges import lost_exchanges

RATE = 2_000
SECONDS = 130


def run(options: Options) -> Iterator[Row]:
    """Each flow is a datagram and its reply, to a NodePort whose pod is on the other node."""
    seconds = options.scaled(SECONDS)
    with (
        TemporaryDirectory(prefix="ebpflb-bench-") as logs,
        built(LabConfig("bench-udp", pods=1)) as lab,
        started(lab, Path(logs)) as cluster,
    ):
        pod = lab.pod("pod-2-1")
        spec = cluster.serve(cluster.new(), [pod])
        for version in cluster.versions:
            place = address_of(lab.node("node1"), version), spec.node_port
            before = _without_room(pod, version)
            lost = lost_exchanges(lab.client, *place, rate=RATE, count=RATE * seconds)
            late = _without_room(pod, version) - before
            case = f"{RATE:,} new masqueraded flows/s to one backend, IPv{version}"
            measured = f"{RATE * seconds:,} flows, {late:,} of them too fast for the pod"
            verdict = "short" if lost > late else "OK"
            yield Row("udp", case, measured, f"{lost - late:,} lost", "0", verdict)


def _without_room(pod: Member, version: int) -> int:
    """Datagrams dropped at the pod because its socket's buffer was full."""
    if version == 6:
        text = pod.exec(["cat", "/proc/net/snmp6"]).stdout
        return int(dict(line.split() for line in text.splitlines())["Udp6RcvbufErrors"])
    lines = pod.exec(["grep", "^Udp:", "/proc/net/snmp"]).stdout.splitlines()
    return int(dict(zip(*map(str.split, lines), strict=True))["RcvbufErrors"])

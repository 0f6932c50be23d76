# SPDX-License-Identifier: Apache-2.0
"""The documents' commands for a cluster run as written, on objects of the same names."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.chart.harness.rendering import CHART, NAMESPACE
from tests.cluster.harness import binaries, workloads
from tests.cluster.harness.cluster import Cluster
from tests.cluster.released.shop import SPACE
from tests.unit.docs.documents import shell_lines

pytestmark = pytest.mark.slow

AT_ONCE = 6
SECONDS = 300.0
# Commands that are not run, and why: patterns of the complete line.
NOT_RUN = {
    "they are named, not shown": (
        r"ebpflb (run|explain|relay|gateway|takeover|cleanup|maps|completion|lab)",
        r"kubectl (ebpflb|exec|drain|--selector)",
        r"kubectl ebpflb (explain|flows --since --until)",
        r"helm (uninstall|upgrade|rollback|test|package|--wait|template --no-hooks)",
        r".*\.\.\..*",
        r"ebpflb / .*",
    ),
    "they are not for a cluster": (
        r"(\S+=\S+ )*make .*",
        r"\.venv/bin/.*",
        r"python .*",
        r"sed .*",
        r"send .*",
        r"ssh .*",
        r"kubectl krew .*",
    ),
    "the lab is their place: tests/e2e/observe/test_troubleshooting.py": (r"ebpflb lab .*",),
    "they do not end by themselves: test_plugin.py, test_broken.py": (
        r"kubectl ebpflb (ui|live)( .*)?",
        r"ebpflb flows --follow .*",
    ),
    "test_incidents.py runs them": (r"kubectl ebpflb \S+ -n orders .*",),
    "no agent ran at that time: tests/e2e/observe/test_explain_past.py": (
        r"(kubectl )?ebpflb explain --at .*",
    ),
    "other clusters have these kinds: tests/cluster/gateway": (
        r"kubectl apply .*/gateway-api/.*",
        r"kubectl get (gateways|serviceimports) -A",
    ),
    "an agent runs already": (r"ebpflb run --(manifests|config) .*",),
    "they end what other tests use": (
        r"ebpflb cleanup --drain .*",
        r"kubectl drain NODE .*",
        r"helm template .* --show-only templates/uninstall.yaml .*",
    ),
    "tests/chart/test_release.py runs it": (r"helm test .*",),
    "only what has failed leaves that": (
        r"kubectl .* logs job/ebpflb-(test|cleanup).*",
        r"kubectl .* delete .* ebpflb-cleanup",
        r"kubectl .* logs POD --previous",
        r"kubectl .* wait .* job/ebpflb-cleanup",
        r"kubectl .* delete job/ebpflb-cleanup .*",
    ),
}
# Commands that would change the cluster run as server-side dry runs.
DRY_RUNS = {
    r"helm (install|upgrade) .*": "--dry-run=server",
    r"helm (rollback|uninstall) .*": "--dry-run",
    r"kubectl (\S+ \S+ )?(annotate|create|delete|label|patch) .*": "--dry-run=server",
}
# Exit statuses other than 0, as the documents say.
STATUSES = {"kubectl ebpflb explain -n shop asker-node2 empty:80": 1}
# What agents here have, but agents next to kube-proxy have not.
USUAL_PORT = {"127.0.0.1:20249": "127.0.0.1:10249"}
# "On a node" means in the pod of its agent.
ON_A_NODE = 'ebpflb() { kubectl -n kube-system exec "$AGENT" -c ebpflb -- ebpflb "$@"; }\n'


def reason(line: str) -> str:
    """Why it is not run; empty if it is."""
    found = (
        why for why, all_of in NOT_RUN.items() if any(re.fullmatch(each, line) for each in all_of)
    )
    return next(found, "")


Ran = subprocess.CompletedProcess[str]
RUN = [line for line in shell_lines() if not reason(line)]


@pytest.fixture(scope="module")
def objects(cluster: Cluster) -> Iterator[None]:
    """Objects that the documents name and the shop lacks; and a release to roll back to."""
    port = {"name": "https", "port": 443, "targetPort": workloads.PORT}
    web = workloads.service("web", app="curl", externalIPs=["192.0.2.10"])
    web["spec"]["ports"].append(port)
    pod = workloads.asker("curl", "node1")
    workloads.apply(cluster, "default", [web, workloads.service("echo", app="curl"), pod])
    workloads.apply(cluster, SPACE, [workloads.service("empty", app="nobody")])
    assert workloads.ask_from_pod(cluster, "default", "curl", f"http://web.{SPACE}")
    labels = {"app": "kube-proxy"}
    spec = {"nodeSelector": {"of": "nobody"}, "containers": [workloads.echo_container()]}
    proxy = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-proxy"}}
    workloads.apply(cluster, NAMESPACE, [proxy, config])
    cluster.helm("upgrade", "ebpflb", str(CHART), "-n", NAMESPACE, "--reset-then-reuse-values")
    yield
    cluster.kubectl("-n", NAMESPACE, "delete", "daemonset,configmap", "kube-proxy")
    cluster.kubectl("-n", SPACE, "delete", "service/empty")
    cluster.kubectl("delete", "service/web", "service/echo", "pod/curl")


def names(cluster: Cluster) -> dict[str, str]:
    """Values of placeholders in capitals; those that contain others come first."""
    pod = workloads.field(cluster, SPACE, "pod/asker-node1", "{.status.podIP}")
    address = workloads.field(cluster, SPACE, "service/web", "{.spec.clusterIP}")
    api = cluster.control_plane.place.ip
    return {
        **USUAL_PORT,
        "NAMESPACE/NAME": f"{SPACE}/web",
        "SERVER_ADDRESS": api,
        "ADDRESS:PORT": f"{address}:80",
        "API_ADDRESS": api,
        "NAMESPACE": SPACE,
        "REGISTRY": "registry.example",
        "ADDRESS": pod,
        "CLIENT": pod,
        "NAME": "web",
        "PORT": "80",
        "FILE": "/dev/null",
        "SRC": f"{SPACE}/asker-node1",
        "DST": f"{SPACE}/web:80",
    }


def agent(cluster: Cluster) -> str:
    """The pod on node1."""
    return cluster.kubectl(
        *("-n", NAMESPACE, "get", "pod", "-l", "app.kubernetes.io/component=agent"),
        *("--field-selector", "spec.nodeName=node1", "-o", "jsonpath={.items[0].metadata.name}"),
    )


def filled(line: str, known: Mapping[str, str]) -> str:
    """A line with its placeholders filled in."""
    for word, name in known.items():
        line = re.sub(rf"(?<![A-Z_]){re.escape(word)}(?![A-Z_])", name, line)
    return line


def changed(line: str) -> str:
    """The line as a dry run."""
    found = (option for each, option in DRY_RUNS.items() if re.fullmatch(each, line))
    return f"{line} {next(found, '')}"


@pytest.fixture(scope="module")
def outcomes(
    cluster: Cluster, objects: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ran]:
    """The result of each command, in a folder with the chart."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "charts").symlink_to(CHART.parent)
    known, pod = names(cluster), agent(cluster)
    places = (binaries.folder(), Path(sys.executable).parent, os.environ["PATH"])
    environment = {"PATH": ":".join(map(str, places)), "KUBECONFIG": str(cluster.kubeconfig)}

    def run(line: str) -> Ran:
        in_a_cluster = {"POD": pod if NAMESPACE in line else f"{SPACE}/asker-node1", **known}
        return subprocess.run(
            ["bash", "-c", f"{ON_A_NODE}{filled(changed(line), in_a_cluster)}"],
            env={**os.environ, **environment, "AGENT": pod},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(RUN, pool.map(run, RUN), strict=True))


@pytest.mark.parametrize("line", RUN, ids=str)
def test_a_command_does_what_it_should(outcomes: dict[str, Ran], line: str):
    ran = outcomes[line]
    told = f"{shell_lines()[line]}: {line}: exit status {ran.returncode}: {ran.stderr}"
    assert ran.returncode == STATUSES.get(line, 0), told
    # Events come with warnings.
    assert "No resources found" not in ran.stderr or " get events " in line, told


@pytest.mark.parametrize("pattern", [each for all_of in NOT_RUN.values() for each in all_of])
def test_what_is_not_run_is_in_the_documents(pattern: str):
    assert any(re.fullmatch(pattern, line) for line in shell_lines())


@pytest.mark.parametrize("line", STATUSES)
def test_what_fails_is_in_the_documents(line: str):
    assert line in RUN

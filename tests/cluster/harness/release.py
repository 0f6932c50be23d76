# SPDX-License-Identifier: Apache-2.0
"""The chart on a cluster of this harness: installation, upgrade, and whether it serves."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from ebpflb.config.cgroup import cgroup_root
from ebpflb.errors import EbpflbError
from tests.chart.harness.rendering import CHART, NAMESPACE
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.layout import API_PORT, API_SERVICE
from tests.cluster.harness.place import Place
from tests.e2e.harness.waiting import wait_until
from tests.image.build import image_name
from tests.image.container import own_capabilities

_CAPABILITIES = ("NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_RESOURCE")
_CONNECT = f"import socket; socket.create_connection(('{API_SERVICE}', 443), 2)"


def values(cluster: Cluster, **others: Any) -> dict[str, Any]:
    """Values for this machine: its cgroups, the capabilities that it can grant, the API's
    address.
    """
    repository, _, tag = image_name().rpartition(":")
    return {
        "image": {"repository": repository, "tag": tag},
        "k8sServiceHost": cluster.control_plane.place.ip,
        "k8sServicePort": API_PORT,
        "cgroup": {"hostRoot": cgroup_root()},
        "securityContext": {"capabilities": sorted(own_capabilities(_CAPABILITIES))},
        # Termination would wait for open connections, such as those to the API.
        "uninstall": {"drainSeconds": 1},
        **others,
    }


def deploy(cluster: Cluster, command: str, wanted: dict[str, Any]) -> None:
    """Install or upgrade the release, and wait until each node serves Services."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "values.yaml"
        path.write_text(yaml.safe_dump(wanted))
        cluster.helm(
            *(command, "ebpflb", str(CHART), f"--namespace={NAMESPACE}"),
            *("--wait", "--timeout=180s", f"--values={path}"),
        )
    wait_until_served(cluster)


def undeploy(cluster: Cluster) -> None:
    """Uninstall the release. EbpflbError with the output of the pods that clean up."""
    try:
        cluster.helm("uninstall", "ebpflb", f"--namespace={NAMESPACE}", "--timeout=180s")
    except EbpflbError as error:
        raise EbpflbError(f"{error}\n{_state_of_cleanup(cluster)}") from error


def _state_of_cleanup(cluster: Cluster) -> str:
    space = f"--namespace={NAMESPACE}"
    chosen = "--selector=app.kubernetes.io/component in (cleanup, uninstall)"
    pods = cluster.kubectl("get", "pods", space, "--output=wide")
    logs = cluster.kubectl("logs", space, chosen, "--all-containers", "--prefix", "--ignore-errors")
    return f"{pods}\n{logs}"


def wait_until_served(cluster: Cluster) -> None:
    """Wait until the agents have programmed every node."""
    for node in cluster.nodes:
        wait_until(partial(reaches_the_api, node), f"{node.name} served", 60)


def reaches_the_api(node: Place) -> bool:
    """Whether a process of the node reaches the API by its ClusterIP."""
    return node.exec(["python3", "-c", _CONNECT]).returncode == 0

# SPDX-License-Identifier: Apache-2.0
"""The real kube-proxy on a node of a lab, which reads the same manifests as an agent there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebpflb.lab import LabNode
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.layout import KubeProxy
from tests.e2e.harness.manifest_api import manifest_api


@contextmanager
def lab_kube_proxy(node: LabNode, mode: KubeProxy, log: Path) -> Iterator[None]:
    """It runs inside the block; its rules are left behind."""
    with manifest_api(node) as (_, address), log.open("wb") as output:
        command = [
            str(binary("kube-proxy")),
            *address,
            "--kube-api-content-type=application/json",
            f"--proxy-mode={mode}",
            f"--hostname-override={node.name}",
            f"--cluster-cidr={','.join(node.cluster_cidr)}",
            "--conntrack-max-per-core=0",
            "--oom-score-adj=0",
        ]
        process = node.popen(command, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.kill()
            process.wait()

# SPDX-License-Identifier: Apache-2.0
"""The settings of Cilium's agents: those of its chart, adapted to a lab."""

import subprocess
from pathlib import Path

import yaml

from ebpflb.config.cgroup import cgroup_root
from ebpflb.lab import Lab
from ebpflb.lab.network import UPLINK
from tests.cluster.harness.binaries import KUBERNETES_VERSION, binary
from tests.cni.networks.cilium import sources

# No tunnel and no masquerading, as in the other labs. Its layer 7 proxy, Hubble and health checks
# are separate programs.
_VALUES = {
    "kubeProxyReplacement": "true",
    "socketLB.enabled": "true",
    "routingMode": "native",
    "ipam.mode": "kubernetes",
    "enableIPv4Masquerade": "false",
    "l7Proxy": "false",
    "envoy.enabled": "false",
    "hubble.enabled": "false",
    "healthChecking": "false",
    "endpointHealthChecking.enabled": "false",
}


def write(directory: Path, lab: Lab, kubeconfig: Path) -> None:
    """Write a file for each, as its ConfigMap is mounted into a pod."""
    directory.mkdir(parents=True)
    pods = str(lab.layout.ranges[0].cluster())
    found = _of_chart(_VALUES | {"ipv4NativeRoutingCIDR": pods})
    # It would be written for a kubelet.
    del found["write-cni-conf-when-ready"]
    found |= {
        "k8s-kubeconfig-path": str(kubeconfig),
        "lib-dir": str(sources()),
        "state-dir": str(directory.parent / "state"),
        "socket-path": str(directory.parent / "socket"),
        "cgroup-root": cgroup_root(),
        "procfs": "/proc",
        "devices": UPLINK,
        "enable-dynamic-config": "false",
    }
    for name, value in found.items():
        (directory / name).write_text(value)


def _of_chart(values: dict[str, str]) -> dict[str, str]:
    command = [
        str(binary("helm")),
        "template",
        "cilium",
        str(sources() / "install/kubernetes/cilium"),
    ]
    command += ["--namespace=kube-system", f"--kube-version={KUBERNETES_VERSION}"]
    command += ["--show-only=templates/cilium-configmap.yaml"]
    command += [f"--set={name}={value}" for name, value in values.items()]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(yaml.safe_load(made.stdout)["data"])

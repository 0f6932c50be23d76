# SPDX-License-Identifier: Apache-2.0
"""Rendering the chart, and access to the rendered objects."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.harness.binaries import KUBERNETES_VERSION, binary

CHART = Path(__file__).resolve().parents[3] / "charts" / "ebpflb"
NAMESPACE = "kube-system"

Object = dict[str, Any]

# What the chart of a checkout has to be told: values of `image`.
IMAGE: Object = {"repository": "docker.io/library/ebpflb"}

# Enables everything that can be enabled.
EVERYTHING: Object = {
    "k8sServiceHost": "2001:db8::10",
    "k8sServicePort": 8443,
    "imagePullSecrets": [{"name": "registry"}],
    "config": {"socket-lb": "host", "nodeport-addresses": ["10.0.0.0/8"], "sync-period": "1m0s"},
    "kubeProxy": {"takeover": True},
    "metrics": {
        "enabled": True,
        "latency": True,
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "scrapeTimeout": "10s",
            "relabelings": [{"targetLabel": "cluster", "replacement": "one"}],
            "metricRelabelings": [{"action": "labeldrop", "regex": "instance"}],
            "sampleLimit": 5000,
        },
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True, "runbookUrl": "https://example.org/runbook"},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Network"}},
    },
    "bpf": {"autoMount": True},
    "hostPID": True,
    "commonLabels": {"team": "network"},
    "nodeSelector": {"pool": "workers"},
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "updateStrategy": {"type": "OnDelete"},
    "livenessProbe": {"initialDelaySeconds": 5},
    "extraArgs": ["--verbosity=1"],
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "flows", "hostPath": {"path": "/var/log/ebpflb"}}],
    "extraVolumeMounts": [{"name": "flows", "mountPath": "/var/log/ebpflb"}],
    "startupTaint": {"enabled": True},
    "relay": {
        "enabled": True,
        "replicas": 3,
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
    },
    "gateway": {
        "enabled": True,
        "addressRanges": ["203.0.113.0/24", "2001:db8::/64"],
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
    },
    "multicluster": {"enabled": True},
    "podAnnotations": {"example.org/a": "b"},
    "podLabels": {"tier": "nodes"},
    "serviceAccount": {"annotations": {"example.org/a": "b"}, "name": "proxy"},
    "resources": {"limits": {"memory": "512Mi"}},
}


def helm(*arguments: str, given: str | None = None) -> "subprocess.CompletedProcess[str]":
    """Run helm, whatever its exit status."""
    command = [str(binary("helm")), *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def template(
    values: Object,
    *,
    release: str = "ebpflb",
    namespace: str = NAMESPACE,
    kubernetes: str = KUBERNETES_VERSION,
    chart: Path = CHART,
    arguments: Sequence[str] = (),
) -> "subprocess.CompletedProcess[str]":
    """The output of `helm template` for these values; kubernetes: the version to assume.

    What the chart of a checkout has to be told of its image is told, unless the values do.
    """
    image = IMAGE if chart.is_dir() else {}
    given = ["template", release, str(chart), f"--namespace={namespace}", *arguments]
    version = f"--kube-version={kubernetes}"
    wanted = {**values, "image": {**image, **values.get("image", {})}}
    return helm(*given, version, "--values=-", given=yaml.safe_dump(wanted))


def render(values: Object | None = None, **options: Any) -> list[Object]:
    """The objects that helm creates for these values."""
    done = template(values or {}, **options)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """The objects of one kind."""
    return [each for each in objects if each["kind"] == kind]


def hook_of(found: Object) -> str:
    """The event at which helm or Argo CD creates an object; empty for what a release has."""
    annotations = found["metadata"].get("annotations", {})
    return str(annotations.get("helm.sh/hook", annotations.get("argocd.argoproj.io/hook", "")))


def component_of(found: Object) -> str:
    """What an object says that it is a part of: agent, relay, gateway or nothing."""
    return str(found["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def installed(objects: list[Object], kind: str) -> Object:
    """The only object of this kind in the release itself, apart from those of other components."""
    (found,) = [
        each
        for each in of_kind(objects, kind)
        if not hook_of(each) and component_of(each) not in ("relay", "gateway")
    ]
    return found


def of_hook(objects: list[Object], hook: str, kind: str, name: str) -> Object:
    """The object of this kind and name that helm creates at an event."""
    (found,) = [
        each
        for each in of_kind(objects, kind)
        if (hook_of(each), each["metadata"]["name"]) == (hook, name)
    ]
    return found


def left_for_uninstall(objects: list[Object], kind: str) -> Object:
    """The Job or DaemonSet that helm creates while it uninstalls."""
    (found,) = [each for each in of_kind(objects, kind) if hook_of(each) == "post-delete"]
    return found


def pod_of(found: Object) -> Object:
    """The specification of a workload's pods."""
    spec: Object = found["spec"]["template"]["spec"]
    return spec


def container(pod: Object, name: str) -> Object:
    """A container of a pod by its name, including init containers."""
    every = [*pod.get("initContainers", []), *pod["containers"]]
    (found,) = [each for each in every if each["name"] == name]
    return dict(found)


def agent(values: Object | None = None, **options: Any) -> Object:
    """The specification of the agent's pods."""
    return pod_of(installed(render(values, **options), "DaemonSet"))


def mounts(pod: Object, name: str) -> dict[str, Object]:
    """A container's mounts: path -> the mount, with its volume under `volume`."""
    volumes = {each["name"]: each for each in pod["volumes"]}
    listed = container(pod, name)["volumeMounts"]
    return {each["mountPath"]: {**each, "volume": volumes[each["name"]]} for each in listed}


def settings_file(objects: list[Object]) -> str:
    """The text of the agent's settings file."""
    (found,) = [each for each in of_kind(objects, "ConfigMap") if "config.yaml" in each["data"]]
    return str(found["data"]["config.yaml"])

# SPDX-License-Identifier: Apache-2.0
"""The workload that owns a pod, as users know it: Deployment/web, not ReplicaSet/web-5d8f6c."""

import re

from ebpflb.source.api_types import PodMetadata

# The suffix of a CronJob's Jobs, minutes since 1970: getJobName in
# pkg/controller/cronjob/utils.go of Kubernetes.
_OF_CRON_JOB = re.compile(r"-\d{8,}$")
_HASH_LABEL = "pod-template-hash"
# The controller of a static pod.
_NODE = "Node"


def workload_of(pod: PodMetadata) -> str:
    """KIND/NAME, or "" for a pod without a controller.

    A Job named like one of a CronJob counts as one.
    """
    kind, name = _controller(pod.owner_references)
    if kind == "ReplicaSet" and (hash_ := (pod.labels or {}).get(_HASH_LABEL)):
        return f"Deployment/{name.removesuffix(f'-{hash_}')}"
    if kind == "Job" and _OF_CRON_JOB.search(name):
        return f"CronJob/{_OF_CRON_JOB.sub('', name)}"
    return f"{kind}/{name}" if name and kind != _NODE else ""


def _controller(owners: object) -> tuple[str, str]:
    """The controller's kind and name. The API server has validated the fields read here."""
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("controller") is True:
            return str(owner.get("kind", "")), str(owner.get("name", ""))
    return "", ""

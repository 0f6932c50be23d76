# SPDX-License-Identifier: Apache-2.0
"""The workload that owns a pod, as users know it: Deployment/web, not ReplicaSet/web-5d8f6c."""

import re

from ebpflb.source.fields import Fields, Metadata

# The suffix of a CronJob's Jobs, minutes since 1970: getJobName in
# pkg/controller/cronjob/utils.go of Kubernetes.
_OF_CRON_JOB = re.compile(r"-\d{8,}$")
_HASH_LABEL = "pod-template-hash"
# The controller of a static pod.
_NODE = "Node"


def workload_of(metadata: Metadata, document: Fields) -> str:
    """KIND/NAME, or "" for a pod without a controller. `metadata`: of the same pod.

    A Job named like one of a CronJob counts as one.
    """
    kind, name = _controller(document)
    if kind == "ReplicaSet" and (hash_ := metadata.labels.get(_HASH_LABEL)):
        return f"Deployment/{name.removesuffix(f'-{hash_}')}"
    if kind == "Job" and _OF_CRON_JOB.search(name):
        return f"CronJob/{_OF_CRON_JOB.sub('', name)}"
    return f"{kind}/{name}" if name and kind != _NODE else ""


def _controller(document: Fields) -> tuple[str, str]:
    """The controller's kind and name. The API server has validated the fields read here."""
    metadata = document.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("controller") is True:
            return str(owner.get("kind", "")), str(owner.get("name", ""))
    return "", ""

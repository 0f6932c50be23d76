# SPDX-License-Identifier: Apache-2.0
"""Wait until a DaemonSet is gone, or has cleaned up every node.

Arguments: gone or clean, its namespace, its name, for how many seconds.

Runs in the image without anything but Python. It reaches the API as every pod does; where nothing
serves the ClusterIP any more, KUBERNETES_SERVICE_HOST has to name the control plane itself.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_COMPONENT = "app.kubernetes.io%2Fcomponent%3Dcleanup"
_PAUSE, _ANSWER_SECONDS = 1, 10
_NOT_FOUND = 404


class Api:
    """The API server, asked as the account whose token and certificate are in a folder."""

    def __init__(self, account: str) -> None:
        """Read the certificate. OSError if it cannot be."""
        host, port = (os.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
        self._url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._trust = ssl.create_default_context(cafile=f"{account}/ca.crt")
        self._token = f"{account}/token"

    def get(self, path: str) -> dict:
        """What it answers. OSError if it does not, or refuses."""
        with open(self._token) as token:
            headers = {"Authorization": f"Bearer {token.read().strip()}"}
        request = urllib.request.Request(self._url + path, headers=headers)  # noqa: S310  https
        options = {"timeout": _ANSWER_SECONDS, "context": self._trust}
        with urllib.request.urlopen(request, **options) as answer:  # noqa: S310  https
            return json.load(answer)


def path_of(namespace: str, name: str) -> str:
    """Where the API has a DaemonSet."""
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"


def gone(api: Api, namespace: str, name: str) -> str:
    """Nothing if the API knows no such DaemonSet; else what is to be said."""
    try:
        api.get(path_of(namespace, name))
    except urllib.error.HTTPError as error:
        if error.code != _NOT_FOUND:
            raise
        return ""
    return f"the DaemonSet {name} is still there: nothing is removed beside agents"


def clean(api: Api, namespace: str, name: str) -> str:
    """Nothing if it is done on every node; else what is to be said."""
    found = api.get(path_of(namespace, name))
    status = found["status"]
    is_new = status.get("observedGeneration", 0) < found["metadata"]["generation"]
    if not is_new and status["numberReady"] >= status["desiredNumberScheduled"]:
        return ""
    nodes = ", ".join(unfinished(api, namespace, name))
    return f"not clean yet: {nodes}; the DaemonSet {name} goes on, delete it once it is ready"


def unfinished(api: Api, namespace: str, name: str) -> list[str]:
    """The nodes whose pod of this DaemonSet is not ready."""
    pods = api.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={_COMPONENT}")["items"]
    return sorted(
        pod["spec"].get("nodeName", "(not scheduled)")
        for pod in pods
        if belongs_to(pod, name) and not is_ready(pod)
    )


def belongs_to(pod: dict, name: str) -> bool:
    """Whether this DaemonSet made a pod."""
    return any(owner["name"] == name for owner in pod["metadata"].get("ownerReferences", []))


def is_ready(pod: dict) -> bool:
    """Whether a pod's condition Ready is true."""
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def main(what: str, namespace: str, name: str, seconds: str, account: str = _ACCOUNT) -> None:
    """Return when it is so; exit with a line that says why it is not."""
    deadline = time.monotonic() + float(seconds)
    look = {"gone": gone, "clean": clean}[what]
    problem = "no time to ask"
    while time.monotonic() < deadline:
        try:
            problem = look(Api(account), namespace, name)
        except OSError as error:
            problem = f"the API does not answer: {error}"
        if not problem:
            return
        time.sleep(_PAUSE)
    sys.exit(problem)


main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""What pods of the chart wait for and do in the API: WHAT SECONDS ARGUMENTS.

gone NAMESPACE NAME: until a DaemonSet is not there.
cleaned NAMESPACE NAME SECRET...: until a DaemonSet has cleaned up every node; then remove these
    Secrets.
clean NAMESPACE NAME SECRET...: the same, then remove the DaemonSet and its account.
reached NAMESPACE NAME: until the pods of a DaemonSet have reached a Service from every node.
served NODE TAINT URL: until the agent at this URL serves its node; then remove the node's taint.

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
from contextlib import suppress

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_PAUSE, _ANSWER_SECONDS = 1, 10
_NOT_FOUND = 404
_WHEN = ("state", "lastState")
_RIGHTS = "/apis/rbac.authorization.k8s.io/v1"


class Api:
    """The API server, asked as the account of the pod."""

    def __init__(self) -> None:
        """Read the certificate. OSError if that fails."""
        host, port = (os.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
        self._url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._trust = ssl.create_default_context(cafile=f"{_ACCOUNT}/ca.crt")

    def get(self, path: str) -> dict:
        """The answer. OSError if there is none, or the request is refused."""
        return self._ask("GET", path)

    def delete(self, path: str) -> None:
        """Nothing happens if it is not there. OSError as in get()."""
        with suppress(_NotFoundError):
            self._ask("DELETE", path)

    def patch(self, path: str, steps: list[dict]) -> None:
        """A JSON patch. OSError as in get()."""
        self._ask("PATCH", path, json.dumps(steps).encode())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> dict:
        with open(f"{_ACCOUNT}/token") as token:
            headers = {"Authorization": f"Bearer {token.read().strip()}"}
        if body is not None:
            headers["Content-Type"] = "application/json-patch+json"
        url = self._url + path
        request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310  https
        options = {"timeout": _ANSWER_SECONDS, "context": self._trust}
        try:
            with urllib.request.urlopen(request, **options) as answer:  # noqa: S310  https
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND:
                raise _NotFoundError(str(error)) from error
            raise


class _NotFoundError(OSError):
    """The API has no such object."""


def gone(api: Api, namespace: str, name: str) -> str:
    """Empty if there is no such DaemonSet; else a line to print."""
    with suppress(_NotFoundError):
        api.get(daemonset_path(namespace, name))
        return f"the DaemonSet {name} still exists: nothing is removed while agents may run"
    return ""


def cleaned(api: Api, namespace: str, name: str, *secrets: str) -> str:
    """Empty if every node is clean and the Secrets are removed; else a line to print."""
    waiting = unfinished(api, namespace, name, "cleanup")
    if waiting:
        nodes = ", ".join(waiting)
        return f"not cleaned up: {nodes}; the DaemonSet {name} keeps trying, delete it when ready"
    for each in secrets:
        api.delete(f"/api/v1/namespaces/{namespace}/secrets/{each}")
    return ""


def clean(api: Api, namespace: str, name: str, *secrets: str) -> str:
    """As cleaned(), and then the DaemonSet is removed.

    The DaemonSet goes last. Without one nothing is removed: the account may be that of the next
    uninstallation, which has not made its DaemonSet yet.
    """
    try:
        waiting = cleaned(api, namespace, name, *secrets)
    except _NotFoundError:
        return ""
    if waiting:
        return waiting
    api.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
    api.delete(f"{_RIGHTS}/namespaces/{namespace}/rolebindings/{name}")
    api.delete(f"{_RIGHTS}/namespaces/{namespace}/roles/{name}")
    api.delete(daemonset_path(namespace, name))
    return ""


def reached(api: Api, namespace: str, name: str) -> str:
    """Empty if every pod has reached a Service; else the nodes where not, and why."""
    waiting = unfinished(api, namespace, name, "test")
    return f"no Service answers from: {', '.join(waiting)}" if waiting else ""


def served(api: Api, node: str, taint: str, url: str) -> str:
    """Empty if the node no longer has the taint; else a line to print."""
    try:
        urllib.request.urlopen(url, timeout=_ANSWER_SECONDS).close()  # noqa: S310  of the node
    except OSError as error:
        return f"the agent does not serve this node yet: {error}"
    path = f"/api/v1/nodes/{node}"
    taints = api.get(path)["spec"].get("taints", [])
    steps = []
    for number, each in reversed(list(enumerate(taints))):
        if each["key"] == taint:
            at = f"/spec/taints/{number}"
            steps += [{"op": "test", "path": at, "value": each}, {"op": "remove", "path": at}]
    if not steps:
        return ""
    api.patch(path, steps)
    return f"the taint {taint} was removed"


def daemonset_path(namespace: str, name: str) -> str:
    """Where the API has a DaemonSet."""
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"


def unfinished(api: Api, namespace: str, name: str, component: str) -> list[str]:
    """The nodes on which this DaemonSet's pod is not ready; its pods have this component."""
    found = api.get(daemonset_path(namespace, name))
    status = found["status"]
    is_new = status.get("observedGeneration", 0) < found["metadata"]["generation"]
    if not is_new and status["numberReady"] >= status["desiredNumberScheduled"]:
        return []
    label = f"app.kubernetes.io%2Fcomponent%3D{component}"
    pods = api.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={label}")["items"]
    own = [pod for pod in pods if belongs_to(pod, name) and not is_ready(pod)]
    return sorted(map(place_of, own)) or ["(no pod yet)"]


def belongs_to(pod: dict, name: str) -> bool:
    """Whether this DaemonSet made a pod."""
    return any(owner["name"] == name for owner in pod["metadata"].get("ownerReferences", []))


def is_ready(pod: dict) -> bool:
    """Whether a pod's condition Ready is true."""
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def place_of(pod: dict) -> str:
    """The node of a pod, and what an init container that failed there said."""
    node = pod["spec"].get("nodeName", "(not scheduled)")
    each_container = pod["status"].get("initContainerStatuses", [])
    ends = [each.get(when, {}).get("terminated", {}) for each in each_container for when in _WHEN]
    reasons = [end["message"].strip() for end in ends if end.get("message")]
    return f"{node} ({reasons[-1]})" if reasons else node


def main(what: str, seconds: str, *arguments: str) -> None:
    """Return once the step is done; exit with a line that says why it is not."""
    deadline = time.monotonic() + float(seconds)
    steps = (gone, cleaned, clean, reached, served)
    (look,) = (step for step in steps if step.__name__ == what)
    problem = told = "no time to ask"
    while time.monotonic() < deadline:
        try:
            problem = look(Api(), *arguments)
        except _NotFoundError:
            problem = f"not in the API yet: {' '.join(arguments[:2])}"
        except OSError as error:
            problem = f"the API does not answer: {error}"
        if not problem:
            return
        if problem != told:
            told = problem
            print(problem, flush=True)
        time.sleep(_PAUSE)
    sys.exit(problem)


main(*sys.argv[1:])

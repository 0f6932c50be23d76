# SPDX-License-Identifier: Apache-2.0
"""`kubectl ebpflb` as kubectl finds it, for the admin or for a user with few rights."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chart.harness.rendering import NAMESPACE
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.cluster import Cluster

_TIMEOUT = 300


@dataclass(frozen=True, slots=True)
class Plugin:
    """With the credentials of a kubeconfig."""

    kubeconfig: Path

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Its output; `status`: the expected exit status."""
        return self._run("ebpflb", *arguments, status=status)

    def completed(self, *words: str) -> list[str]:
        """What a shell is told that comes next, and the directive."""
        return self._run("__complete", "ebpflb", *words).stdout.splitlines()

    def _run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            [binary("kubectl"), *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        assert ran.returncode == status, ran
        return ran

    def json(self, *arguments: str, status: int = 0) -> Any:
        """Its output with -o json."""
        return json.loads(self.run(*arguments, "-o", "json", status=status).stdout)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it in its own process group, as on a terminal."""
        return subprocess.Popen(
            [binary("kubectl"), "ebpflb", *arguments],
            env=self._environment(),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @contextmanager
    def page(self, *options: str) -> Iterator[str]:
        """The address that `kubectl ebpflb ui` prints."""
        with self.start("ui", *options) as process:
            try:
                assert process.stdout
                yield process.stdout.readline().strip()
            finally:
                os.killpg(process.pid, signal.SIGINT)

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "KUBECONFIG": str(self.kubeconfig)}


def user_with(cluster: Cluster, name: str, folder: Path, *rules: str) -> Plugin:
    """A user with these rights in the agents' namespace: "VERBS of RESOURCE[.GROUP]"."""
    cluster.kubectl("-n", NAMESPACE, "create", "serviceaccount", name)
    items = []
    for rule in rules:
        verbs, _, what = rule.partition(" of ")
        resource, _, group = what.partition(".")
        items.append({"apiGroups": [group], "verbs": verbs.split(), "resources": [resource]})
    role = {"kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "rules": items}
    metadata = {"name": name, "namespace": NAMESPACE}
    cluster.kubectl("create", "-f", "-", input=json.dumps({**role, "metadata": metadata}))
    subject = f"--serviceaccount={NAMESPACE}:{name}"
    cluster.kubectl("-n", NAMESPACE, "create", "rolebinding", name, f"--role={name}", subject)
    return with_token_of(cluster, NAMESPACE, name, folder)


def viewer_of(cluster: Cluster, namespace: str, folder: Path) -> Plugin:
    """A new user with the right `view` in one namespace, and no other."""
    space = ("-n", namespace)
    cluster.kubectl(*space, "create", "serviceaccount", "viewer")
    account = f"--serviceaccount={namespace}:viewer"
    cluster.kubectl(*space, "create", "rolebinding", "viewer", "--clusterrole=view", account)
    return with_token_of(cluster, namespace, "viewer", folder)


def with_token_of(cluster: Cluster, namespace: str, account: str, folder: Path) -> Plugin:
    """The plugin of a service account."""
    document = json.loads(cluster.kubeconfig.read_text())
    token = cluster.kubectl("-n", namespace, "create", "token", account).strip()
    document["users"][0]["user"] = {"token": token}
    path = folder / f"{account}.kubeconfig"
    path.write_text(json.dumps(document))
    return Plugin(path)

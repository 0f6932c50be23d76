# SPDX-License-Identifier: Apache-2.0
"""The objects of the relay, and what an upgrade makes of the Secrets that are there."""

import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.chart.harness.api import TOKEN, fake_api
from tests.chart.harness.rendering import (
    NAMESPACE,
    Object,
    component_of,
    of_kind,
    render,
    template,
)

RELAY: Object = {"relay": {"enabled": True}}
# The same with certificates of cert-manager.
ISSUED: Object = {"relay": {"enabled": True, "certificates": {"certManager": True}}}

# What lookup() asks an API server for before it asks for an object.
_KINDS = {
    "/api/v1": {"Secret": "secrets", "ConfigMap": "configmaps"},
    "/apis/apps/v1": {"DaemonSet": "daemonsets"},
}


def of_relay(objects: list[Object], kind: str) -> dict[str, Object]:
    """The relay's objects of one kind, by name."""
    return {
        each["metadata"]["name"]: each
        for each in of_kind(objects, kind)
        if component_of(each) == "relay"
    }


def certificates(values: Object | None = None, **options: Any) -> dict[str, Object]:
    """The Secrets that a first installation makes, by name."""
    return of_relay(render(values or RELAY, **options), "Secret")


def upgraded(there: dict[str, Object], values: Object | None = None) -> list[Object]:
    """What helm renders where the API server has these Secrets."""
    with tempfile.TemporaryDirectory() as folder, fake_api(Path(folder)) as api:
        api.answers = {f"{path}?timeout=32s": [_kinds(path)] for path in _KINDS}
        for name, secret in there.items():
            api.answers[f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}"] = [secret]
        address = f"--kube-apiserver=https://127.0.0.1:{api.port}"
        trust = (f"--kube-ca-file={folder}/ca.crt", f"--kube-token={TOKEN}")
        arguments = ("--dry-run=server", address, *trust)
        done = template(values or RELAY, arguments=arguments)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def _kinds(path: str) -> Object:
    listed = [
        {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}
        for kind, name in _KINDS[path].items()
    ]
    group = path.removeprefix("/apis/").removeprefix("/api/")
    return {"kind": "APIResourceList", "groupVersion": group, "resources": listed}

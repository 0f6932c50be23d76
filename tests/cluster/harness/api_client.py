# SPDX-License-Identifier: Apache-2.0
"""An API client for tests that write many objects: kubectl would take a process for each."""

import json
from pathlib import Path
from typing import Any

from kubernetes.client import ApiClient as Client
from kubernetes.config import new_client_from_config

_MERGE = "application/merge-patch+json"

Document = dict[str, Any]


class ApiClient:
    """With the credentials of a kubeconfig. Thread-safe."""

    def __init__(self, url: str, kubeconfig: Path) -> None:
        self._url = url
        self._client: Client = new_client_from_config(str(kubeconfig))
        self._client.configuration.connection_pool_maxsize = 16

    def post(self, path: str, body: Document) -> Document:
        """Create an object and return it."""
        return self._send("POST", path, body, "application/json")

    def merge(self, path: str, body: Document) -> Document:
        """Change fields of an object and return it."""
        return self._send("PATCH", path, body, _MERGE)

    def _send(self, method: str, path: str, body: Document, content_type: str) -> Document:
        method, url, headers, sent, *_ = self._client.param_serialize(
            method,
            path,
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = self._client.call_api(method, url, header_params=headers, body=sent).response
        text = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {text.decode()}")
        return dict(json.loads(text))

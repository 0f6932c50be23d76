# SPDX-License-Identifier: Apache-2.0
"""Who asks the relay's port over TLS, and what the API server publishes of itself."""

import json
import socket
import ssl
from collections.abc import Mapping
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
NAME = "relay.ebpflb.svc"
FRONT_PROXY = "front-proxy-client"


def published(client_ca: str) -> str:
    """The ConfigMap."""
    lists = {
        "allowed-names": [FRONT_PROXY],
        "username-headers": ["X-Remote-User"],
        "group-headers": ["X-Remote-Group"],
        "extra-headers-prefix": ["X-Remote-Extra-"],
    }
    found = {f"requestheader-{key}": json.dumps(value) for key, value in lists.items()}
    return json.dumps({"data": {"requestheader-client-ca-file": client_ca, **found}})


class Reply(NamedTuple):
    status: int
    body: str
    headers: Mapping[str, str]

    @property
    def document(self) -> Any:
        return json.loads(self.body)


class Client(NamedTuple):
    """folder: of its certificate, if it has one. ca: of the relay."""

    port: int
    ca: Path
    folder: Path | None = None

    def connect(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.folder:
            context.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        plain = socket.create_connection(("127.0.0.1", self.port), 30)
        return context.wrap_socket(plain, server_hostname=NAME)

    def send(
        self, connection: ssl.SSLSocket, path: str, user: str, method: str = "GET", **more: str
    ) -> None:
        headers = {"Host": NAME, **({"X-Remote-User": user} if user else {}), **more}
        lines = [f"{method} {path} HTTP/1.1", *map(": ".join, headers.items()), "", ""]
        connection.sendall("\r\n".join(lines).encode())

    def ask(self, path: str, user: str = "", method: str = "GET", **more: str) -> Reply:
        """OSError if the connection is refused."""
        with self.connect() as connection:
            self.send(connection, path, user, method, **more)
            return read_reply(connection)


def read_reply(connection: ssl.SSLSocket) -> Reply:
    response = HTTPResponse(connection)
    response.begin()
    with response:
        body = response.read().decode()
    return Reply(response.status, body, dict(response.getheaders()))

# SPDX-License-Identifier: Apache-2.0
"""An agent and the relay with certificates of one authority, and connections between them."""

import http.client
import os
import shutil
import socket
import ssl
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ebpflb.web.tls import FILES, mutual_client
from ebpflb.words.observe import AGENT, RELAY
from tests.certificates import Authority

SECONDS = 60


class Parties:
    """Certificates of both, each in a directory."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ca")
        self.agent = self.authority.issue(folder / "agent", AGENT, dns=AGENT)
        self.relay = self.authority.issue(folder / "relay", RELAY)


class Mounted:
    """A directory whose files are replaced at once, as the kubelet does it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._versions = 0

    def put(self, certificates: Path) -> None:
        """From now on it has the files of this directory."""
        self._versions += 1
        there = self.directory / f"..{self._versions}"
        shutil.copytree(certificates, there)
        fresh = self.directory / "..fresh"
        fresh.symlink_to(there.name)
        os.replace(fresh, self.directory / "..data")
        for name in FILES:
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")


class Response(NamedTuple):
    status: int
    body: bytes
    headers: http.client.HTTPMessage


def connected(
    port: int, who: Path | ssl.SSLContext, name: str = AGENT, *, buffer: int = 0
) -> ssl.SSLSocket:
    """To a port of this machine, with the certificate in a directory. OSError.

    Reading raises SSLError where the server leaves without the end of TLS.
    `name`: whom the client wants. `buffer`: what it lets the kernel receive for it.
    """
    context = mutual_client(who) if isinstance(who, Path) else who
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    client = socket.socket()
    client.settimeout(SECONDS)
    if buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    try:
        client.connect(("127.0.0.1", port))
        return context.wrap_socket(client, server_hostname=name, suppress_ragged_eofs=False)
    except OSError:
        client.close()
        raise


def ask(port: int, who: Path | ssl.SSLContext, target: str = "/", method: str = "GET") -> Response:
    """The answer to one question. OSError."""
    with closing(http.client.HTTPConnection("agent")) as connection:
        connection.sock = connected(port, who)
        connection.request(method, target)
        answer = connection.getresponse()
        return Response(answer.status, answer.read(), answer.headers)

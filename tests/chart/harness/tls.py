# SPDX-License-Identifier: Apache-2.0
"""Handshakes between holders of certificates that the chart makes."""

import ssl
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chart.harness.rendering import Object

_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Peers:
    """What the two sides of a connection know of each other, as SSLSocket.getpeercert() has it."""

    server: dict[str, Any]
    client: dict[str, Any]


def handshake(folder: Path, server: Object, client: Object, name: str) -> Peers:
    """Connect with the Secrets of both sides; `name`: whom the client wants.

    Each trusts the CA of its own Secret alone, as strictly as Python 3.13 does. ssl.SSLError if one
    refuses the other.
    """
    of_server = _context(ssl.PROTOCOL_TLS_SERVER, server, folder / "server")
    of_server.verify_mode = ssl.CERT_REQUIRED
    of_client = _context(ssl.PROTOCOL_TLS_CLIENT, client, folder / "client")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = of_server.wrap_bio(to_server, to_client, server_side=True)
    here = of_client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(_ROUNDS):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return Peers(here.getpeercert() or {}, there.getpeercert() or {})


def authority(secret: Object) -> dict[str, Any]:
    """The CA that the holder of a Secret trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=text(secret, "ca.crt"))
    (found,) = context.get_ca_certs()
    return dict(found)


def subject(certificate: dict[str, Any]) -> str:
    """The CN of a certificate's subject."""
    return str(dict(one for part in certificate["subject"] for one in part)["commonName"])


def dns_names(certificate: dict[str, Any]) -> list[str]:
    """The names of a server's certificate."""
    return [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]


def days(certificate: dict[str, Any]) -> float:
    """How long a certificate is valid."""
    first, last = (ssl.cert_time_to_seconds(certificate[key]) for key in ("notBefore", "notAfter"))
    return (last - first) / 86400


def text(secret: Object, key: str) -> str:
    """A value of a Secret."""
    return b64decode(secret["data"][key]).decode()


def _context(protocol: int, secret: Object, folder: Path) -> ssl.SSLContext:
    folder.mkdir(parents=True, exist_ok=True)
    for key in ("tls.crt", "tls.key"):
        (folder / key).write_text(text(secret, key))
    context = ssl.SSLContext(protocol)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=text(secret, "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context

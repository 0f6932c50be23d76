# SPDX-License-Identifier: Apache-2.0
"""Mutual TLS with certificates from a directory, as the kubelet mounts a Secret of type tls."""

import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ebpflb.log import fields

_log = logging.getLogger("ebpflb.http")

CA, CERTIFICATE, KEY = FILES = ("ca.crt", "tls.crt", "tls.key")

Stamp = tuple[tuple[int, int], ...]


class Certificates:
    """A context of the certificates in a directory, made anew after they change. Thread-safe."""

    def __init__(self, directory: Path, make: Callable[[Path], ssl.SSLContext]) -> None:
        self._directory = directory
        self._make = make
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._stamp: Stamp = ()
        # Why there are none that are new, which is logged once.
        self._complaint = ""

    def context(self) -> ssl.SSLContext:
        """OSError if there never was one. Of new files that do not fit together it keeps the old.

        The kubelet replaces all files of a Secret at once, minutes after the Secret has changed.
        """
        with self._lock:
            try:
                self._context, self._stamp = self._current()
                self._complain("")
            except OSError as error:
                self._complain(str(error))
                if self._context is None:
                    raise
            return self._context

    def _current(self) -> tuple[ssl.SSLContext, Stamp]:
        stamp = _stamp(self._directory)
        if self._context and stamp == self._stamp:
            return self._context, stamp
        return self._make(self._directory), stamp

    def _complain(self, why: str) -> None:
        if why and why != self._complaint:
            _log.warning(
                "cannot read the certificates: %s", why, extra=fields(directory=self._directory)
            )
        self._complaint = why


def _stamp(directory: Path) -> Stamp:
    found = [(directory / name).stat() for name in FILES]
    return tuple((each.st_ino, each.st_mtime_ns) for each in found)


def mutual_server(directory: Path) -> ssl.SSLContext:
    """For a server whose clients must have a certificate of the same authority. OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _loaded(context, directory)


def mutual_client(directory: Path) -> ssl.SSLContext:
    """For a client of such a server, whose name it checks. OSError."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), directory)


def _loaded(context: ssl.SSLContext, directory: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(directory / CA)
    # Without a passphrase OpenSSL would ask a terminal for it.
    context.load_cert_chain(directory / CERTIFICATE, directory / KEY, password="")
    return context


def subject_of(certificate: Mapping[str, Any] | None) -> str:
    """Of the subject of a verified certificate, as ssl has it; "" without one."""
    names = [pair for relative in (certificate or {}).get("subject", ()) for pair in relative]
    found = [value for name, value in names if name == "commonName"]
    return str(found[0]) if len(found) == 1 else ""

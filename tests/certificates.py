# SPDX-License-Identifier: Apache-2.0
"""Makes certificates with openssl, in folders as the kubelet mounts Secrets of type tls."""

import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ebpflb.web.tls import CA, CERTIFICATE, KEY

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_DAY = timedelta(days=1)
_AUTHORITY = """
[ca]
default_ca = authority
[authority]
certificate = {folder}/ca.crt
private_key = {folder}/ca.key
database = {folder}/issued
new_certs_dir = {folder}
default_md = sha256
rand_serial = yes
unique_subject = no
policy = any_name
[any_name]
commonName = optional
"""


def openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Authority:
    """A certificate authority in a folder of its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        key, certificate = str(folder / "ca.key"), str(folder / CA)
        _self_signed(key, certificate, f"/CN={name}")
        (folder / "issued").touch()
        (folder / "authority").write_text(_AUTHORITY.format(folder=folder))

    @property
    def certificate(self) -> Path:
        """Its own."""
        return self._folder / CA

    @property
    def text(self) -> str:
        """That as PEM."""
        return self.certificate.read_text()

    def issue(
        self,
        directory: Path,
        *names: str,
        dns: str = "",
        address: str = "",
        begin: timedelta = -_DAY,
        end: timedelta = _DAY,
    ) -> Path:
        """A certificate whose subject has these common names, in the directory, which it returns.

        dns, address: by which clients know it as a server. begin, end: of its validity, from now.
        """
        directory.mkdir(parents=True, exist_ok=True)
        request, extensions = self._folder / "request", self._folder / "extensions"
        subject, key = _subject(names), str(directory / KEY)
        openssl("req", "-new", *_NEW_KEY, "-keyout", key, "-out", str(request), *subject)
        server = f"DNS:{dns}" if dns else f"IP:{address}" if address else ""
        extensions.write_text(f"subjectAltName = {server}\n" if server else "")
        openssl(
            *("ca", "-batch", "-notext", "-config", str(self._folder / "authority")),
            *("-in", str(request), "-out", str(directory / CERTIFICATE), "-preserveDN"),
            *("-startdate", _time(begin), "-enddate", _time(end), "-extfile", str(extensions)),
        )
        (directory / CA).write_bytes((self._folder / CA).read_bytes())
        return directory


def self_signed(directory: Path, name: str, alternative: str = "") -> Path:
    """A certificate that nobody else has signed, which is also its CA, as of an API server.

    `alternative`: as in subjectAltName, such as IP:127.0.0.1.
    """
    directory.mkdir(parents=True, exist_ok=True)
    more = ("-addext", f"subjectAltName={alternative}") if alternative else ()
    _self_signed(str(directory / KEY), str(directory / CERTIFICATE), f"/CN={name}", *more)
    (directory / CA).write_bytes((directory / CERTIFICATE).read_bytes())
    return directory


def _self_signed(key: str, certificate: str, subject: str, *more: str) -> None:
    files = ("-keyout", key, "-out", certificate)
    openssl("req", "-x509", *_NEW_KEY, *files, "-subj", subject, "-days", "1", *more)


def _subject(names: Iterable[str]) -> tuple[str, str]:
    return "-subj", "".join(f"/CN={name}" for name in names) or "/"


def _time(from_now: timedelta) -> str:
    return (datetime.now(UTC) + from_now).strftime("%Y%m%d%H%M%SZ")

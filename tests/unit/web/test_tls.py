# SPDX-License-Identifier: Apache-2.0
"""Certificates in a directory that the kubelet fills, and replaces."""

import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ebpflb.web.tls import CA, CERTIFICATE, KEY, Certificates, mutual_server, subject_of
from ebpflb.words.observe import AGENT
from tests.certificates import Authority, openssl
from tests.unit.mutual import Mounted, Parties


class Counted:
    """Contexts of a directory, of which it counts how many were made."""

    def __init__(self, directory: Path) -> None:
        self.made = 0
        self.directory = directory
        self.certificates = Certificates(directory, self._make)

    def _make(self, directory: Path) -> ssl.SSLContext:
        made = mutual_server(directory)
        self.made += 1
        return made

    def context(self) -> ssl.SSLContext:
        return self.certificates.context()


@pytest.fixture
def mounted(tmp_path: Path, parties: Parties) -> Mounted:
    (tmp_path / "observe").mkdir()
    made = Mounted(tmp_path / "observe")
    made.put(parties.agent)
    return made


@pytest.fixture
def counted(mounted: Mounted) -> Counted:
    return Counted(mounted.directory)


@pytest.fixture
def unfit(tmp_path: Path, parties: Parties) -> Path:
    """A certificate with another one's key."""
    made = parties.authority.issue(tmp_path / "unfit", AGENT)
    (made / KEY).write_bytes((parties.relay / KEY).read_bytes())
    return made


def subject_names(context: ssl.SSLContext) -> list[str]:
    """Of the authorities that it trusts."""
    return [subject_of(each) for each in context.get_ca_certs()]


def test_as_long_as_the_files_stay_so_does_the_context(counted):
    first = counted.context()
    assert counted.context() is first
    assert counted.made == 1


def test_threads_that_ask_at_once_get_the_same_context(counted):
    together = threading.Barrier(4)

    def ask(_):
        together.wait()
        return counted.context()

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(ask, range(4)))) == 1
    assert counted.made == 1


def test_a_context_demands_certificates_and_the_latest_tls(counted):
    context = counted.context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_after_the_files_were_replaced_the_context_is_another_one(counted, mounted, tmp_path):
    before = counted.context()
    other = Authority(tmp_path / "other", "the next authority")
    mounted.put(other.issue(tmp_path / "next", AGENT))
    after = counted.context()
    assert after is not before
    assert (subject_names(before), subject_names(after)) == (["authority"], ["the next authority"])
    assert counted.context() is after


@pytest.mark.parametrize("name", [CA, CERTIFICATE, KEY])
def test_each_file_counts(counted, mounted, name):
    counted.context()
    path = mounted.directory / name
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    counted.context()
    assert counted.made == 2


def test_without_files_there_is_none_until_they_are_there(tmp_path, parties, caplog):
    counted = Counted(tmp_path)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            counted.context()
    assert caplog.messages == [
        f"cannot read the certificates: [Errno 2] No such file or directory: '{tmp_path / CA}'"
    ]
    Mounted(tmp_path).put(parties.agent)
    assert subject_names(counted.context()) == ["authority"]
    assert len(caplog.records) == 1


def test_of_files_that_do_not_fit_together_nothing_is_taken(counted, mounted, unfit, caplog):
    before = counted.context()
    mounted.put(unfit)
    assert [counted.context() for _ in range(3)] == [before] * 3
    (warning,) = caplog.records
    assert (warning.levelname, "key values mismatch" in warning.message) == ("WARNING", True)


def test_files_that_fit_again_are_taken_and_the_next_failure_is_told(
    counted, mounted, unfit, parties, caplog
):
    before = counted.context()
    for _ in range(2):
        mounted.put(unfit)
        assert counted.context() is before
        mounted.put(parties.agent)
        after = counted.context()
        assert after is not before
        before = after
    assert len(caplog.records) == 2


def test_another_reason_is_told_too(counted, mounted, unfit, caplog):
    before = counted.context()
    mounted.put(unfit)
    counted.context()
    (mounted.directory / CA).unlink()
    assert counted.context() is before
    assert ["mismatch" in each for each in caplog.messages] == [True, False]


@pytest.mark.parametrize("name", [CA, CERTIFICATE, KEY])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"\0\xff" * 9, None])
def test_what_is_no_certificate_is_an_error(tmp_path, mounted, name, content):
    path = mounted.directory / name
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(OSError, match=r"\[X509|\[SSL|PEM|directory"):
        Counted(mounted.directory).context()


def test_a_key_with_a_passphrase_is_an_error_and_nobody_is_asked_for_it(mounted, capfd):
    path, plain = mounted.directory / KEY, mounted.directory / "plain"
    path.rename(plain)
    openssl("ec", "-in", str(plain), "-aes128", "-passout", "pass:x", "-out", str(path))
    with pytest.raises(OSError, match=r"PEM|password"):
        Counted(mounted.directory).context()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("certificate", "subject"),
    [
        (None, ""),
        ({}, ""),
        ({"subject": ()}, ""),
        ({"subject": ((("organizationName", "x"),),)}, ""),
        ({"subject": ((("organizationName", "x"),), (("commonName", "relay"),))}, "relay"),
        ({"subject": ((("organizationName", "x"), ("commonName", "relay")),)}, "relay"),
        ({"subject": ((("commonName", "relay"),), (("commonName", "other"),))}, ""),
        ({"subject": ((("commonName", "relay"), ("commonName", "relay")),)}, ""),
    ],
)
def test_a_subject_has_one_name_or_none(certificate, subject):
    assert subject_of(certificate) == subject

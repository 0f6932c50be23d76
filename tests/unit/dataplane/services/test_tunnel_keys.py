# SPDX-License-Identifier: Apache-2.0
"""Tunnel keys: valid files, changes of a file, and that no key is ever printed."""

import logging
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel.dsr_questions import NO_KEY
from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.services.tunnel_keys import TunnelKeys
from ebpflb.dataplane.view.dump import decode_map
from tests.memory_maps import memory_maps

FIRST, SECOND = "0123456789abcdef", "FEDCBA9876543210"
KEY, OTHER = bytes.fromhex(FIRST), bytes.fromhex(SECOND)


@pytest.fixture
def target() -> BpfMap:
    return memory_maps()["lb_tunnel_keys"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def written(target: BpfMap) -> bytes:
    return target.lookup(bytes(4)) or b""


@pytest.mark.parametrize(
    ("text", "expected", "count"),
    [
        (FIRST, KEY + KEY, 1),
        (f"{FIRST}\n{SECOND}\n", KEY + OTHER, 2),
        (f"# of May\n\n  {SECOND}  # the new one\n{FIRST}", OTHER + KEY, 2),
    ],
)
def test_the_first_key_is_sent_and_all_are_accepted(
    target: BpfMap, path: Path, text: str, expected: bytes, count: int
):
    path.write_text(text)
    keys = TunnelKeys(path)
    keys.follow(target)
    assert written(target) == expected
    assert (keys.sent, keys.count, keys.trouble) == (expected[:8], count, "")


def test_a_file_that_changes_is_read_again(target: BpfMap, path: Path):
    keys = TunnelKeys(path)
    for text, expected in (
        (FIRST, KEY + KEY),
        (f"{FIRST} \n{SECOND}", KEY + OTHER),
        (SECOND, 2 * OTHER),
    ):
        path.write_text(text)
        keys.follow(target)
        assert written(target) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "want one or 2 keys, found 0"),
        (f"{FIRST}\n" * 3, "want one or 2 keys, found 3"),
        (f"{FIRST}\n{SECOND}0", "line 2: want 16 hexadecimal digits, not all of them 0"),
        ("secret", "line 1: want 16 hexadecimal digits, not all of them 0"),
        ("0" * 16, "line 1: want 16 hexadecimal digits, not all of them 0"),
        ("\0\xff", "line 1: want 16 hexadecimal digits, not all of them 0"),
        ("#" * 5000, "it has more than 4096 bytes"),
        (None, "No such file or directory"),
    ],
)
def test_a_bad_file_changes_nothing_and_is_named_once(
    target: BpfMap, path: Path, caplog: pytest.LogCaptureFixture, text: str | None, why: str
):
    path.write_text(FIRST)
    keys = TunnelKeys(path)
    keys.follow(target)
    path.unlink()
    if text is not None:
        path.write_text(text, encoding="latin-1")
    caplog.clear()
    keys.follow(target)
    keys.follow(target)
    assert written(target) == 2 * KEY
    assert (keys.sent, keys.trouble) == (KEY, f"{path}: {why}")
    assert [each.getMessage() for each in caplog.records] == [
        f"cannot read the keys of DSR tunnels, which stay as they are: {path}: {why}"
    ]


def test_a_new_agent_with_a_bad_file_goes_on_with_the_keys_that_are_there(
    target: BpfMap, path: Path
):
    target.update(bytes(4), KEY + OTHER)
    keys = TunnelKeys(path)
    keys.follow(target)
    assert (written(target), keys.sent) == (KEY + OTHER, KEY)


def test_a_node_that_has_never_had_a_key_takes_no_part(target: BpfMap, path: Path):
    keys, others = TunnelKeys(path), memory_maps()["lb_tunnel_keys"]
    keys.follow(target)
    TunnelKeys(path).follow(others)
    assert keys.sent != NO_KEY
    assert written(target) == 2 * keys.sent != written(others)
    keys.follow(target)
    assert written(target) == 2 * keys.sent


def test_without_a_file_there_is_no_key(target: BpfMap):
    target.update(bytes(4), KEY + OTHER)
    keys = TunnelKeys(None)
    keys.follow(target)
    assert (written(target), keys.sent, keys.count) == (2 * NO_KEY, NO_KEY, 0)


def test_nobody_reports_them(target: BpfMap, path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    keys = TunnelKeys(path)
    for text in (f"{FIRST}\n{SECOND}", f"{FIRST}0\n{SECOND}"):
        path.write_text(text)
        keys.follow(target)
    told = f"{caplog.text} {keys.trouble} {decode_map(target)}".lower()
    assert "secret" in told
    for each in (FIRST, SECOND, str(int(FIRST, 16)), str(int.from_bytes(KEY, "little"))):
        assert each.lower() not in told

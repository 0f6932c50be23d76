# SPDX-License-Identifier: Apache-2.0
import json
import threading
import time

import pytest

from ebpflb.errors import ClusterError, ConfigError
from ebpflb.kubectl.access import Access, EndlessError, ForbiddenError
from tests.unit.kubectl.api_server import write_kubeconfig

NOBODY = "http://127.0.0.1:1"


def test_a_list_is_read_page_by_page(access, objects):
    objects.page = 2
    objects.lists["/api/v1/nodes"] = [{"metadata": {"name": str(each)}} for each in range(5)]
    assert [each["metadata"]["name"] for each in access.items("/api/v1/nodes")] == list("01234")


def test_a_list_without_an_end_is_not_read_for_ever(access, objects, monkeypatch):
    monkeypatch.setattr("ebpflb.kubectl.access._MOST_PAGES", 3)
    objects.texts["/api/v1/nodes"] = json.dumps({"metadata": {"continue": "x"}, "items": [{}]})
    with pytest.raises(ClusterError, match="the list at /api/v1/nodes does not end"):
        list(access.items("/api/v1/nodes"))


def test_an_answer_without_an_end_is_not_read_for_ever(access, objects, monkeypatch):
    monkeypatch.setattr("ebpflb.kubectl.access._MOST_BYTES", 10)
    objects.texts["/version"] = "0123456789"
    assert access.read("/version") == b"0123456789"
    objects.texts["/version"] = "0123456789x"
    with pytest.raises(ClusterError, match="the answer to /version does not end"):
        access.read("/version")


def test_the_namespace_is_that_of_the_context(tmp_path):
    path = write_kubeconfig(tmp_path / "one", "http://127.0.0.1:1", namespace="shop")
    assert Access(str(path)).namespace == "shop"
    assert Access(str(write_kubeconfig(tmp_path / "two", NOBODY))).namespace == "default"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No configuration found"),
        ("}{", "while parsing"),
        ("[]", "not a valid kubeconfig"),
        ("text", "not a valid kubeconfig"),
        ('{"contexts": []}', "kubeconfig"),
    ],
)
def test_a_kubeconfig_that_is_wrong_is_one_line(tmp_path, content, said):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=str(path)) as error:
        Access(str(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_context_is_named_with_those_that_exist(tmp_path):
    path = write_kubeconfig(tmp_path / "kubeconfig", NOBODY)
    with pytest.raises(ConfigError, match="no context 'prod', only main"):
        Access(str(path), "prod")


def test_an_api_server_that_is_down_is_one_line(tmp_path):
    path = write_kubeconfig(tmp_path / "kubeconfig", NOBODY)
    with pytest.raises(ClusterError, match=f"^cannot reach .* {NOBODY}: Connection refused$"):
        Access(str(path)).get("/version")


def test_what_rbac_forbids_is_reported_in_its_words(access, objects):
    objects.forbidden["/api/v1/nodes"] = 'nodes is forbidden: User "me" cannot list nodes'
    with pytest.raises(ForbiddenError, match='RBAC forbids it: User "me" cannot list nodes'):
        list(access.items("/api/v1/nodes"))


def test_something_else_that_answers_is_no_api_server(access, objects):
    for text in ("<html>", "[]", json.dumps("hello")):
        objects.texts["/version"] = text
        with pytest.raises(ClusterError, match="is no API server"):
            access.get("/version")


WATCH = (("watch", "true"),)


def streams(objects, *pieces, then=()):
    """Answer with these pieces, and `then` with pauses or errors."""

    def stream(_query):
        yield from pieces
        for each in then:
            if isinstance(each, Exception):
                raise each
            yield each

    objects.streams["/flows"] = stream


def test_lines_come_as_they_arrive_wherever_chunks_begin(access, objects):
    streams(objects, b"on", b"e\n\n\xc3", b"\xa4\xff\nthree\nfo")
    assert list(access.lines("/flows", WATCH)) == [
        "one",
        "",
        "\N{LATIN SMALL LETTER A WITH DIAERESIS}\ufffd",
        "three",
    ]


def test_the_first_line_does_not_wait_for_the_next(access, objects):
    goes_on = threading.Event()

    def stream(_query):
        yield b"one\n"
        goes_on.wait(60)
        yield b"two\n"

    objects.streams["/flows"] = stream
    lines = access.lines("/flows", WATCH)
    assert next(lines) == "one"
    goes_on.set()
    assert list(lines) == ["two"]


def test_what_is_wrong_before_the_first_line_is_told_at_once(access, objects, tmp_path):
    objects.forbidden["/flows"] = "flows is forbidden: no"
    with pytest.raises(ForbiddenError, match="RBAC forbids it: no"):
        access.lines("/flows", WATCH)
    nobody = Access(str(write_kubeconfig(tmp_path / "nobody", NOBODY)))
    with pytest.raises(ClusterError, match="Connection refused"):
        nobody.lines("/flows")


def test_lines_that_break_off_are_one_line(access, objects):
    streams(objects, b"one\ntw", then=[ConnectionResetError()])
    lines = access.lines("/flows", WATCH)
    assert next(lines) == "one"
    with pytest.raises(ClusterError, match=r"^the connection to http://127.0.0.1:\d+ was lost: "):
        next(lines)


def test_who_says_nothing_for_long_is_left(access, objects, monkeypatch):
    monkeypatch.setattr("ebpflb.kubectl.access._SILENT_SECONDS", 0.1)
    left = threading.Event()

    def stream(_query):
        try:
            yield b"one\n"
            while True:
                time.sleep(0.01)
                yield None
        finally:
            left.set()

    objects.streams["/flows"] = stream
    lines = access.lines("/flows", WATCH)
    assert next(lines) == "one"
    with pytest.raises(ClusterError, match=r"^http://.*: nothing has come for 0.1 s$"):
        next(lines)
    assert left.wait(60)


def test_lines_may_be_silent_for_longer_than_the_answer_may_take_to_begin(kubeconfig, objects):
    def stream(_query):
        yield b"one\n"
        time.sleep(0.6)
        yield b"two\n"

    objects.streams["/flows"] = stream
    assert list(Access(str(kubeconfig), seconds=0.3).lines("/flows", WATCH)) == ["one", "two"]


def test_closing_lines_ends_the_request(access, objects):
    left = threading.Event()

    def stream(_query):
        try:
            while True:
                time.sleep(0.01)
                yield b"line\n"
        finally:
            left.set()

    objects.streams["/flows"] = stream
    lines = access.lines("/flows", WATCH)
    assert next(lines) == "line"
    lines.close()
    assert left.wait(60)


@pytest.mark.parametrize("pieces", [[b"x" * 40_000] * 2, [b"x" * 70_000 + b"\n"]])
def test_a_line_without_an_end_is_not_read_for_ever(access, objects, pieces):
    streams(objects, b"one\n", *pieces)
    lines = access.lines("/flows", WATCH)
    assert next(lines) == "one"
    with pytest.raises(EndlessError, match="sends a line of more than 64 KiB"):
        list(lines)

# SPDX-License-Identifier: Apache-2.0
"""DirectorySource with its thread: files change, events come."""

import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ebpflb.errors import SourceError
from ebpflb.model.address import format_address
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import key_of
from ebpflb.model.service import Service
from ebpflb.source import directory
from ebpflb.source.directory import DirectorySource
from ebpflb.source.interface import SourceEvent
from ebpflb.source.manifest import Content, parse_manifest
from ebpflb.source.watch import Watch
from tests.builders import (
    endpoint,
    endpoint_slice,
    service,
    service_manifest,
    slice_manifest,
    write_manifests,
)
from tests.descriptors import descriptors

WEB, SLICE = service(), endpoint_slice("web-1", endpoint())
BROKEN = service_manifest(ports=[{"port": "abc"}])


def cluster_ips(event: SourceEvent) -> list[str]:
    services = [each for each in event.upserts if isinstance(each, Service)]
    return [format_address(port.cluster_ip) for each in services for port in each.ports]


def test_an_empty_directory_is_an_initial_event(start, tmp_path: Path):
    assert start(tmp_path).next() == SourceEvent((), (), {}, initial=True)


def test_the_initial_event_carries_everything(start, tmp_path: Path):
    write_manifests(tmp_path / "b.yaml", slice_manifest())
    write_manifests(tmp_path / "a.json", service_manifest())
    assert start(tmp_path).next() == SourceEvent((WEB, SLICE), (), {}, initial=True)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were parsed."""
    names: list[str] = []

    def parse(name: str, raw: bytes, label_keys: Collection[str]) -> Content:
        names.append(name)
        return parse_manifest(name, raw, label_keys)

    monkeypatch.setattr("ebpflb.source.directory.parse_manifest", parse)
    return names


def test_only_the_file_that_changed_is_parsed_again(start, tmp_path: Path, parsed: list[str]):
    write_manifests(tmp_path / "a.yaml", service_manifest())
    write_manifests(tmp_path / "b.json", slice_manifest(), service_manifest("shop"))
    events = start(tmp_path)
    events.next()
    write_manifests(tmp_path / "b.json", slice_manifest(endpoints=[]), service_manifest("shop"))
    event = events.next()
    assert event == SourceEvent((endpoint_slice("web-1"),), (), {}, initial=False)
    assert parsed == ["a.yaml", "b.json", "b.json"]


def test_following_again_parses_only_what_may_differ(start, tmp_path: Path, parsed: list[str]):
    write_manifests(tmp_path / "a.yaml", service_manifest())
    write_manifests(tmp_path / "target", slice_manifest())
    events = start(tmp_path)
    events.next()
    (tmp_path / "b.yaml").symlink_to("target")
    assert events.next().upserts == (SLICE,)
    assert parsed == ["a.yaml", "b.yaml"]


def test_a_file_that_vanishes_while_it_is_read_is_no_error(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    original = directory._content

    def content(name: str) -> Any:
        if name.endswith("gone.yaml"):
            Path(name).unlink()
        return original(name)

    monkeypatch.setattr(directory, "_content", content)
    write_manifests(tmp_path / "gone.yaml", slice_manifest())
    write_manifests(tmp_path / "web.yaml", service_manifest())
    assert start(tmp_path).next() == SourceEvent((WEB,), (), {}, initial=True)


def test_a_deleted_file_takes_its_objects_along(start, tmp_path: Path):
    write_manifests(tmp_path / "web.yaml", service_manifest(), slice_manifest())
    events = start(tmp_path)
    events.next()
    (tmp_path / "web.yaml").unlink()
    assert events.next() == SourceEvent((), (key_of(WEB), key_of(SLICE)), {}, initial=False)


@pytest.mark.parametrize("leaves", ["is deleted", "is renamed to a backup"])
def test_a_file_that_is_recreated_was_never_missing(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: str
):
    monkeypatch.setattr(directory, "_PAUSE", 10)
    path = write_manifests(tmp_path / "web.yaml", service_manifest(), slice_manifest())
    write_manifests(tmp_path / "shop.yaml", service_manifest("shop"))
    events = start(tmp_path)
    events.next()
    if leaves == "is deleted":
        path.unlink()
    else:
        path.rename(tmp_path / "web.yaml~")
    (tmp_path / "shop.yaml").rename(tmp_path / "shop.yaml.bak")
    assert [key.name for key in events.next().removals] == ["shop"]
    write_manifests(path, service_manifest())
    assert events.next().removals == (key_of(SLICE),)


def test_a_file_that_does_not_come_again_is_gone(start, tmp_path: Path):
    path = write_manifests(tmp_path / "web.yaml", service_manifest())
    (tmp_path / "linked.yaml").symlink_to("missing")
    events = start(tmp_path)
    events.next()
    path.rename(tmp_path / "web.yaml~")
    (tmp_path / "linked.yaml").unlink()
    seen = [events.next()]
    while seen[-1].errors or not any(event.removals for event in seen):
        seen.append(events.next())
    assert [key for event in seen for key in event.removals] == [key_of(WEB)]
    assert not any(event.upserts for event in seen)


def test_a_file_that_is_being_recreated_is_waited_for(tmp_path: Path):
    path = write_manifests(tmp_path / "web.yaml", service_manifest())
    events: queue.Queue[SourceEvent] = queue.Queue()
    source = DirectorySource(tmp_path, events.put)
    with closing(Watch(str(tmp_path))) as watch:
        source._compare_all(watch)
        path.unlink()
        source._read_touched(watch)
        with path.open("w"):
            source._drop_missing(watch, time.monotonic() + directory._PAUSE)
            source._send(initial=False)
            assert events.get_nowait().upserts == (WEB,)
        source._read_touched(watch)
        source._send(initial=False)
        assert events.get_nowait().removals == (key_of(WEB),)


def test_an_object_that_leaves_a_file_is_removed(start, tmp_path: Path):
    write_manifests(tmp_path / "web.yaml", service_manifest(), slice_manifest())
    events = start(tmp_path)
    events.next()
    write_manifests(tmp_path / "web.yaml", service_manifest())
    assert events.next().removals == (key_of(SLICE),)


def test_a_slice_that_stops_to_matter_is_removed(start, tmp_path: Path):
    write_manifests(tmp_path / "web.yaml", slice_manifest())
    events = start(tmp_path)
    events.next()
    headless = slice_manifest()
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = ""
    write_manifests(tmp_path / "web.yaml", headless)
    assert events.next().removals == (key_of(SLICE),)


def test_what_says_the_same_is_no_event(start, tmp_path: Path):
    write_manifests(tmp_path / "web.yaml", service_manifest())
    events = start(tmp_path)
    events.next()
    write_manifests(tmp_path / "web.yaml", service_manifest())
    (tmp_path / "web.yaml~").write_text("backup")
    (tmp_path / ".web.yaml.swp").write_text("swap")
    write_manifests(tmp_path / "last.yaml", slice_manifest())
    assert events.next().upserts == (SLICE,)


def test_a_broken_file_keeps_its_last_good_objects(start, tmp_path: Path):
    path = write_manifests(tmp_path / "web.yaml", service_manifest(), slice_manifest())
    events = start(tmp_path)
    events.next()
    write_manifests(path, slice_manifest(endpoints=[]), BROKEN)
    line = (
        f"{path}: document 2: Service default/web: spec.ports[0].port: "
        'must be a whole number from 1 to 65535, not "abc"'
    )
    assert events.next() == SourceEvent((), (), {str(path): line}, initial=False, complete=False)
    write_manifests(path, service_manifest(), slice_manifest(endpoints=[]))
    assert events.next() == SourceEvent((endpoint_slice("web-1"),), (), {}, initial=False)


def test_a_broken_file_does_not_hide_the_others(start, tmp_path: Path):
    write_manifests(tmp_path / "a.yaml", BROKEN)
    write_manifests(tmp_path / "b.yaml", slice_manifest())
    write_manifests(tmp_path / "c.json", BROKEN)
    event = start(tmp_path).next()
    assert event.upserts == (SLICE,)
    assert list(event.errors) == [str(tmp_path / "a.yaml"), str(tmp_path / "c.json")]


def test_a_deleted_broken_file_is_no_error_any_more(start, tmp_path: Path):
    path = write_manifests(tmp_path / "web.yaml", BROKEN)
    events = start(tmp_path)
    assert events.next().errors
    path.unlink()
    assert events.next() == SourceEvent((), (), {}, initial=False)


def test_errors_are_reported_when_they_change(start, tmp_path: Path):
    write_manifests(tmp_path / "web.yaml", BROKEN)
    events = start(tmp_path)
    events.next()
    write_manifests(tmp_path / "web.yaml", BROKEN)
    write_manifests(tmp_path / "web.yaml", service_manifest(ports=[{"port": "xyz"}]))
    (line,) = events.next().errors.values()
    assert "xyz" in line


def test_a_file_that_becomes_unreadable_keeps_its_objects(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_manifests(tmp_path / "web.yaml", service_manifest())
    events = start(tmp_path)
    events.next()
    original = directory._content

    def content(name: str) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    monkeypatch.setattr(directory, "_content", content)
    path.chmod(0)
    line = f"{path}: cannot be read: Permission denied"
    assert events.next() == SourceEvent((), (), {str(path): line}, initial=False, complete=False)
    monkeypatch.setattr(directory, "_content", original)
    path.chmod(0o600)
    assert events.next() == SourceEvent((), (), {}, initial=False)


def test_a_directory_named_like_a_manifest_is_an_error(start, tmp_path: Path):
    path = tmp_path / "web.yaml"
    path.mkdir()
    line = f"{path}: cannot be read: Is a directory"
    assert start(tmp_path).next().errors == {str(path): line}


@pytest.mark.parametrize(
    ("kind", "problem"),
    [("fifo", "it is not a regular file"), ("link", "No such file or directory")],
)
def test_a_file_that_turns_into_something_else_keeps_its_objects(
    start, tmp_path: Path, kind: str, problem: str
):
    path = write_manifests(tmp_path / "web.yaml", service_manifest())
    events = start(tmp_path)
    events.next()
    if kind == "fifo":
        os.mkfifo(tmp_path / "odd")
    else:
        (tmp_path / "odd").symlink_to("missing")
    (tmp_path / "odd").rename(path)
    event = events.next()
    assert event.errors == {str(path): f"{path}: cannot be read: {problem}"}
    assert event == SourceEvent((), (), event.errors, initial=False, complete=False)


def test_the_last_file_counts_where_two_have_an_object(
    start, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    write_manifests(tmp_path / "a.yaml", service_manifest(cluster_ip="10.96.0.1"))
    write_manifests(tmp_path / "b.yaml", service_manifest(cluster_ip="10.96.0.2"))
    events = start(tmp_path)
    assert cluster_ips(events.next()) == ["10.96.0.2"]
    write_manifests(tmp_path / "b.yaml", service_manifest(cluster_ip="10.96.0.3"))
    assert cluster_ips(events.next()) == ["10.96.0.3"]
    (tmp_path / "b.yaml").unlink()
    assert cluster_ips(events.next()) == ["10.96.0.1"]
    write_manifests(tmp_path / "b.yaml", service_manifest(cluster_ip="10.96.0.4"))
    assert cluster_ips(events.next()) == ["10.96.0.4"]
    said = [record.message for record in caplog.records if record.name == "ebpflb.source"]
    assert said == ["Service default/web is in a.yaml, b.yaml: using b.yaml"]


def test_other_kinds_are_named_once_each(start, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "ebpflb.source")
    kinds = [{"kind": kind, "metadata": {"name": "web"}} for kind in ("Job", "Ingress", "Job")]
    write_manifests(tmp_path / "a.yaml", *kinds)
    write_manifests(tmp_path / "b.yaml", *kinds, service_manifest())
    events = start(tmp_path)
    assert events.next() == SourceEvent((WEB,), (), {}, initial=True)
    write_manifests(tmp_path / "a.yaml", *kinds, slice_manifest())
    events.next()
    assert [record.message for record in caplog.records] == [
        "objects of kind Job are ignored",
        "objects of kind Ingress are ignored",
    ]


def test_a_node_is_an_object_like_others(start, tmp_path: Path):
    write_manifests(tmp_path / "a.yaml", {"kind": "Node", "metadata": {"name": "node-a"}})
    assert start(tmp_path).next().upserts == (Node("node-a"),)


def test_stop_ends_the_thread_and_gives_everything_back(tmp_path: Path):
    events: queue.Queue[SourceEvent] = queue.Queue()
    source = DirectorySource(tmp_path, events.put)
    source.stop()
    before = descriptors()
    source.start()
    events.get(timeout=10)
    assert descriptors() - before
    assert "ebpflb-source" in {thread.name for thread in threading.enumerate()}
    source.stop()
    assert "ebpflb-source" not in {thread.name for thread in threading.enumerate()}
    assert not descriptors() - before
    source.stop()
    write_manifests(tmp_path / "web.yaml", service_manifest())
    assert events.empty()


def test_a_machine_that_cannot_watch_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_watch(path: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(directory, "Watch", no_watch)
    with pytest.raises(SourceError, match=r"Too many open files; raise the sysctl fs\.inotify"):
        DirectorySource(tmp_path, print).start()

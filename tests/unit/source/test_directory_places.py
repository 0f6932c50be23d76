# SPDX-License-Identifier: Apache-2.0
"""DirectorySource where the path is missing, moves, is a link or a file."""

import threading
from pathlib import Path

import pytest

from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.objects.kinds import key_of
from ebpflb.source import directory
from ebpflb.source.interface import SourceEvent
from ebpflb.source.watch import Watch
from tests.builders import (
    endpoint,
    endpoint_manifest,
    endpoint_slice,
    service,
    service_manifest,
    slice_manifest,
    write_manifests,
)

WEB, SLICE = service(), endpoint_slice("web-1", endpoint())
BROKEN = service_manifest(ports=[{"port": "abc"}])


def test_a_relative_path_starts_at_the_working_directory(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    path = write_manifests(tmp_path / "web.yaml", BROKEN)
    assert list(start(Path()).next().errors) == [str(path)]
    assert list(start(Path("web.yaml")).next().errors) == [str(path)]


def test_a_directory_that_is_missing_is_an_error_until_it_appears(start, tmp_path: Path):
    path = tmp_path / "etc" / "manifests"
    events = start(path)
    event = events.next()
    assert event.initial
    assert list(event.errors) == [str(path)]
    assert "No such file or directory" in event.errors[str(path)]
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    write_manifests(fresh / "web.yaml", service_manifest())
    path.parent.mkdir()
    fresh.rename(path)
    assert events.next() == SourceEvent((WEB,), (), {}, initial=False)


def test_a_directory_that_is_away_for_a_while_changes_nothing(start, tmp_path: Path):
    path = tmp_path / "manifests"
    path.mkdir()
    write_manifests(path / "web.yaml", service_manifest(), slice_manifest())
    events = start(path)
    events.next()
    path.rename(tmp_path / "away")
    event = events.next()
    assert not event.removals
    assert list(event.errors) == [str(path)]
    write_manifests(tmp_path / "away" / "web.yaml", service_manifest())
    (tmp_path / "away").rename(path)
    assert events.next() == SourceEvent((), (key_of(SLICE),), {}, initial=False)


def test_a_directory_that_is_removed_takes_its_objects_along(start, tmp_path: Path):
    path = tmp_path / "manifests"
    path.mkdir()
    write_manifests(path / "web.yaml", service_manifest())
    events = start(path)
    events.next()
    (path / "web.yaml").unlink()
    path.rmdir()
    event = events.next()
    while not event.removals:
        event = events.next()
    assert event.removals == (key_of(WEB),)
    assert list(event.errors) == [str(path)]


def test_a_mounted_config_map_is_read_as_it_changes(start, tmp_path: Path):
    for number, endpoints in (("1", None), ("2", []), ("3", [endpoint_manifest("10.1.0.7")])):
        (tmp_path / f"..{number}").mkdir()
        write_manifests(tmp_path / f"..{number}" / "web.yaml", slice_manifest(endpoints=endpoints))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "web.yaml").symlink_to("..data/web.yaml")
    events = start(tmp_path)
    assert events.next().upserts == (SLICE,)
    for number, expected in (("2", endpoint_slice()), ("3", None)):
        (tmp_path / "..data_tmp").symlink_to(f"..{number}")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        (found,) = events.next().upserts
        assert isinstance(found, EndpointSlice)
        assert found == (expected or endpoint_slice("web-1", endpoint("10.1.0.7")))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons come at once."""
    monkeypatch.setattr(directory, "COMPARE_SECONDS", 0.05)


@pytest.mark.usefixtures("soon")
def test_what_a_link_leads_to_elsewhere_is_compared_now_and_then(start, tmp_path: Path):
    (tmp_path / "manifests").mkdir()
    target = write_manifests(tmp_path / "elsewhere.yaml", service_manifest())
    (tmp_path / "manifests" / "web.yaml").symlink_to(target)
    events = start(tmp_path / "manifests")
    assert events.next().upserts == (WEB,)
    write_manifests(target, slice_manifest())
    assert events.next() == SourceEvent((SLICE,), (key_of(WEB),), {}, initial=False)
    target.unlink()
    (line,) = events.next().errors.values()
    assert "No such file or directory" in line


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("name", ["manifests", "manifests/web.yaml"])
def test_a_path_that_a_link_elsewhere_moves_is_found(start, tmp_path: Path, name: str):
    """What the path names, a link, leads to another link, which inotify does not watch."""
    for number, manifest in (("1", service_manifest()), ("2", slice_manifest())):
        (tmp_path / "away" / number / "manifests").mkdir(parents=True)
        write_manifests(tmp_path / "away" / number / "manifests" / "web.yaml", manifest)
    (tmp_path / "away" / "current").symlink_to("1")
    (tmp_path / "here").symlink_to("away/current")
    events = start(tmp_path / "here" / name)
    assert events.next().upserts == (WEB,)
    (tmp_path / "away" / "fresh").symlink_to("2")
    (tmp_path / "away" / "fresh").rename(tmp_path / "away" / "current")
    assert events.next() == SourceEvent((SLICE,), (key_of(WEB),), {}, initial=False)


@pytest.mark.usefixtures("soon")
def test_a_comparison_without_a_change_is_no_event(start, tmp_path: Path, monkeypatch):
    looks = threading.Semaphore(0)
    has_moved = Watch.has_moved

    def counted(watch: Watch) -> bool:
        looks.release()
        return has_moved(watch)

    monkeypatch.setattr(Watch, "has_moved", counted)
    write_manifests(tmp_path / "web.yaml", service_manifest())
    write_manifests(tmp_path / "bad.yaml", BROKEN)
    events = start(tmp_path)
    events.next()
    for _ in range(3):
        assert looks.acquire(timeout=60)
    assert events.queue.empty()


def test_a_directory_that_is_swapped_and_swapped_back_is_compared(start, tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_manifests(tmp_path / name / "web.yaml", service_manifest())
    write_manifests(tmp_path / "one" / "old.yaml", slice_manifest())
    write_manifests(tmp_path / "two" / "new.yaml", service_manifest("shop"))
    (tmp_path / "current").symlink_to("one")
    events = start(tmp_path / "current")
    events.next()
    shop = service("shop")
    for target, upserts, removals in (
        ("two", (shop,), (key_of(SLICE),)),
        ("one", (SLICE,), (key_of(shop),)),
    ):
        (tmp_path / "fresh").symlink_to(target)
        (tmp_path / "fresh").rename(tmp_path / "current")
        assert events.next() == SourceEvent(upserts, removals, {}, initial=False)


def test_a_single_file_is_a_source_too(start, tmp_path: Path):
    path = write_manifests(tmp_path / "web.yaml", service_manifest())
    write_manifests(tmp_path / "other.yaml", slice_manifest())
    events = start(path)
    assert events.next() == SourceEvent((WEB,), (), {}, initial=True)
    write_manifests(path, BROKEN)
    assert list(events.next().errors) == [str(path)]
    path.unlink()
    (line,) = events.next().errors.values()
    assert "No such file or directory" in line
    write_manifests(path, slice_manifest())
    assert events.next() == SourceEvent((SLICE,), (key_of(WEB),), {}, initial=False)

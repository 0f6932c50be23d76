# SPDX-License-Identifier: Apache-2.0
"""Watch where symbolic links lead, and one file instead of a directory."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ebpflb.source import watch as module
from ebpflb.source.watch import Touched, Watch
from tests.unit.source.conftest import watch_count

NOTHING = Touched()


@pytest.fixture
def file_watch(home: Path) -> Iterator[Watch]:
    """A watch that follows the one manifest."""
    with closing(Watch(str(home / "web.yaml"))) as found:
        found.follow()
        yield found


def changed(*names: str) -> Touched:
    return Touched(changed=set(names))


# Symbolic links


def versions(parent: Path) -> Iterator[Path]:
    """Directories that hold a manifest each."""
    for number in range(1, 4):
        version = parent / f"..version-{number}"
        version.mkdir()
        (version / "web.yaml").write_text(f"version {number}")
        yield version


def point(link: Path, target: str | Path) -> None:
    """Let a link point elsewhere, atomically, as kubelet does it."""
    fresh = link.with_name(link.name + "_new")
    fresh.symlink_to(target)
    fresh.rename(link)


@pytest.mark.parametrize("relative", [True, False])
def test_the_directory_may_be_a_link_that_is_swapped(tmp_path: Path, relative: bool):
    link = tmp_path / "current"
    first, second, _ = versions(tmp_path)
    point(link, first.name if relative else first)
    with closing(Watch(str(link))) as watch:
        assert watch.follow() == ["web.yaml"]
        (first / "web.yaml").write_text("new")
        assert watch.read() == changed("web.yaml")
        point(link, second.name if relative else second)
        assert watch.read() == Touched(compare_all=True)
        watch.follow()
        (first / "web.yaml").unlink()
        first.rmdir()
        assert watch.read() == NOTHING
        (second / "web.yaml").write_text("new")
        assert watch.read() == changed("web.yaml")


def test_watches_given_up_are_given_back(tmp_path: Path):
    link = tmp_path / "current"
    first, second, _ = versions(tmp_path)
    point(link, first)
    with closing(Watch(str(link))) as watch:
        watch.follow()
        before = watch_count(watch)
        point(link, second)
        watch.follow()
        assert watch_count(watch) == before > 0


def test_a_link_may_be_swapped_anywhere_on_the_way(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name / "manifests").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "current"
    point(link, "../one")
    with closing(Watch(str(tmp_path / "links" / "current" / "manifests"))) as watch:
        assert watch.follow() == []
        point(link, "../two")
        assert watch.read() == Touched(compare_all=True)
        assert watch.follow() == []
        (tmp_path / "two" / "manifests" / "web.yaml").write_text("new")
        assert watch.read() == changed("web.yaml")


def test_a_mounted_config_map_is_swapped_at_once(tmp_path: Path):
    first, second, third = versions(tmp_path)
    point(tmp_path / "..data", first.name)
    (tmp_path / "web.yaml").symlink_to("..data/web.yaml")
    with closing(Watch(str(tmp_path))) as watch:
        assert watch.follow() == ["web.yaml"]
        for version in (second, third):
            point(tmp_path / "..data", version.name)
            assert watch.read() == Touched(compare_all=True)
            assert watch.follow() == ["web.yaml"]
        (tmp_path / "shop.yaml").symlink_to("..data/shop.yaml")
        assert watch.read() == Touched(compare_all=True)


def test_a_linked_manifest_is_followed_within_the_directory(home: Path, watch: Watch):
    target = home / "elsewhere.txt"
    target.write_text("old")
    assert watch.read() == NOTHING
    (home / "shop.yaml").symlink_to(target)
    (home / "bank.yaml").symlink_to("shop.yaml")
    assert watch.read() == Touched(compare_all=True)
    assert sorted(watch.follow()) == ["bank.yaml", "shop.yaml", "web.yaml"]
    for change in (lambda: target.write_text("new"), target.unlink, target.touch):
        change()
        assert watch.read() == Touched(compare_all=True)


def test_a_link_is_not_read_while_what_it_leads_to_is_written(home: Path, watch: Watch):
    (home / "shop.yaml").symlink_to("elsewhere.txt")
    watch.follow()
    with (home / "elsewhere.txt").open("w") as file:
        file.write("half")
        file.flush()
        watch.read()
        assert not watch.may_read("shop.yaml")
        assert watch.may_read("web.yaml")
    assert watch.read() == Touched(compare_all=True)
    assert watch.may_read("shop.yaml")


def test_what_no_event_is_about_is_read_once_it_is_settled(
    home: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_SETTLED_SECONDS", 1800)
    target = home.parent / "elsewhere.txt"
    target.write_text("half")
    (home / "shop.yaml").symlink_to(target)
    (home / "bank.yaml").symlink_to("missing")
    watch.follow()
    assert watch.may_read("shop.yaml")
    assert not watch.may_read("shop.yaml", only_settled=True)
    os.utime(target, (time.time(), time.time() - 3600))
    assert watch.may_read("shop.yaml", only_settled=True)
    assert watch.may_read("bank.yaml", only_settled=True)


def test_a_link_that_points_nowhere_is_listed_and_watched(home: Path, watch: Watch):
    (home / "shop.yaml").symlink_to("missing/shop.txt")
    assert sorted(watch.follow()) == ["shop.yaml", "web.yaml"]
    (home / "missing").mkdir()
    assert watch.read() == Touched(compare_all=True)


def test_links_in_a_circle_lead_nowhere(tmp_path: Path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with closing(Watch(str(tmp_path / "one"))) as watch, pytest.raises(OSError, match="levels of"):
        watch.follow()


# One file instead of a directory


def test_a_single_file_is_followed_again_when_it_changes(home: Path, file_watch: Watch):
    assert file_watch.follow() == ["web.yaml"]
    assert file_watch.path_of("web.yaml") == str(home / "web.yaml")
    (home / "shop.yaml").write_text("none of ours")
    assert file_watch.read() == NOTHING
    with (home / "web.yaml").open("w") as file:
        assert file_watch.read() == NOTHING
        file.write("new")
    assert file_watch.read() == Touched(compare_all=True)


def test_a_single_file_may_have_any_name(home: Path):
    (home / "services").write_text("old")
    with closing(Watch(str(home / "services"))) as watch:
        assert watch.follow() == ["services"]


def test_a_single_file_may_go_and_come_again(home: Path, file_watch: Watch):
    (home / "web.yaml").unlink()
    assert file_watch.read() == Touched(missing={"web.yaml"})
    with pytest.raises(FileNotFoundError):
        file_watch.follow()
    with (home / "web.yaml").open("w") as file:
        assert file_watch.read() == NOTHING
        file.write("new")
    assert file_watch.read() == Touched(compare_all=True)
    assert file_watch.follow() == ["web.yaml"]


def test_a_single_file_that_is_renamed_is_followed_again(home: Path, file_watch: Watch):
    (home / "web.yaml").rename(home / "web.yaml.bak")
    assert file_watch.read() == Touched(compare_all=True)


def test_a_file_may_appear_where_there_was_nothing(tmp_path: Path):
    with closing(Watch(str(tmp_path / "web.yaml"))) as watch:
        with pytest.raises(FileNotFoundError):
            watch.follow()
        (tmp_path / "web.yaml").write_text("new")
        assert watch.read() == Touched(compare_all=True)
        assert watch.follow() == ["web.yaml"]


def test_a_directory_may_become_a_file(home: Path, watch: Watch):
    (home / "web.yaml").rename(home.parent / "moved")
    home.rmdir()
    assert watch.read() == Touched(gone={"web.yaml"}, compare_all=True)
    (home.parent / "moved").rename(home)
    assert watch.follow() == ["manifests"]
    assert watch.path_of("manifests") == str(home)


def test_a_single_file_may_become_a_directory(home: Path, file_watch: Watch):
    (home / "web.yaml").unlink()
    (home / "web.yaml").mkdir()
    assert file_watch.read() == Touched(compare_all=True)
    assert file_watch.follow() == []
    (home / "web.yaml" / "shop.yaml").write_text("new")
    assert file_watch.read() == changed("shop.yaml")
    assert file_watch.path_of("shop.yaml") == str(home / "web.yaml" / "shop.yaml")


def test_a_single_file_may_be_a_link_that_is_swapped(tmp_path: Path):
    first, second, _ = versions(tmp_path)
    link = tmp_path / "web.yaml"
    point(link, first / "web.yaml")
    with closing(Watch(str(link))) as watch:
        assert watch.follow() == ["web.yaml"]
        point(link, second / "web.yaml")
        assert watch.read() == Touched(compare_all=True)
        assert watch.follow() == ["web.yaml"]
        assert watch.path_of("web.yaml") == str(link)

# SPDX-License-Identifier: Apache-2.0
"""Watch, without a thread: files change first, then read() reports it."""

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest
from inotify_simple import Event, INotify, flags

from ebpflb.source.watch import Touched, Watch, is_manifest
from tests.unit.source.conftest import watch_count

NOTHING = Touched()


def changed(*names: str) -> Touched:
    return Touched(changed=set(names))


def gone(*names: str) -> Touched:
    return Touched(gone=set(names))


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.json", "a.b.yaml", "~a.yaml"])
def test_manifests_are_known_by_their_names(name: str):
    assert is_manifest(name)


@pytest.mark.parametrize(
    "name",
    [
        *(".a.yaml.swp", ".a.yaml.swx", "a.yaml~", ".#a.yaml", "#a.yaml#", "4913"),
        *(".a.yaml", "a.yaml.bak", "a.yaml.tmp", "sedX1Y2Z3", "a.txt", "..data", "a.YAML", ""),
    ],
)
def test_what_editors_leave_behind_is_no_manifest(name: str):
    assert not is_manifest(name)


def test_follow_lists_the_manifests(watch: Watch, home: Path):
    (home / "shop.json").touch()
    (home / "notes.txt").touch()
    (home / ".web.yaml.swp").touch()
    assert sorted(watch.follow()) == ["shop.json", "web.yaml"]
    assert watch.path_of("web.yaml") == str(home / "web.yaml")


def test_nothing_happened(watch: Watch):
    touched = watch.read()
    assert touched == NOTHING
    assert not touched.compare_all


def test_a_new_file_counts_once_it_is_closed(watch: Watch, home: Path):
    with (home / "shop.yaml").open("w") as file:
        file.write("half")
        file.flush()
        os.fchmod(file.fileno(), 0o600)
        assert watch.read() == NOTHING
        file.write("whole")
    assert watch.read() == changed("shop.yaml")


def test_a_file_that_is_written_again_counts_once_it_is_closed(watch: Watch, home: Path):
    with (home / "web.yaml").open("w") as file:
        file.write("new")
        file.flush()
        os.utime(home / "web.yaml")
        assert watch.read() == NOTHING
    assert watch.read() == changed("web.yaml")


def test_changes_come_together(watch: Watch, home: Path):
    for name in ("a.yaml", "b.yaml", "web.yaml"):
        (home / name).write_text("new")
    (home / "web.yaml").unlink()
    assert watch.read() == Touched(changed={"a.yaml", "b.yaml", "web.yaml"}, missing={"web.yaml"})


def test_a_file_may_be_replaced_by_renaming(watch: Watch, home: Path):
    (home / "web.tmp").write_text("new")
    (home / "web.tmp").rename(home / "web.yaml")
    assert watch.read() == changed("web.yaml")


def test_renaming_a_file_is_going_and_coming(watch: Watch, home: Path):
    (home / "web.yaml").rename(home / "shop.yaml")
    assert watch.read() == Touched(changed={"shop.yaml"}, gone={"web.yaml"})


def test_a_file_may_come_from_elsewhere_and_go_there(watch: Watch, home: Path):
    (home.parent / "shop.yaml").write_text("new")
    (home.parent / "shop.yaml").rename(home / "shop.yaml")
    assert watch.read() == changed("shop.yaml")
    (home / "shop.yaml").rename(home.parent / "shop.yaml")
    assert watch.read() == gone("shop.yaml")


def test_a_deleted_file_is_missing(watch: Watch, home: Path):
    (home / "web.yaml").unlink()
    assert watch.read() == Touched(missing={"web.yaml"})


def test_a_file_that_was_renamed_to_its_backup_is_missing(watch: Watch, home: Path):
    (home / "web.yaml").rename(home / "web.yaml~")
    assert watch.read() == Touched(missing={"web.yaml"})


def test_a_file_that_was_renamed_to_another_backup_is_gone(watch: Watch, home: Path):
    (home / "web.yaml").rename(home / "web.yaml.bak")
    assert watch.read() == gone("web.yaml")


def test_a_hard_link_is_complete_from_the_start(watch: Watch, home: Path):
    os.link(home / "web.yaml", home / "shop.yaml")
    assert watch.read() == changed("shop.yaml")


def test_a_change_of_permissions_may_make_a_file_readable(watch: Watch, home: Path):
    (home / "web.yaml").chmod(0o600)
    assert watch.read() == changed("web.yaml")


def test_an_editor_that_keeps_a_backup_makes_no_gap(watch: Watch, home: Path):
    (home / ".web.yaml.swp").write_text("swap")
    (home / "web.yaml").rename(home / "web.yaml~")
    with (home / "web.yaml").open("w") as file:
        file.write("half")
        file.flush()
        assert watch.read() == NOTHING
        file.write("whole")
    (home / "web.yaml~").unlink()
    (home / ".web.yaml.swp").unlink()
    assert watch.read() == changed("web.yaml")


def test_a_file_that_is_deleted_and_made_again_makes_no_gap(watch: Watch, home: Path):
    (home / "web.yaml").unlink()
    with (home / "web.yaml").open("w") as file:
        assert watch.read() == NOTHING
        file.write("new")
    assert watch.read() == changed("web.yaml")


def test_a_file_that_is_made_and_deleted_is_missing(watch: Watch, home: Path):
    (home / "shop.yaml").write_text("new")
    (home / "shop.yaml").unlink()
    assert watch.read().missing == {"shop.yaml"}


def test_a_lock_of_emacs_is_ignored(watch: Watch, home: Path):
    (home / ".#web.yaml").symlink_to("me@host.1")
    (home / "#web.yaml#").write_text("autosave")
    assert watch.read() == NOTHING


def test_a_new_directory_inside_is_none_of_ours(watch: Watch, home: Path):
    (home / "more").mkdir()
    (home / "more" / "shop.yaml").write_text("new")
    assert watch.read() == NOTHING


@pytest.mark.parametrize("lost", [flags.Q_OVERFLOW, flags.UNMOUNT])
def test_lost_events_mean_starting_over(watch: Watch, monkeypatch: pytest.MonkeyPatch, lost: int):
    number = -1 if lost == flags.Q_OVERFLOW else next(iter(watch._watches))
    monkeypatch.setattr(INotify, "read", lambda *_, **__: [Event(number, lost, 0, "")])
    assert watch.read() == Touched(compare_all=True)


def test_events_of_watches_given_up_are_ignored(watch: Watch):
    watch.follow()
    assert watch.read() == NOTHING


def test_a_directory_that_is_replaced_means_starting_over(watch: Watch, home: Path):
    (home / "web.yaml").unlink()
    (home.parent / "other").mkdir()
    (home.parent / "other").rename(home)
    assert watch.read() == Touched(missing={"web.yaml"}, compare_all=True)


def test_a_directory_that_moves_away_means_starting_over(watch: Watch, home: Path):
    home.rename(home.parent / "elsewhere")
    assert watch.read() == Touched(compare_all=True)
    with pytest.raises(FileNotFoundError):
        watch.follow()


def test_a_directory_that_is_removed_takes_its_files_along(watch: Watch, home: Path):
    (home / "web.yaml").unlink()
    home.rmdir()
    assert watch.read() == Touched(missing={"web.yaml"}, compare_all=True)


def test_a_directory_may_appear_later(tmp_path: Path):
    with closing(Watch(str(tmp_path / "etc" / "manifests"))) as watch:
        for missing in (tmp_path / "etc", tmp_path / "etc" / "manifests"):
            with pytest.raises(FileNotFoundError):
                watch.follow()
            assert watch.read() == NOTHING
            missing.mkdir()
            assert watch.read() == Touched(compare_all=True)
        assert watch.follow() == []
        (tmp_path / "etc" / "manifests" / "web.yaml").write_text("new")
        assert watch.read() == changed("web.yaml")


def test_the_path_may_step_back(home: Path):
    with closing(Watch(f"{home.parent}/./x/../manifests")) as watch:
        with pytest.raises(FileNotFoundError):
            watch.follow()
        (home.parent / "x").mkdir()
        assert watch.read() == Touched(compare_all=True)
        assert watch.follow() == ["web.yaml"]


def test_a_directory_that_may_only_be_passed_is_not_watched(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    original = INotify.add_watch

    def add_watch(self: INotify, path: str, mask: int) -> int:
        if path == str(home.parent):
            raise PermissionError(errno.EACCES, "Permission denied")
        return int(original(self, path, mask))

    monkeypatch.setattr(INotify, "add_watch", add_watch)
    with closing(Watch(str(home))) as watch:
        assert watch.follow() == ["web.yaml"]
        assert watch_count(watch) == len(home.parts) - 1
        (home / "web.yaml").write_text("new")
        assert watch.read() == changed("web.yaml")


def test_a_lack_of_watches_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch):
    def add_watch(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(INotify, "add_watch", add_watch)
    with closing(Watch(str(home))) as watch, pytest.raises(OSError, match="No space left"):
        watch.follow()


@pytest.mark.parametrize("is_directory", [True, False], ids=["directory", "file"])
def test_what_appears_while_it_is_looked_for_is_followed_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_directory: bool
):
    path, look = tmp_path / "web.yaml", os.path.isdir

    def appears_after_the_look(looked_at: str) -> bool:
        found = look(looked_at) if path.exists() else not is_directory
        if not path.exists():
            path.mkdir() if is_directory else path.touch()
        return found

    monkeypatch.setattr(os.path, "isdir", appears_after_the_look)
    with closing(Watch(str(path))) as watch:
        assert watch.follow() == ([] if is_directory else ["web.yaml"])
        assert watch.is_file is not is_directory

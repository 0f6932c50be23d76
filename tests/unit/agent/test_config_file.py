# SPDX-License-Identifier: Apache-2.0
import os
import threading

import pytest

from ebpflb.agent.config_file import config_watched
from ebpflb.config.file_version import FileVersion, digest
from ebpflb.errors import ConfigError

SECONDS = 60
# Long enough for a thread that wakes up for what it should not wake up for.
MOMENT = 0.2


@pytest.fixture
def file(tmp_path):
    """A ConfigMap as the kubelet makes it: a link to a link to the file."""
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "config.yaml").write_text(f"v: {number}")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    return tmp_path / "config.yaml"


@pytest.fixture
def changed():
    return threading.Event()


def version(path, content=b"v: 1"):
    return FileVersion(path, digest(content))


def test_a_config_map_that_the_kubelet_swaps_is_noticed(file, changed):
    with config_watched(version(file), changed.set):
        assert not changed.wait(MOMENT)
        (file.parent / "..new").symlink_to("..2")
        os.rename(file.parent / "..new", file.parent / "..data")
        assert changed.wait(SECONDS)


def test_a_file_that_is_written_is_noticed_once_it_is_closed(tmp_path, changed):
    path = tmp_path / "config.conf"
    path.write_text("v: 1")
    with config_watched(version(path), changed.set):
        with path.open("w") as writing:
            writing.write("v")
            writing.flush()
            assert not changed.wait(MOMENT)
        assert changed.wait(SECONDS)


def test_what_a_link_leads_to_elsewhere_is_compared_now_and_then(tmp_path, changed, monkeypatch):
    monkeypatch.setattr("ebpflb.agent.config_file.COMPARE_SECONDS", 0.05)
    (tmp_path / "here").mkdir()
    (tmp_path / "target").write_text("v: 1")
    (tmp_path / "here" / "config.conf").symlink_to("../target")
    with config_watched(version(tmp_path / "here" / "config.conf"), changed.set):
        assert not changed.wait(MOMENT)
        (tmp_path / "target").write_text("v: 2")
        assert changed.wait(SECONDS)


def test_a_change_between_reading_and_watching_is_noticed(file, changed):
    with config_watched(version(file, b"v: 0"), changed.set):
        assert changed.wait(SECONDS)


def test_the_same_content_again_or_no_file_at_all_is_no_change(tmp_path, changed):
    path = tmp_path / "config.conf"
    path.write_text("v: 1")
    with config_watched(version(path), changed.set):
        path.write_text("v: 1")
        path.unlink()
        assert not changed.wait(MOMENT)
        path.write_text("v: 2")
        assert changed.wait(SECONDS)


def test_the_thread_ends_with_the_agent_and_without_a_file_there_is_none(file, changed):
    def names():
        return [thread.name for thread in threading.enumerate()]

    with config_watched(None, changed.set):
        assert "ebpflb-config" not in names()
    with config_watched(version(file), changed.set):
        assert "ebpflb-config" in names()
    assert "ebpflb-config" not in names()
    assert not changed.is_set()


def test_a_machine_that_cannot_watch_gets_an_error(file, changed, monkeypatch):
    def fail(_path):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("ebpflb.agent.config_file.Watch", fail)
    with (
        pytest.raises(ConfigError, match=r"no inotify: Too many .*max_user_instances"),
        config_watched(version(file), changed.set),
    ):
        pass

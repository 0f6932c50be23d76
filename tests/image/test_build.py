# SPDX-License-Identifier: Apache-2.0
"""A killed build leaves files in the cache, which the next build removes."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image import build
from tests.image.build import buildah, image_archive, image_name, working_container

pytestmark = [pytest.mark.bpf, pytest.mark.cluster]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A separate cache, and an empty image."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    buildah("commit", buildah("from", "scratch"), image_name())
    yield
    buildah("rm", "--all")
    shutil.rmtree(tmp_path / "ebpflb")


def containers() -> set[str]:
    return {each["containername"] for each in json.loads(buildah("containers", "--json")) or ()}


def ended_process() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


def test_a_build_removes_what_killed_ones_left_and_spares_tests(
    storage: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = buildah("from", image_name())
    (Path(buildah("mount", mounted)) / "unfinished").touch()
    buildah("from", f"--name=test-{ended_process()}-1", image_name())
    assert len(containers()) == 3

    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_ensure_base", stop)
    with working_container() as (_, root):
        with pytest.raises(KeyboardInterrupt):
            image_archive()
        (name,) = containers()
        assert name.startswith("test-")
        assert root.is_dir()
    assert not containers()


def test_images_of_other_checkouts_stay_as_long_as_they_are_used(
    storage: None, tmp_path: Path
) -> None:
    archives = tmp_path / "ebpflb/image/archives"
    archives.mkdir()
    repository = image_name().rpartition(":")[0]
    for tag in ("used", "unused"):
        (archives / f"{tag}.tar").touch()
        buildah("tag", image_name(), f"{repository}:{tag}")
    os.utime(archives / "unused.tar", (0, 0))
    build._remove_old()
    assert [each.name for each in archives.iterdir()] == ["used.tar"]
    assert build._images() == [f"{repository}:used"]

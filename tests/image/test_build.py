# SPDX-License-Identifier: Apache-2.0
"""What a build that was killed leaves in the cache, and the next one removes."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image import build
from tests.image.build import buildah, image_archive, working_container

pytestmark = [pytest.mark.bpf, pytest.mark.cluster]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own, and an image with nothing in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    buildah("commit", buildah("from", "scratch"), build.IMAGE)
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
    mounted = buildah("from", build.IMAGE)
    (Path(buildah("mount", mounted)) / "unfinished").touch()
    buildah("from", f"--name=test-{ended_process()}-1", build.IMAGE)
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

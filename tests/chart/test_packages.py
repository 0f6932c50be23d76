# SPDX-License-Identifier: Apache-2.0
"""What `make release` builds, in a copy of the checkout, and what it refuses."""

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

import ebpflb
from tests.chart.harness.rendering import CHART, container, installed, of_kind, pod_of, render
from tests.cluster.harness.binaries import binary

ROOT = CHART.parents[1]
URL, IMAGE = "https://example.org/ebpflb", "registry.example/ebpflb"
# Where documents say that no download exists yet.
CLAIMS = ("README.md", "docs/install.md", "charts/ebpflb/README.md")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy that can be written to."""
    copy = tmp_path / "ebpflb"
    left_out = shutil.ignore_patterns(".venv", ".*_cache", ".hypothesis", "__pycache__", "dist")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    return copy


def change(path: Path, pattern: str, text: str) -> None:
    changed = re.sub(pattern, text, path.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert changed != path.read_text()
    path.write_text(changed)


def release(checkout: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run it with the helm of the tests."""
    command = [str(checkout / ".ci/release"), *arguments]
    path = f"{binary('helm').parent}:/usr/bin:/bin:/usr/sbin:/sbin"
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)


def ready(checkout: Path) -> None:
    """Make it a checkout that may be published."""
    for name in CLAIMS:
        change(checkout / name, r"is published|published yet|not published", "there")
    changelog = checkout / "CHANGELOG.md"
    before, _, after = changelog.read_text().partition("## [Unreleased]\n")
    released = after[after.index("\n## ") :]
    changelog.write_text(f"{before}## [Unreleased]\n{released}")


def test_a_trial_builds_files_whose_checksums_agree(checkout: Path) -> None:
    done = release(checkout)
    assert done.returncode == 0, done.stderr
    dist, version = checkout / "dist", ebpflb.__version__
    built = {f"ebpflb-{version}{end}" for end in (".tar.gz", ".tgz", "-py3-none-any.whl")}
    assert {path.name for path in dist.iterdir()} == {*built, "SHA256SUMS", "NOTES.md"}
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dist, check=True)
    with tarfile.open(dist / f"ebpflb-{version}.tgz") as chart:
        assert "ebpflb/files/cluster_steps.py" in chart.getnames()
        assert "ebpflb/README.md" in chart.getnames()


def test_a_released_chart_links_to_its_pages_and_uses_the_published_image(checkout: Path) -> None:
    ready(checkout)
    done = release(checkout, URL, IMAGE)
    assert done.returncode == 0, done.stderr
    chart = checkout / "dist" / f"ebpflb-{ebpflb.__version__}.tgz"
    values = {"metrics": {"enabled": True, "prometheusRule": {"enabled": True}}}
    objects = render(values, chart=chart)
    agent = pod_of(installed(objects, "DaemonSet"))
    assert container(agent, "ebpflb")["image"] == f"{IMAGE}:{ebpflb.__version__}"
    (rules,) = of_kind(objects, "PrometheusRule")
    page = f"{URL}/blob/v{ebpflb.__version__}/docs/runbook.md"
    first = rules["spec"]["groups"][-1]["rules"][0]
    assert first["annotations"]["runbook_url"] == f"{page}#ebpflbabsent"
    with tarfile.open(chart) as packed:
        content = packed.extractfile("ebpflb/Chart.yaml")
        assert content is not None
        described = yaml.safe_load(content)
    assert (described["home"], described["sources"]) == (URL, [URL])
    images = yaml.safe_load(described["annotations"]["artifacthub.io/images"])
    assert images == [{"name": "ebpflb", "image": f"{IMAGE}:{ebpflb.__version__}"}]


@pytest.mark.parametrize(
    ("name", "pattern", "said"),
    [
        ("charts/ebpflb/Chart.yaml", r"^version: .*?$", "charts/ebpflb/Chart.yaml has version"),
        ("charts/ebpflb/Chart.yaml", r"^appVersion: .*?$", "appVersion in charts/ebpflb"),
        ("Dockerfile", r"^ARG VERSION=.*?$", "Dockerfile has version"),
        ("CHANGELOG.md", r"^## \[0.*", "CHANGELOG.md says nothing of version"),
    ],
)
def test_versions_that_disagree_are_named(
    checkout: Path, name: str, pattern: str, said: str
) -> None:
    change(checkout / name, pattern, "")
    done = release(checkout)
    assert done.returncode == 1
    assert done.stderr.startswith(f"make release: {said}")
    assert len(done.stderr.splitlines()) == 1


def test_nothing_is_released_while_readers_see_that_nothing_is(checkout: Path) -> None:
    done = release(checkout, URL, IMAGE)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert all(name in line for name in CLAIMS)


def test_changes_without_a_version_are_not_released(checkout: Path) -> None:
    ready(checkout)
    change(checkout / "CHANGELOG.md", r"^## \[Unreleased\]\n", "## [Unreleased]\n\n- Something.\n")
    done = release(checkout, URL, IMAGE)
    assert done.returncode == 1
    assert done.stderr == ("make release: CHANGELOG.md has changes that belong to no version\n")

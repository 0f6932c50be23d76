# SPDX-License-Identifier: Apache-2.0
"""Scripts of the release workflow, run here: with git and helm, and without GitHub."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.cluster.harness.binaries import binary
from tests.unit.release.workflow import RELEASE, steps

OWNER = "owner/ebpflb"
# Says what it was asked, and writes the bundle of a signature.
COSIGN = """#!/bin/bash
echo "$@" >>"$ASKED"
[ "$1" != sign-blob ] || echo bundle >"$4"
"""


def script(text: str) -> str:
    """That of the only step of a release with this text."""
    (found,) = (step.run for step in steps(RELEASE) if text in step.run)
    return found


def run(place: Path, text: str, tag: str, **variables: str) -> None:
    """Run it as GitHub does, where the remote of the project is a folder."""
    remote = place.parent / "remote"
    env = {
        "HOME": str(place.parent),
        "PATH": f"{place.parent}:{binary('helm').parent}:{os.environ['PATH']}",
        "GITHUB_ACTOR": "somebody",
        "GITHUB_REF_NAME": tag,
        "GITHUB_REPOSITORY": OWNER,
        "GITHUB_SERVER_URL": "https://github.example",
        "GH_TOKEN": "secret",
        "URL": f"https://github.example/{OWNER}",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{remote}.insteadOf",
        "GIT_CONFIG_VALUE_0": f"https://x-access-token:secret@github.example/{OWNER}",
        **variables,
    }
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script(text)]
    ran = subprocess.run(shell, cwd=place, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def git(place: Path, *arguments: str) -> str:
    command = ["git", "-C", str(place), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """The project on its server, with one commit."""
    made = tmp_path / "remote"
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(made))
    somebody = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    git(made, *somebody, "commit", "--quiet", "--allow-empty", "--message=first")
    return made


def publish(remote: Path, version: str) -> None:
    """Add a chart of this version to the Helm repository, in a fresh checkout."""
    place = remote.parent / version
    git(remote.parent, "clone", "--quiet", str(remote), str(place))
    chart = place / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(f"apiVersion: v2\nname: ebpflb\nversion: {version}\n")
    package = [str(binary("helm")), "package", "--destination", str(place / "dist"), str(chart)]
    subprocess.run(package, check=True, capture_output=True)
    run(place, "helm repo index", f"v{version}")


def test_the_helm_repository_has_each_released_chart_at_the_files_of_its_release(
    remote: Path,
) -> None:
    for version in ("0.1.0", "0.2.0"):
        publish(remote, version)
    index = yaml.safe_load(git(remote, "show", "gh-pages:index.yaml"))
    urls = {each["version"]: each["urls"] for each in index["entries"]["ebpflb"]}
    base = f"https://github.example/{OWNER}/releases/download"
    assert urls == {
        version: [f"{base}/v{version}/ebpflb-{version}.tgz"] for version in ("0.1.0", "0.2.0")
    }
    assert git(remote, "ls-tree", "--name-only", "gh-pages").split() == ["index.yaml"]
    assert git(remote, "log", "--format=%s", "gh-pages").split() == ["v0.2.0", "v0.1.0"]


def test_each_file_is_signed_once_and_no_signature_is(tmp_path: Path) -> None:
    place, asked = tmp_path / "checkout", tmp_path / "asked"
    (place / "dist").mkdir(parents=True)
    (tmp_path / "cosign").write_text(COSIGN)
    (tmp_path / "cosign").chmod(0o755)
    files = ["SHA256SUMS", "ebpflb-1.tgz", "ebpflb.yaml", "kubectl-ebpflb-linux-amd64.tar.gz"]
    for name in (*files, "NOTES.md"):
        (place / "dist" / name).write_text(name)
    run(place, "sign-blob", "v1", ASKED=str(asked))
    signed = [line.split()[-1] for line in asked.read_text().splitlines()]
    assert sorted(signed) == [f"dist/{name}" for name in files]
    bundles = sorted(path.name for path in (place / "dist").glob("*.sigstore.json"))
    assert bundles == [f"{name}.sigstore.json" for name in files]

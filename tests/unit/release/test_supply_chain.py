# SPDX-License-Identifier: Apache-2.0
"""Dependencies are pinned: packages by their hashes, actions by their commits."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.release.workflow import RELEASE, ROOT, WORKFLOWS, read, steps

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {
    "image.txt": PROJECT["project"]["dependencies"],
    "build.txt": PROJECT["build-system"]["requires"],
}
_ENTRY = re.compile(
    r"^(\S+)==(\S+)(?: ; [^\\\n]+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


def locked(name: str) -> dict[str, str]:
    """Versions by package."""
    content = (ROOT / ".ci/locks" / name).read_text()
    assert _ENTRY.sub("", content).strip() == "", "an entry without hashes"
    return {canonicalize_name(package): version for package, version, _ in _ENTRY.findall(content)}


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_what_is_asked_for(name: str):
    found = locked(name)
    for line in LOCKS[name]:
        wanted = Requirement(line)
        version = found[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version), f"{line}, but {version}: make lock"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_fixed_and_get_no_credentials_to_keep(workflow: Path):
    used = [step for step in steps(workflow) if step.action]
    assert used
    for step in used:
        name = step.content["uses"]
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name), name
        if step.action == "actions/checkout":
            assert step.inputs["persist-credentials"] is False


def test_a_release_verifies_what_it_has_published():
    done = [step.run for step in steps(RELEASE)]
    (build,) = (run for run in done if "buildx build" in run)
    assert "--sbom=true --provenance=mode=max" in build
    (published,) = (number for number, run in enumerate(done) if "imagetools create" in run)
    for what in ('cosign verify "$name"', "{{ json .SBOM }}", "{{ json .Provenance }}"):
        (verified,) = (number for number, run in enumerate(done) if what in run)
        assert verified > published


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_what_strangers_wrote_runs_without_privileges(workflow: Path):
    content = read(workflow)
    events = content["on"]
    assert "pull_request_target" not in events
    for job in content["jobs"].values():
        is_privileged = "--privileged" in str(job.get("container", ""))
        is_for_all = job.get("if") != "github.event_name != 'pull_request'"
        assert not ("pull_request" in events and is_privileged and is_for_all)

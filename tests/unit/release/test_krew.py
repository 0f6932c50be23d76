# SPDX-License-Identifier: Apache-2.0
"""The manifest for krew and the archive that it describes."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.unit.release.workflow import ROOT

BUILD = (ROOT / ".ci/plugin").read_text()


def manifest():
    """As krew-release-bot fills it in."""
    text = (ROOT / ".krew.yaml").read_text()
    filled = re.sub(r'\{\{addURIAndSha "([^"]+)" .*\}\}', r"uri: \1", text)
    return yaml.safe_load(filled.replace("{{ .TagName }}", "v1.2.3"))


def test_it_is_a_plugin_of_the_tags_version():
    found = manifest()
    assert (found["kind"], found["metadata"]["name"]) == ("Plugin", "ebpflb")
    assert found["spec"]["version"] == "v1.2.3"
    assert len(found["spec"]["shortDescription"]) <= 50


def test_it_names_the_archives_that_are_built_and_the_program_in_them():
    built = re.findall(r"^archive ((\w+)-(\w+)) ", BUILD, re.MULTILINE)
    platforms = manifest()["spec"]["platforms"]
    assert [each["selector"]["matchLabels"] for each in platforms] == [
        {"os": system, "arch": machine} for _, system, machine in built
    ]
    archives = [each["uri"].rpartition("/")[2] for each in platforms]
    assert archives == [f"kubectl-ebpflb-{name}.tar.gz" for name, _, _ in built]
    assert {each["bin"] for each in platforms} == {"kubectl-ebpflb"}
    assert '/kubectl-ebpflb" status --help' in BUILD


def test_the_release_has_the_manifest_with_the_checksums_of_its_archives(tmp_path: Path):
    (tmp_path / ".ci").mkdir()
    (tmp_path / "dist").mkdir()
    script = shutil.copy(ROOT / ".ci/krew", tmp_path / ".ci/krew")
    shutil.copy(ROOT / ".krew.yaml", tmp_path)
    platforms = manifest()["spec"]["platforms"]
    names = [each["uri"].rpartition("/")[2] for each in platforms]
    for name in names:
        (tmp_path / "dist" / name).write_text(name)
    subprocess.run([script, "https://example.org/a/ebpflb", "v1.2.3"], check=True)
    filled = yaml.safe_load((tmp_path / "dist/ebpflb.yaml").read_text())
    assert filled["spec"]["version"] == "v1.2.3"
    assert filled["spec"]["homepage"] == "https://example.org/a/ebpflb"
    base = "https://example.org/a/ebpflb/releases/download/v1.2.3"
    for each, name in zip(filled["spec"]["platforms"], names, strict=True):
        assert each["uri"] == f"{base}/{name}"
        assert each["sha256"] == hashlib.sha256(name.encode()).hexdigest()
    (tmp_path / "dist" / names[1]).unlink()
    command = [script, "https://example.org/a/ebpflb", "v1.2.3"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert refused.stderr == f".ci/krew: no dist/{names[1]}: build it with .ci/plugin\n"

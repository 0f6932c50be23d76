# SPDX-License-Identifier: Apache-2.0
"""The manifest for krew and the archive that it describes."""

import re
import shlex
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
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


def test_the_archives_have_what_the_plugin_imports_and_no_more():
    installed = re.search(r'--target "\$plugin/lib" ((?:\w|-| )+)\n', BUILD)
    assert installed
    project = (ROOT / "pyproject.toml").read_text()
    names = shlex.split(installed[1])
    assert all(f'"{name}>=' in project for name in names)
    assert not {"inotify_simple", "prometheus-client", "pyroute2"}.intersection(names)

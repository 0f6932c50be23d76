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
    uri = re.search(r'addURIAndSha "([^"]+)"', text)
    assert uri
    filled = re.sub(r"\{\{addURIAndSha .*\}\}", f"uri: {uri[1]}", text)
    return yaml.safe_load(filled.replace("{{ .TagName }}", "v1.2.3"))


def test_it_is_a_plugin_of_the_tags_version():
    found = manifest()
    assert (found["kind"], found["metadata"]["name"]) == ("Plugin", "ebpflb")
    assert found["spec"]["version"] == "v1.2.3"
    assert len(found["spec"]["shortDescription"]) <= 50


def test_it_names_the_archive_that_is_built_and_the_program_in_it():
    (platform,) = manifest()["spec"]["platforms"]
    archive = platform["uri"].rpartition("/")[2]
    assert f"dist/{archive}" in BUILD
    assert f'"$plugin/{platform["bin"]}" --version' in BUILD


def test_the_archive_has_what_the_plugin_imports_and_no_more():
    installed = re.search(r'--target "\$plugin/lib" ((?:\w|-| )+)\n', BUILD)
    assert installed
    project = (ROOT / "pyproject.toml").read_text()
    names = shlex.split(installed[1])
    assert all(f'"{name}>=' in project for name in names)
    assert not {"inotify_simple", "prometheus-client", "pyroute2"}.intersection(names)

# SPDX-License-Identifier: Apache-2.0
"""The plugin of kubectl imports what its package has, and nothing of the agent's."""

import json
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.release.workflow import ROOT

BUILD = (ROOT / ".ci/plugin").read_text()
OF_THE_AGENT = {"inotify_simple", "prometheus_client", "pyroute2"}
# Imports each module of the plugin where the agent's libraries cannot be found, and prints which
# distributions the modules that are loaded come from.
SCRIPT = """
import importlib, json, pkgutil, sys
from importlib.metadata import packages_distributions

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not in the plugin's package", name=name)

BLOCKED = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Blocked())
import ebpflb.kubectl
names = [each.name for each in pkgutil.walk_packages(ebpflb.kubectl.__path__, "ebpflb.kubectl.")]
for name in names:
    importlib.import_module(name)
owners = packages_distributions()
loaded = {name.partition(".")[0] for name in sys.modules}
print(json.dumps([len(names), sorted(owner for name in loaded for owner in owners.get(name, ()))]))
"""


def left_out() -> set[str]:
    """The modules of the libraries that .ci/plugin removes."""
    (listed,) = re.findall(r"^readonly ASYNC=\((.*)\)$", BUILD, re.MULTILINE)
    return set(listed.split())


def bundled() -> list[str]:
    """The libraries that .ci/plugin installs, by the names of their distributions."""
    (listed,) = re.findall(r'--target "\$plugin/lib" ((?:\w|-| )+)\n', BUILD)
    return [canonicalize_name(name) for name in listed.split()]


def imported(blocked: set[str]) -> tuple[int, set[str]]:
    """How many modules the plugin has, and the distributions that they need."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(sorted(blocked))]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    count, used = json.loads(ran.stdout)
    return count, {canonicalize_name(name) for name in used}


def test_each_module_of_the_plugin_is_imported_without_what_its_package_lacks():
    count, used = imported({*OF_THE_AGENT, *left_out(), "bcc", "seccomp"})
    assert count > 20
    assert set(bundled()) <= used, "the package has what no module of it imports"


def test_a_library_that_it_needs_would_be_missed():
    with pytest.raises(AssertionError, match="rich is not in the plugin's package"):
        imported({"rich"})


def test_a_mac_gets_no_libraries_of_the_agent():
    """Where the plugin is installed with pip, from a checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(line) for line in project["dependencies"]]

    def of(platform: str) -> set[str]:
        return {
            canonicalize_name(each.name)
            for each in wanted
            if not each.marker or each.marker.evaluate({"sys_platform": platform})
        }

    assert of("linux") - of("darwin") == {canonicalize_name(name) for name in OF_THE_AGENT}
    assert of("darwin") == set(bundled()) - {"textual"}

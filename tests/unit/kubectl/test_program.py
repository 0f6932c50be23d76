# SPDX-License-Identifier: Apache-2.0
"""What all commands of the plugin have in common."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from ebpflb.kubectl import program

FOREIGN = ("bcc", "inotify_simple", "prometheus_client", "pyroute2")
ALONE = f"""
import sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {FOREIGN}:
            raise ImportError(name)
sys.meta_path.insert(0, Missing())
from ebpflb.kubectl import program
for name in program.commands:
    program.commands[name]
"""


def test_it_needs_nothing_of_what_agents_need():
    subprocess.run([sys.executable, "-c", ALONE], check=True)


@pytest.mark.parametrize("command", list(program.commands))
def test_help_fits_a_terminal_and_shows_examples(command):
    shown = CliRunner().invoke(program, [command, "--help"], prog_name="kubectl ebpflb").output
    assert "kubectl ebpflb" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_no_agents_is_one_line(nodes):
    nodes.add_without_agent("a")
    nodes.objects.lists["/api/v1/pods"] = []
    done = nodes.run("status", status=1)
    assert done.output.startswith("Error: no agents found: ")
    assert done.output.count("\n") == 1


def test_an_api_server_that_is_down_is_one_line(nodes, tmp_path):
    done = nodes.run("status", "--kubeconfig", str(tmp_path / "none"), status=1)
    assert done.output.count("\n") == 1
    assert done.output.startswith(f"Error: kubeconfig {tmp_path}/none: ")


def test_rights_that_are_missing_everywhere_are_one_line(nodes):
    nodes.add("a", "b")
    for node in "ab":
        path = f"/api/v1/namespaces/kube-system/pods/ebpflb-{node}/exec"
        said = f'pods "ebpflb-{node}" is forbidden: User "me" cannot create "pods/exec"'
        nodes.objects.forbidden[path] = said
    done = nodes.run("doctor", status=1)
    assert done.stderr == (
        'a, b: RBAC forbids it: User "me" cannot create "pods/exec" '
        "(needs get and create of pods/exec)\n"
    )


def test_a_wrong_command_line_names_the_help(nodes):
    done = nodes.run("status", "--nonsense", status=2)
    assert "No such option" in done.output
    assert done.output.count("\n") == 1

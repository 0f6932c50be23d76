# SPDX-License-Identifier: Apache-2.0
import pytest
from click.testing import CliRunner

from ebpflb.cli import main
from ebpflb.lab import state


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "ROOT", tmp_path / "labs")
    return lambda *arguments: CliRunner().invoke(main, ["lab", *arguments])


def test_without_labs_there_is_nothing_to_show(run):
    assert run("status").output == "no lab is up\n"
    assert run("status", "-o", "json").output == "[]\n"


def test_taking_down_what_is_not_up_is_no_error(run):
    done = run("down", "--name", "x")
    assert (done.exit_code, done.output) == (0, "lab 'x' was not up\n")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("status", "--name", "x"), 1, "there is no lab 'x'"),
        (("exec", "--name", "x", "node1", "true"), 1, "there is no lab 'x'"),
        (("apply", "--name", "x", "a.yaml"), 1, "there is no lab 'x'"),
        (("up", "--name", "X"), 2, "name: 'X'"),
        (("up", "--nodes", "0"), 2, "nodes: 0"),
    ],
)
def test_an_error_is_one_line(run, arguments, status, message):
    done = run(*arguments)
    assert done.exit_code == status
    assert done.output.startswith(f"Error: {message}")
    assert done.output.count("\n") == 1


@pytest.mark.parametrize("separator", [(), ("--",)])
def test_a_command_keeps_its_own_options(run, separator):
    done = run("exec", "--name", "x", "node1", *separator, "ls", "--name", "y", "--no-such")
    assert "there is no lab 'x'" in done.output


@pytest.mark.parametrize("arguments", [(), ("--",)])
def test_a_command_is_needed(run, arguments):
    done = run("exec", "node1", *arguments)
    assert done.exit_code == 2
    assert "Missing argument 'COMMAND...'" in done.output


@pytest.mark.parametrize("command", ["up", "down", "status", "exec", "apply"])
def test_every_command_explains_itself(run, command):
    assert command in run("--help").output
    assert run(command, "--help").exit_code == 0

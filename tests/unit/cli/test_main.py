# SPDX-License-Identifier: Apache-2.0
import errno
import signal
import socket
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from ebpflb import __version__
from ebpflb.cli import INTERRUPTED, main
from ebpflb.errors import PinError


def raising(error):
    def fail(*_):
        raise error

    return fail


@pytest.fixture
def fail_with(monkeypatch):
    """`ebpflb status` fails so."""

    def patch(error):
        monkeypatch.setattr("ebpflb.cli.status.look", raising(error))

    return patch


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def commands(group=main, path=()):
    for name in group.commands:
        command = group.commands[name]
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_every_command_explains_itself_with_examples():
    for path, command in commands():
        shown = run(*path, "--help")
        assert shown.exit_code == 0, path
        assert command.get_short_help_str(200), path
        if path[0] != "lab":
            assert "Examples:\n" in shown.output, path


def test_the_version():
    assert run("--version").output == f"ebpflb, version {__version__}\n"


@pytest.mark.parametrize("arguments", [("nonsense",), ("--nonsense",), ("maps", "dump", "--x")])
def test_a_wrong_command_line_is_status_2(arguments):
    assert run(*arguments).exit_code == 2


def test_an_error_of_ours_is_one_line_and_status_1(fail_with):
    fail_with(PinError("/pins: locked"))
    shown = run("status")
    assert (shown.exit_code, shown.output) == (1, "Error: /pins: locked\n")


def test_an_error_of_the_system_is_one_line_without_blame(fail_with):
    fail_with(OSError(errno.ENOSPC, "No space left on device"))
    assert run("status").output == "Error: input or output: No space left on device\n"
    fail_with(PermissionError(errno.EACCES, "Permission denied", "/pins"))
    assert run("status").output == "Error: /pins: Permission denied\n"


def test_an_unexpected_error_is_one_line_and_with_v_its_traceback(fail_with):
    fail_with(KeyError("some\nthing"))
    shown = run("status")
    assert shown.exit_code == 1
    assert shown.output == (
        "Error: unexpected KeyError: 'some\\nthing' (this is a bug; -v shows where)\n"
    )
    assert "Traceback" in run("-v", "status").output


def test_output_that_nobody_reads_is_silent():
    command = f"{sys.executable} -m ebpflb maps dump --help | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert done.stderr == b""


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_ends_a_command_without_a_word(tmp_path, interrupts):
    """timeout(1) sends two."""
    path = tmp_path / "query.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        command = [sys.executable, "-m", "ebpflb", "flows", "--query-socket", str(path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            silent.settimeout(60)
            with silent.accept()[0] as asked:
                assert asked.recv(1)
                for _ in range(interrupts):
                    process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == INTERRUPTED


def test_commands_are_imported_when_they_are_used():
    code = "import sys, ebpflb.cli; print([m for m in sys.modules if m.startswith('ebpflb.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "['ebpflb.errors', 'ebpflb.cli']\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell):
    shown = run("completion", shell)
    assert shown.exit_code == 0
    assert "_EBPFLB_COMPLETE" in shown.output


def test_completion_of_a_command_line():
    environ = {
        "_EBPFLB_COMPLETE": "bash_complete",
        "COMP_WORDS": "ebpflb maps dump lb_count_",
        "COMP_CWORD": "3",
    }
    done = CliRunner().invoke(main, env=environ, prog_name="ebpflb")
    assert done.output.split() == [
        f"plain,lb_count_{what}" for what in ("back", "drop", "front", "xdp")
    ]

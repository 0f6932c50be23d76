# SPDX-License-Identifier: Apache-2.0
"""Commands executed over a real connection: their output, and that they end."""

import os
import subprocess
import time
from contextlib import closing

import pytest

from ebpflb.errors import ClusterError
from ebpflb.kubectl.access import Access
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import NO_AGENT, AgentAnswer, last_line
from ebpflb.kubectl.execution import PodExecutor
from tests.unit.kubectl.api_server import Output

AGENT = RemoteAgent("a", "kube-system", "ebpflb-a", True, "")
# Longer than any test may take, and no other process sleeps just as long.
FOR_EVER = f"600.{os.getpid()}"
EXEC = "/api/v1/namespaces/kube-system/pods/ebpflb-a/exec"


def shell(text):
    return ["sh", "-c", text]


def test_a_command_answers_with_what_it_prints_and_its_status(executor):
    said = executor.run(AGENT, shell("echo one; echo two >&2; exit 7"))
    assert said == AgentAnswer(AGENT, 7, "one\n", "two\n")
    assert executor.run(AGENT, ["true"]) == AgentAnswer(AGENT, 0)


def test_arguments_arrive_as_they_are(executor):
    words = ["a b", "$HOME", "'", '"; exit 3', "é"]
    assert executor.run(AGENT, ["printf", "%s\n", *words]).stdout.splitlines() == words


def test_a_long_answer_arrives_whole(executor):
    said = executor.run(AGENT, ["seq", "300000"]).stdout
    assert said.endswith("\n300000\n")
    assert said.count("\n") == 300000


def test_an_answer_that_does_not_come_in_time_is_none(kubeconfig):
    executor = PodExecutor(Access(str(kubeconfig), seconds=1.5))
    said = executor.run(AGENT, ["sleep", FOR_EVER])
    assert said == AgentAnswer(AGENT, None, error="did not answer within 1.5 s")
    wait_until_ended()


def wait_until_ended():
    """Until this process has no sleep any more that would sleep for ever."""
    while not subprocess.run(["pgrep", "-f", f"^sleep {FOR_EVER}$"], check=False).returncode:
        time.sleep(0.1)


def test_closing_a_stream_ends_the_command(executor):
    with closing(executor.stream(AGENT, shell(f"echo begun; exec sleep {FOR_EVER}"))) as stream:
        assert next(stream) == "begun"
        assert next(stream) == ""
    wait_until_ended()


def test_the_lines_of_a_stream_come_as_they_are_printed(executor):
    stream = executor.stream(AGENT, shell("printf 'a\\nb'; sleep 0.3; printf 'c\\n'"))
    assert list(filter(None, stream)) == ["a", "bc"]


def test_a_stream_that_fails_says_why(executor):
    stream = executor.stream(AGENT, shell("echo a; echo Error: the agent has stopped >&2; exit 1"))
    assert next(stream) == "a"
    with pytest.raises(ClusterError, match=r"^the agent has stopped$"):
        list(stream)
    with pytest.raises(ClusterError, match="exits with status 5"):
        list(executor.stream(AGENT, shell("exit 5")))


def test_a_line_without_an_end_is_not_kept(executor):
    with pytest.raises(ClusterError, match="a line of more than 64 KiB"):
        list(executor.stream(AGENT, ["cat", "/dev/zero"]))


def test_a_command_that_cannot_start_is_one_line(executor, objects):
    objects.command = lambda *_: Output(status=None)
    assert executor.run(AGENT, ["x"]).error == "exec failed: no such file"


def test_a_connection_that_breaks_off_is_one_line(executor, objects):
    def break_off(*_):
        raise OSError

    objects.command = break_off
    assert executor.run(AGENT, ["x"]).error == "the connection to the agent's pod was lost"


def test_what_rbac_forbids_is_one_line_that_is_the_same_on_all_nodes(executor, objects):
    objects.forbidden[EXEC] = 'pods "ebpflb-a" is forbidden: User "me" cannot get "pods/exec"'
    error = executor.run(AGENT, ["x"]).error
    assert error == (
        'RBAC forbids it: User "me" cannot get "pods/exec" (needs get and create of pods/exec)'
    )


def test_a_node_without_an_agent_has_no_answer(executor):
    assert executor.run(RemoteAgent("c", "", "", False, ""), ["x"]).error == NO_AGENT


def test_the_last_line_of_a_complaint_counts():
    assert last_line("warning: x\nError: no agent answers\n\n") == "no agent answers"
    assert last_line("\n") == ""

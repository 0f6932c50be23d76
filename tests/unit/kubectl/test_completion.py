# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.kubectl import program
from ebpflb.kubectl.completion import complete
from tests.unit.kubectl.api_server import node


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (
            ["flows", "--ver"],
            ["--verdict\tAny of: forwarded, failed, refused, dropped (see below).", ":4"],
        ),
        (["flows", "--verdict", "f"], ["forwarded", "failed", ":4"]),
        (["flows", "--verdict", "failed,re"], ["failed,refused", ":4"]),
        (["top", "-A", "-o", "js"], ["json", "jsonl", ":4"]),
        (["sysdump", "--file", ""], [":0"]),
    ],
)
def test_kubectl_is_told_what_may_come_next(monkeypatch, capsys, words, completed):
    monkeypatch.setattr("sys.argv", ["kubectl_complete-ebpflb", *words])
    complete()
    assert capsys.readouterr().out.splitlines() == completed


@pytest.fixture
def pressed(monkeypatch, capsys, objects, kubeconfig):
    """Completes the words of a user whose namespace is `default`, where there are two Services."""
    named = [("default", "web"), ("default", "db"), ("shop", "web")]
    found = [{"metadata": {"namespace": namespace, "name": name}} for namespace, name in named]
    objects.lists["/api/v1/services"] = found
    for namespace in ("default", "shop"):
        path = f"/api/v1/namespaces/{namespace}/services"
        objects.lists[path] = [each for each in found if each["metadata"]["namespace"] == namespace]
    objects.lists["/api/v1/nodes"] = [node("a1"), node("b1")]

    def press(*words):
        command, *rest = words
        argv = ["kubectl_complete-ebpflb", command, "--kubeconfig", str(kubeconfig), *rest]
        monkeypatch.setattr("sys.argv", argv)
        complete()
        *names, directive = capsys.readouterr().out.splitlines()
        assert directive == ":4"
        return names

    return press


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["top", "--service", ""], ["web", "db"]),
        (["top", "--service", "w"], ["web"]),
        (["flows", "-n", "shop", "--service", ""], ["web"]),
        (["services", "-A", "--service", "sh"], ["shop/web"]),
        (["explain", "198.51.100.7", "d"], ["db"]),
        (["doctor", "--node", "b"], ["b1"]),
    ],
)
def test_names_are_those_that_the_api_server_has(pressed, words, completed):
    assert pressed(*words) == completed


def test_without_an_answer_there_are_no_names(pressed, objects):
    objects.forbidden["/api/v1/nodes"] = "not for you"
    objects.lists["/api/v1/namespaces/default/services"] = [{"metadata": {}}]
    assert pressed("status", "--node", "") == []
    assert pressed("top", "--service", "") == []
    assert pressed("top", "--context", "nobody's", "--service", "") == []


@pytest.mark.parametrize("argv", [[], [""]])
def test_without_a_word_every_command_fits(monkeypatch, capsys, argv):
    monkeypatch.setattr("sys.argv", ["kubectl_complete-ebpflb", *argv])
    complete()
    *commands, directive = capsys.readouterr().out.splitlines()
    assert {each.split("\t")[0] for each in commands} == set(program.commands)
    assert all(each.split("\t")[1] for each in commands)
    assert directive == ":4"

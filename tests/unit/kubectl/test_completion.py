# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.kubectl import program
from ebpflb.kubectl.completion import complete


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


@pytest.mark.parametrize("argv", [[], [""]])
def test_without_a_word_every_command_fits(monkeypatch, capsys, argv):
    monkeypatch.setattr("sys.argv", ["kubectl_complete-ebpflb", *argv])
    complete()
    *commands, directive = capsys.readouterr().out.splitlines()
    assert {each.split("\t")[0] for each in commands} == set(program.commands)
    assert all(each.split("\t")[1] for each in commands)
    assert directive == ":4"

# SPDX-License-Identifier: Apache-2.0
"""The tables of terms in docs/ have every term of the code, with the same meaning."""

import re
from collections.abc import Iterator

import click

from ebpflb.cli import explain_text
from ebpflb.cli import main as on_a_node
from ebpflb.cli.explain import explain
from ebpflb.dataplane.kernel.probe import FEATURES
from ebpflb.dataplane.layout.enums import DropReason, word
from ebpflb.kubectl import explain as of_nodes
from ebpflb.kubectl import program as of_the_cluster
from ebpflb.words.annotations import ANNOTATIONS
from ebpflb.words.connections import FLOW_EVENTS, VERDICTS
from ebpflb.words.events import EventReason
from ebpflb.words.scheduler import Scheduler
from tests.unit.docs.documents import ROOT
from tests.unit.docs.schema import schema

_TEXT = (ROOT / "docs/reference/words.md").read_text()
# Statuses of any program.
USAGE_ERROR = 2


def rows(heading: str, text: str = _TEXT) -> list[list[str]]:
    """The cells of the rows below a heading, without the first row of each table."""
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return [cells for cells in found if cells[0].startswith("`")]


def test_every_drop_reason_is_there_with_what_it_means() -> None:
    assert {cells[0]: cells[1] for cells in rows("Drop reasons")} == {
        f"`{word(reason)}`": reason.sentence for reason in DropReason
    }


def test_every_event_is_there_with_its_type() -> None:
    assert {cells[0]: cells[1] for cells in rows("Events")} == {
        f"`{each}`": "Normal" if each is EventReason.STARTING else "Warning" for each in EventReason
    }


def test_every_annotation_is_there() -> None:
    assert [cells[0] for cells in rows("Annotations")] == [f"`{each}`" for each in ANNOTATIONS]


def test_every_scheduler_is_there() -> None:
    text = (ROOT / "docs/services.md").read_text()
    # The next table has those of IPVS.
    found = [cells[0].split()[0] for cells in rows("Schedulers", text)][: len(Scheduler)]
    assert found == [f"`{each}`" for each in Scheduler]
    assert schema()["properties"]["config"]["properties"]["scheduler"]["enum"] == list(Scheduler)


def test_every_verdict_is_there() -> None:
    found = rows("Flows", (ROOT / "docs/monitoring.md").read_text())
    assert [cells[0] for cells in found][: len(VERDICTS)] == [f"`{each}`" for each in VERDICTS]
    (words,) = [cells[1] for cells in found if cells[0] == "`event`, `verdict`"]
    assert re.findall(r"`(\w+)`", words) == [*FLOW_EVENTS, *VERDICTS]


def test_the_doctor_of_the_example_finds_every_feature() -> None:
    text = (ROOT / "docs/monitoring.md").read_text()
    assert f"{len(FEATURES)} of {len(FEATURES)} features are available" in text


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, below in sorted(command.commands.items()):
            yield from commands(below, f"{path} {name}")
    else:
        yield path, command


def test_every_command_is_there_whose_help_reports_its_exit_status() -> None:
    found = {
        path
        for program, name in ((on_a_node, "ebpflb"), (of_the_cluster, "kubectl ebpflb"))
        for path, command in commands(program, name)
        if "exit status" in f"{command.help} {command.epilog}".lower()
    }
    in_prose = {"ebpflb lab exec", "ebpflb explain", "kubectl ebpflb explain"}
    assert {cells[0].strip("`") for cells in rows("Exit statuses") if len(cells) == 2} == (
        found - in_prose
    )
    assert found > in_prose


def statuses(command: click.Command) -> dict[int, str]:
    """As the help has them."""
    lines = (command.epilog or "").split("Exit status:\n")[1].split("\n\n")[0]
    found = re.findall(r"^  (\d)  (.*(?:\n {5}.*)*)", lines, re.MULTILINE)
    return {int(number): " ".join(text.split()) for number, text in found}


def test_explain_exits_as_its_help_says() -> None:
    here, everywhere = statuses(explain), statuses(of_nodes.explain)
    assert {int(each[0].strip("`")): each[1:] for each in rows("Exit statuses") if each[2:]} == {
        number: [here[number], everywhere[number]] for number in here
    }
    known = {getattr(explain_text, name) for name in ("WORKS", "FAILS", "CANNOT_TELL")}
    known |= {explain_text.NOT_A_SERVICE, explain_text.WORKS_PARTLY, USAGE_ERROR}
    assert here.keys() == everywhere.keys() == known
    order = re.search(r"the worst node, in the order ([\d, ]+):", " ".join(_TEXT.split()))
    assert order
    assert [int(each) for each in order[1].split(", ")] == list(of_nodes.GRAVEST)

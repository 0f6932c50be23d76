# SPDX-License-Identifier: Apache-2.0
"""GitHub's workflows, read as far as that is possible without GitHub."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RELEASE = ROOT / ".github/workflows/release.yml"
# What GitHub replaces before a shell sees it.
EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")


@dataclass(frozen=True, slots=True)
class Step:
    """One step, and the name of its job."""

    job: str
    number: int
    content: dict[str, Any]

    @property
    def run(self) -> str:
        """Its script; empty for an action."""
        return str(self.content.get("run", ""))

    @property
    def action(self) -> str:
        """The name of its action without the version; empty for a script."""
        return str(self.content.get("uses", "")).partition("@")[0]

    @property
    def inputs(self) -> dict[str, Any]:
        """What its action is given."""
        return dict(self.content.get("with", {}))


def read(workflow: Path) -> dict[str, Any]:
    """The whole document."""
    content = yaml.safe_load(workflow.read_text())
    # YAML takes the key `on` for a boolean.
    return {"on" if key is True else key: value for key, value in content.items()}


def steps(workflow: Path) -> list[Step]:
    """All steps of all jobs, in the order of the file."""
    return [
        Step(name, number, content)
        for name, job in read(workflow)["jobs"].items()
        for number, content in enumerate(job["steps"])
    ]


def texts(value: Any) -> Iterator[str]:
    """Every text below a value."""
    if isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    else:
        yield str(value)


def expressions(value: Any) -> list[str]:
    """What GitHub evaluates below a value: `matrix.arch`, `steps.base.outputs.name` ..."""
    return [found for text in texts(value) for found in EXPRESSION.findall(text)]

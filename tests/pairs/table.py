# SPDX-License-Identifier: Apache-2.0
"""The table of table.yaml, which `python -m tests.pairs` writes to the documentation."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from ebpflb.words.annotations import PREFIX

_FILE = Path(__file__).with_name("table.yaml")


class Together(NamedTuple):
    """A row, with the whole names of annotations. hidden: name -> values of the other one."""

    first: str
    second: str
    text: str
    proof: str
    hidden: Mapping[str, Collection[str]]


def _rows() -> list[Together]:
    return [
        Together(
            PREFIX + row["pair"][0],
            PREFIX + row["pair"][1],
            row["text"],
            row["proof"],
            {PREFIX + name: values for name, values in row.get("hidden", {}).items()},
        )
        for row in yaml.safe_load(_FILE.read_text())
    ]


TABLE = tuple(_rows())


def is_hidden(name: str, other: str, value: str) -> bool:
    """Whether an annotation does not show its effect beside this value of another one."""
    rows = [each for each in TABLE if {each.first, each.second} == {name, other}]
    return any(value in each.hidden.get(name, ()) for each in rows)

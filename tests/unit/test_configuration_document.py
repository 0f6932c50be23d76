# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md says of each option, flag and field what the code says."""

from pathlib import Path

from ebpflb.config.kube_proxy_config import FIELDS
from ebpflb.config.kube_proxy_flags import DEPRECATED_PORTS, IGNORED, WITHOUT_EFFECT
from ebpflb.config.options import OPTIONS

DOCUMENT = Path(__file__).parents[2] / "docs/configuration.md"


def rows():
    """First cell -> last cell, of every row of every table."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    cells = [line.strip("| ").replace("\\|", "/").split(" | ") for line in lines]
    return {cell[0]: cell[-1] for cell in cells}


def test_every_option_is_there_with_its_names_and_whether_it_works():
    found = rows()
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in option.names)
        assert found[names] == says(option.name)


def test_every_option_is_explained_as_by_its_help():
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    cells = [line.strip("| ").replace("\\|", "/").split(" | ") for line in lines]
    found = {cell[0].split(",")[0].strip("`"): cell[2] for cell in cells if len(cell) == 4}
    assert {name: text.replace("`", "") for name, text in found.items()} == {
        option.name: option.help.replace("--", "").replace("`", "") for option in OPTIONS
    }


def says(name):
    """Whether an option works, in the words of the document."""
    if name in WITHOUT_EFFECT:
        return f"accepted, without effect: {WITHOUT_EFFECT[name]}"
    return "works"


def test_every_ignored_flag_is_there_with_its_reason():
    found = rows()
    assert {name: found[f"`{name}`"] for name in IGNORED} == {
        name: f"ignored: {reason}" for name, reason in IGNORED.items()
    }
    for name in DEPRECATED_PORTS:
        assert found[f"`{name}`"].startswith("works: the port of")


def test_every_field_is_there_with_its_option_or_its_reason():
    found = rows()
    for path, field in FIELDS.items():
        wanted = f"`{field.option}`" if field.option else f"ignored: {field.reason}"
        assert found[f"`{path}`"] == wanted


def test_nothing_is_there_that_does_not_exist():
    options = {", ".join(f"`{name}`" for name in option.names) for option in OPTIONS}
    others = {f"`{name}`" for name in (*IGNORED, *DEPRECATED_PORTS, *FIELDS)}
    assert rows().keys() == options | others

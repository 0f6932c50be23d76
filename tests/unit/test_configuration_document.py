# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md and the code agree on each option, flag and field."""

from ebpflb.config.kube_proxy_config import FIELDS
from ebpflb.config.kube_proxy_flags import DEPRECATED_PORTS, IGNORED
from ebpflb.config.options import OPTIONS
from tests import options
from tests.options import DOCUMENT


def rows():
    """First cell -> last cell, of every row of every table."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    cells = [line.strip("| ").replace("\\|", "/").split(" | ") for line in lines]
    return {cell[0]: cell[-1] for cell in cells}


def test_the_table_of_options_is_what_the_agent_has():
    assert DOCUMENT.read_text() == options.document(), "python -m tests.options"


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
    known = {", ".join(f"`{name}`" for name in option.names) for option in OPTIONS}
    others = {f"`{name}`" for name in (*IGNORED, *DEPRECATED_PORTS, *FIELDS)}
    assert rows().keys() == known | others

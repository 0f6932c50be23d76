# SPDX-License-Identifier: Apache-2.0
"""What `explain` says first of a connection that passes though it meets a frontend."""

import pytest

from ebpflb.cli.explain_text import Outcome, outcome_of

BACKEND = {"address": "10.1.0.1"}


@pytest.mark.parametrize(
    ("side", "backends", "if_empty", "expected"),
    [
        ("elsewhere", [], "pass", Outcome.PASSES),
        ("elsewhere", [BACKEND], "pass", Outcome.FAILS),
        ("elsewhere", [], "drop", Outcome.FAILS),
        ("this node", [], "pass", Outcome.FAILS),
    ],
)
def test_it_passes_if_its_service_says_so(side, backends, if_empty, expected):
    frontend = {
        "elsewhere": {"backends": backends, "if_empty": if_empty},
        "this_node": {"backends": [], "if_empty": "refuse"},
    }
    kernel = {"frontend": frontend, "from": side, "backends": []}
    assert outcome_of({"verdict": "passes", "kernel": kernel}) is expected

# SPDX-License-Identifier: Apache-2.0
"""The explanation of a flow for the page: of the relay, or of the node that recorded it."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ebpflb.cli.explain_words import AskedConnection
from ebpflb.kubectl.cluster import Cluster, some
from ebpflb.kubectl.explain import explanations, text_of
from ebpflb.kubectl.ui.aside import aside
from ebpflb.kubectl.ui.commands import CommandWords
from ebpflb.kubectl.ui.pages import PageExplanation
from ebpflb.kubectl.ui.traffic import KeptFlow


@contextmanager
def as_wide_as(columns: str) -> Iterator[None]:
    """Meanwhile texts are so wide, since the environment says so to what makes them."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = columns
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def explanation(
    cluster: Cluster, words: CommandWords, kept: KeptFlow, connection: AskedConnection
) -> PageExplanation:
    """What the plugin's own command prints. EbpflbError."""
    # A pod's own node answers for it; for others, the one that recorded the flow.
    nodes = () if "/" in connection.source else (kept.flow.node,)
    answered: set[str] = set()

    def look(asked: Cluster) -> str:
        groups = explanations(asked, connection, words.namespace)
        answered.update(node for group in groups for node in group.nodes)
        return text_of(asked, groups, "table")

    text, said, failures = aside(cluster, look, agents=(), nodes=nodes, are_old=False)
    told = [f"{some(of)}: {error}" for error, of in sorted(failures.items())]
    command = words.explain(kept.flow, nodes, connection)
    return PageExplanation(
        some(answered or (kept.flow.node,)),
        command,
        "\n\n".join(filter(None, (text, *said, *told))),
        command,
    )


# Runs `ebpflb` with these arguments on a node, and returns its output. EbpflbError.
Run = Callable[[str, Sequence[str]], str]


def answer_of_node(
    run: Run, words: CommandWords, kept: KeptFlow, connection: AskedConnection
) -> PageExplanation:
    """What the node that recorded the flow prints. EbpflbError."""
    source, target, _, at = connection
    node, arguments = kept.flow.node, ["explain", *(["--at", at] if at else []), source, target]
    command = " ".join(["ebpflb", *arguments])
    copied = words.explain(kept.flow, (node,), connection)
    return PageExplanation(node, command, run(node, arguments), copied)

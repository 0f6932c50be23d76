# SPDX-License-Identifier: Apache-2.0
"""The explanation of a flow for the page, of the relay: what the plugin's own command prints."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ebpflb.cli.explain_words import AskedConnection
from ebpflb.kubectl import NAME
from ebpflb.kubectl.cluster import THROUGH_THE_RELAY, Cluster, some
from ebpflb.kubectl.explain import explanations, text_of
from ebpflb.kubectl.ui.pages import PageExplanation
from ebpflb.kubectl.ui.traffic import KeptFlow
from ebpflb.model.flow import Flow


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
    cluster: Cluster, namespace: str, kept: KeptFlow, source: str, target: str
) -> PageExplanation:
    """`namespace`: in which the relay is asked; empty for all. EbpflbError."""
    said: list[str] = []
    failures: dict[str, set[str]] = defaultdict(set)
    # A pod's own node answers for it; for others, the one that recorded the flow.
    nodes = () if "/" in source else (kept.flow.node,)
    asked = replace(
        cluster, agents=(), nodes=nodes, failures=failures, say=said.append, are_old=False
    )
    groups = explanations(asked, AskedConnection(source, target), namespace)
    text = text_of(asked, groups, "table")
    told = [each for each in said if each != THROUGH_THE_RELAY]
    told += [f"{some(of)}: {error}" for error, of in sorted(failures.items())]
    answered = {node for group in groups for node in group.nodes}
    return PageExplanation(
        some(answered or (kept.flow.node,)),
        _command(kept.flow, namespace, nodes, source, target),
        "\n\n".join(filter(None, (text, *told))),
    )


def _command(flow: Flow, namespace: str, nodes: Sequence[str], source: str, target: str) -> str:
    within = namespace or (flow.service.namespace if flow.service else "")
    options = [*(("-n", within) if within else ()), *(f"--node={each}" for each in nodes)]
    return " ".join([NAME, "explain", *options, source, target])

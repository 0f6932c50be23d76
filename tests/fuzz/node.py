# SPDX-License-Identifier: Apache-2.0
"""The programs in this kernel and a node to run them on, as tests/bpf has them."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ebpflb.dataplane.load.source_text import source_text
from tests.bpf.harness.loading import Loaded, load
from tests.bpf.harness.node import Node


@contextmanager
def loaded_node() -> Iterator[tuple[Loaded, Node]]:
    """The node is not entered."""
    with tempfile.TemporaryDirectory() as bpffs:
        programs = load(Path(bpffs), source_text())
    with closing(Node()) as node:
        yield programs, node

# SPDX-License-Identifier: Apache-2.0
"""ebpflb's programs on two nodes, and netfilter on a third, with the same Services."""

from collections.abc import Iterator

import pytest

from ebpflb.dataplane.load.source_text import source_text
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import Loaded, load
from tests.bpf.harness.node import Node
from tests.bpf.netfilter.ours import Ours
from tests.bpf.netfilter.theirs import Netfilter, netfilter


@pytest.fixture
def theirs() -> Iterator[Netfilter]:
    with netfilter() as made:
        yield made


@pytest.fixture
def ours(
    programs: Loaded, node: Node, one_cpu: None, tmp_path_factory: pytest.TempPathFactory
) -> Ours:
    names = ("lb_host_ingress", "lb_host_egress")
    far = load(tmp_path_factory.mktemp("bpffs"), source_text(), names)
    return Ours(Datapath(programs), Datapath(far), node)

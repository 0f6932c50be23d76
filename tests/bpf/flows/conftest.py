# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.bpf.flows.flow import Flow
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.packets import Kind
from tests.bpf.harness.services import CLIENT_PORT, cluster_ip, remote_backend


@pytest.fixture
def flow(datapath: Datapath, tcp: Kind) -> Flow:
    frontend = cluster_ip(datapath, tcp, [remote_backend(datapath, tcp)[1]])
    return Flow(datapath, tcp, frontend, CLIENT_PORT)

# SPDX-License-Identifier: Apache-2.0
"""An API server, and how a user of it reaches the agents."""

import pytest

from ebpflb.kubectl.access import Access
from ebpflb.kubectl.execution import PodExecutor
from tests.unit.kubectl.api_server import Objects, served, write_kubeconfig


@pytest.fixture
def objects():
    return Objects()


@pytest.fixture
def kubeconfig(objects, tmp_path):
    with served(objects) as url:
        yield write_kubeconfig(tmp_path / "kubeconfig", url)


@pytest.fixture
def access(kubeconfig):
    return Access(str(kubeconfig), seconds=3)


@pytest.fixture
def executor(access):
    return PodExecutor(access)

# SPDX-License-Identifier: Apache-2.0
"""A relay whose agents tell everything."""

import pytest

from tests.unit.kubectl.api_server import served, write_kubeconfig
from tests.unit.relay.cluster import Relayed, objects_of_two
from tests.unit.relay.talkative import talk


@pytest.fixture
def objects():
    return objects_of_two()


@pytest.fixture
def relayed(objects, tmp_path):
    with served(objects) as url:
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", url)
        yield Relayed(str(kubeconfig), objects, talk)

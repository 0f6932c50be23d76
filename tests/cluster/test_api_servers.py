# SPDX-License-Identifier: Apache-2.0
"""The agent and a control plane of three API servers, two of which fail one after the other."""

import json
import os
from collections.abc import Iterator

import pytest

from ebpflb.dataplane.load.compile_cache import DIRECTORY
from ebpflb.source.api_servers import ApiServers
from tests.cluster.harness.agent import NODE, ClusterAgent, running_agent
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.objects import piece, serves, service
from tests.e2e.harness.waiting import wait_until

NAME = "several"
# The next server is tried at once after the first refusal.
SOON = 10.0


@pytest.fixture
def control() -> Iterator[ControlPlane]:
    made = ControlPlane.up(f"peers-{os.getpid()}", nodes=1)
    try:
        apply(made, made.url, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE}})
        yield made
    finally:
        made.down()
        for file in DIRECTORY.glob("api-servers-*.json"):
            if made.layout.address("control") in file.read_text():
                file.unlink()


def apply(control: ControlPlane, server: str, *objects: object) -> None:
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    where = ["--server", server, "--tls-server-name=kubernetes.default.svc"]
    control.kubectl(*where, "apply", "-f", "-", input=listed)


def is_served(control: ControlPlane, agent: ClusterAgent, server: str, address: str) -> None:
    """Whether changes written to one API server reach the agent."""
    apply(control, server, piece(NAME, address))
    wait_until(lambda: serves(agent, NAME, address), f"{address} is served", SOON)


def refused(agent: ClusterAgent, *urls: str) -> bool:
    """Whether the agent reports that these refuse connections. The last one may have reset it
    first.
    """
    errors = agent.status()["source_errors"].values()
    return any(
        error.startswith("cannot reach any API server: ")
        and all(f"{url}: Connection refused" in error for url in urls)
        for error in errors
    )


def test_as_long_as_one_of_three_is_left_the_agent_follows(control: ControlPlane):
    others = [control.start_peer(number) for number in (1, 2)]
    with running_agent(control) as agent:
        agent.wait_in_sync()
        wait_until(lambda: len(ApiServers([control.url], DIRECTORY)) == 3, "all are known", 60)
        apply(control, control.url, service(NAME))
        is_served(control, agent, control.url, "10.244.1.5")

        control.stop_api()
        is_served(control, agent, others[0], "10.244.1.6")
        assert not agent.status()["source_errors"]

        control.stop_peer(1)
        is_served(control, agent, others[1], "10.244.1.7")
        assert not agent.status()["source_errors"]

    with running_agent(control) as agent:
        agent.wait_in_sync()
        is_served(control, agent, others[1], "10.244.1.8")

        control.stop_peer(2)
        # The first peer may be forgotten by now: an API server that does not renew its lease for
        # 15 s is no longer listed.
        left = (control.url, others[1])
        wait_until(lambda: refused(agent, *left), "told that none is left")
        assert serves(agent, NAME, "10.244.1.8")

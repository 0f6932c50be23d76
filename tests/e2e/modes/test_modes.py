# SPDX-License-Identifier: Apache-2.0
"""In every mode: which pods reply, what they see, and that changes and restarts cost no
connection.
"""

from collections.abc import Iterator
from itertools import product

import pytest

from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.command import metric
from tests.e2e.harness.gateway import (
    CLIENTS,
    CLUSTER_IP,
    EXTERNAL,
    FEW_TIMES,
    FRONTENDS,
    NODE_PORT,
    Gateway,
    Way,
    route_to_services,
)
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import PATIENCE, REFUSED, SILENCE_SECONDS, SILENT
from tests.e2e.harness.waiting import wait_until
from tests.e2e.mode import Mode, chosen_mode
from tests.e2e.modes.all_modes import mode_id, pairwise_modes

REACHABLE = 'ebpflb_dsr_peers{state="reachable"}'
HERE, ELSEWHERE = "pod-1-2", "pod-2-2"
LOCAL = {"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}
NODES = {"pod-1-1": "node1", "node1": "node1", "pod-2-1": "node2", "node2": "node2"}


MODES = [chosen] if (chosen := chosen_mode()) else pairwise_modes()


@pytest.fixture(scope="module", params=MODES, ids=mode_id)
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in request.param.environment.items():
            patch.setenv(name, value)
        yield request.param


@pytest.fixture(scope="module")
def gateway(mode: Mode, own_lab, tmp_path_factory) -> Iterator[Gateway]:
    """The external client's Service traffic goes by node1."""
    with started(own_lab, tmp_path_factory.mktemp("mode")) as cluster:
        route_to_services(cluster, [own_lab.client])
        yield Gateway(cluster)
        assert all(agent.is_running() for agent in cluster.agents.values())


@pytest.fixture
def cluster(gateway: Gateway) -> Iterator[Cluster]:
    yield gateway.cluster
    gateway.cluster.clear()


def expected(mode: Mode, client: str, frontend: str, *, is_local: bool) -> dict[str, str]:
    """The pods that reply, and the client that they see; `is_local`: both policies are Local."""
    own = NODES.get(client)
    entry = "node1" if frontend == NODE_PORT else own or "node1"
    here, elsewhere = (HERE, ELSEWHERE) if entry == "node1" else (ELSEWHERE, HERE)
    # What leaves the entry node again has that node's address, except with DSR, which applies to
    # external clients at external frontends.
    has_dsr = mode.has_dsr and own is None and frontend in EXTERNAL
    is_kept = own == entry or has_dsr
    seen = {here: client, elsewhere: client if is_kept else entry}
    if is_local and (own != entry or frontend == CLUSTER_IP):
        del seen[elsewhere]
    return seen


def differing(
    mode: Mode, gateway: Gateway, spec: ServiceSpec, *, is_local: bool
) -> dict[Way, dict[str, str]]:
    """The paths on which other pods reply, or see another client."""
    found: dict[Way, dict[str, str]] = {}
    times = {} if mode.scheduler in ("random", "maglev") else {"times": FEW_TIMES}
    for client, frontend in product(CLIENTS, FRONTENDS):
        every = expected(mode, client, frontend, is_local=is_local)
        for way, said in gateway.seen(spec, client, frontend, **times).items():
            seen = {pod: ", ".join(owners) for pod, owners in said.items()}
            wanted = every
            if mode.scheduler == "least-connections":
                # Short connections in sequence may always find the same pod with the fewest
                # connections.
                wanted = {pod: owner for pod, owner in every.items() if pod in seen}
            if not seen or seen != wanted:
                found[way] = seen
    return found


def test_the_right_pods_answer_everybody_everywhere(mode, gateway, cluster):
    spec = gateway.serve(HERE, ELSEWHERE)
    if mode.has_dsr:
        # A node that has not answered a probe yet gets masqueraded traffic.
        node, families = cluster.lab.node("node1"), len(cluster.versions)
        wait_until(lambda: metric(node, REACHABLE) == families, "node2 takes part")
    assert differing(mode, gateway, spec, is_local=False) == {}


def test_policy_local_keeps_to_the_node_and_to_the_client(mode, gateway, cluster):
    spec = gateway.serve(HERE, ELSEWHERE, **LOCAL)
    assert differing(mode, gateway, spec, is_local=True) == {}


@pytest.mark.parametrize(("policies", "fate"), [({}, REFUSED), (LOCAL, SILENT)])
def test_where_no_pod_may_answer_it_ends(gateway, cluster, policies, fate):
    """Without any pod the client is refused; without a local one its packets are dropped."""
    spec = gateway.serve(*([ELSEWHERE] if policies else []), **policies)
    seconds = SILENCE_SECONDS if fate == SILENT else PATIENCE
    assert set(gateway.fates(spec, "client", NODE_PORT, seconds).values()) == {fate}


def test_neither_a_change_nor_a_restart_costs_a_connection(mode, cluster):
    stays, goes, comes = (cluster.lab.pod(name) for name in ("pod-1-1", "pod-1-2", "pod-2-2"))
    spec = cluster.serve(cluster.new(), [stays, goes])
    agent = cluster.agents["node1"]
    # Not for each pod: held connections may keep others away from it (least-connections), and
    # alternating paths may always get the same one (round-robin).
    with none_fails(cluster, spec, held=True) as loads:
        loads.go_on()
        cluster.serve(spec, [stays, comes], terminating=[goes])
        loads.go_on()
        agent.kill()
        agent.start()
        agent.wait_in_sync()
        loads.go_on()
    assert comes.name in set().union(*(each.pods for each in loads.results.values()))

# SPDX-License-Identifier: Apache-2.0
"""The tests that are worth running under emulation: those that depend on the kernel."""

from collections.abc import Mapping, Sequence

_POD, _HOST = "tests/bpf/tc/test_pod.py", "tests/bpf/tc/test_host.py"
_PROBE = "tests/bpf/attach/test_probe.py"
_MTUS = "tests/bpf/services/test_path_mtu.py"
_SOCKETS = "tests/bpf/flows/test_connections.py"

# Verifying every program; kernel features; packets at tc; connections of real sockets.
QUICK: Sequence[str] = (
    "tests/bpf/load/test_verifier_budget.py",
    f"{_PROBE}::test_this_kernel_has_the_feature",
    f"{_PROBE}::test_what_is_needed_is_there",
    f"{_POD}::test_a_request_to_a_cluster_ip_goes_to_the_backend",
    f"{_POD}::test_the_reply_comes_from_the_cluster_ip",
    f"{_POD}::test_a_pod_that_reaches_itself_sees_the_node_as_client",
    f"{_HOST}::test_a_local_backend_sees_the_client",
    f"{_HOST}::test_a_remote_backend_is_reached_with_the_nodes_address",
    f"{_HOST}::test_the_reply_of_a_remote_backend_goes_to_the_client",
    f"{_MTUS}::test_a_packet_that_does_not_fit_is_answered_with_the_mtu",
    f"{_SOCKETS}::test_a_refused_connection_has_failed",
    f"{_SOCKETS}::test_a_long_connection_is_counted_while_it_lasts",
)

LONG: Mapping[str, Sequence[str]] = {
    "quick": QUICK,
    "sockets": (_SOCKETS,),
    "wire": tuple(f"tests/bpf/tc/test_{name}.py" for name in ("wire", "icmp_wire", "offload")),
    "tc": (_POD, _HOST, _MTUS, "tests/bpf/tc/test_udp.py", "tests/bpf/flows/test_snat.py"),
    # Where links and the agent's hooks are tested, the tests expect tcx.
    "attach": tuple(f"tests/bpf/attach/test_{name}.py" for name in ("clsact", "devices")),
}

# Only on request: nodes with pods and agents take long to start.
PARTS: Mapping[str, Sequence[str]] = {
    **LONG,
    "lab": (
        "tests/e2e/traffic/test_paths.py::test_every_way_ends_where_it_should[ptp-dual]",
        "tests/e2e/operations/test_rights.py",
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""Two sets of programs on one node: only the one whose agent runs serves."""

import pytest

from ebpflb.lab.member import NodeAgent
from tests.e2e.harness.cluster import started
from tests.e2e.harness.command import ebpflb, error_line, status
from tests.e2e.harness.questions import differing, everywhere


@pytest.mark.parametrize("way", ["tcx", "clsact"])
def test_pins_elsewhere_do_not_keep_an_earlier_set_in_force(own_lab, tmp_path, way):
    node, stays = own_lab.node("node1"), own_lab.pod("pod-2-1")
    options = ["--attach", way, "--xdp", "generic"]
    elsewhere = str(node.bpffs.with_name(f"elsewhere-{way}"))
    second = NodeAgent(node, tmp_path / "second.log", [*options, "--bpffs-root", elsewhere])
    try:
        with started(own_lab, tmp_path, options, ["node1"]) as cluster:
            spec = cluster.serve(cluster.new(), own_lab.pods)
            assert differing(everywhere(cluster, spec), own_lab.pods) == {}
            refused = error_line(ebpflb(node, *second.command()[3:]))
            assert refused.startswith(f"another agent serves cgroup {node.cgroup} and this network")
            cluster.agents["node1"].kill()
            cluster.serve(spec, [stays], wait=False)
            second.start()
            second.wait_in_sync()
            assert differing(everywhere(cluster, spec), [stays]) == {}
            assert "another set of ebpflb's programs" in second.said()
            # Whatever the links of the first one, its restart is refused, and this one keeps
            # serving.
            assert error_line(ebpflb(node, "run", *options)).startswith("another agent serves")
            found = status(node, "--bpffs-root", elsewhere)
            assert (found["healthy"], found["problems"]) == (True, [])
            assert {each["mode"] for each in found["agent"]["xdp"]} == {"generic"}
    finally:
        second.kill()
        assert ebpflb(node, "cleanup", "--bpffs-root", elsewhere).returncode == 0
        assert ebpflb(node, "cleanup").returncode == 0

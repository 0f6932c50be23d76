# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from functools import partial

import pytest

from ebpflb.dataplane.kernel import probe as probes
from ebpflb.dataplane.kernel.probe import FEATURES, Feature, Probe, Support
from tests.skips import kernel_lacks

_AS_NOBODY = """
import os
from ebpflb.dataplane.kernel.probe import Feature, Probe, ProbeError
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
probe = Probe()
for feature in Feature:
    print(feature.name, *probe.find(feature)[:1], sep="=")
try:
    probe.require()
except ProbeError as error:
    print(error)
"""
_NEED_PERMISSION = {
    *(Feature.CGROUP_LINK, Feature.LINK_UPDATE, Feature.NETNS_COOKIE, Feature.SET_RETVAL),
    *(Feature.COARSE_CLOCK, Feature.FIB_MTU, Feature.SOCK_OPS),
    *(Feature.TCX_LINK, Feature.REDIRECT_NEIGH, Feature.LRU_HASH, Feature.BATCH),
    *(Feature.PERCPU_BATCH, Feature.XDP_FRAGS),
}


@pytest.mark.parametrize("feature", Feature)
def test_this_kernel_has_the_feature(feature):
    support, reason = Probe().find(feature)
    if support is Support.MISSING and FEATURES[feature].instead:
        kernel_lacks(feature, reason)
    assert (support, reason) == (Support.SUPPORTED, "")


def test_what_is_needed_is_there():
    Probe().require()


def test_a_function_that_no_kernel_has_is_missing(monkeypatch):
    for load in (probes._load_tc, probes._load_socket_hook):
        row = probes.Row("Linux 99", partial(load, probes._call(4711)))
        monkeypatch.setitem(probes.FEATURES, Feature.SET_RETVAL, row)
        support, reason = Probe().find(Feature.SET_RETVAL)
        assert support is Support.MISSING
        assert reason == "bpf_prog_load: Invalid argument: needs Linux 99"


def test_without_permission_we_cannot_tell():
    command = [sys.executable, "-c", _AS_NOBODY]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    unknown = {line.partition("=")[0] for line in said.splitlines() if line.endswith("UNKNOWN")}
    assert unknown == {feature.name for feature in _NEED_PERMISSION}
    assert "BPF=Support.MISSING" in said
    assert said.splitlines()[-1] == (
        "bpf system call: bpf_map_create: Operation not permitted: "
        "needs root, or CAP_BPF with CAP_NET_ADMIN"
    )

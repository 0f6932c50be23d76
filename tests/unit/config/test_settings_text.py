# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest
import yaml

from ebpflb.config.settings import load_settings, settings_text

GIVEN = {"cgroup-root": "/cg", "node-name": "a"}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"manifests": "/m", "kubeconfig": "/k", "master": "https://10.0.0.1"},
        {"host-devices": "eth*,bond0", "cluster-cidr": "10.0.0.0/8,fd00::/8"},
        {"metrics-port": "0", "nodeport-addresses": "primary", "v": "2"},
        {"min-sync-period": "250ms", "conntrack-udp-timeout": "1h30m", "sync-period": "1000000s"},
        {"masquerade-all": "true", "iptables-localhost-nodeports": "false", "oom-score-adj": "-1"},
        {"flow-events": "dropped,start", "flow-export": "/f", "query-socket": "/run/s"},
        {"service-node-port-range": "20000-22767"},
        {"flow-events": "none", "flow-sample": "0", "query-socket": ""},
    ],
)
def test_what_is_written_says_the_same_when_it_is_read(tmp_path, given):
    settings = load_settings({**GIVEN, **given}, {})
    file = tmp_path / "settings.yaml"
    file.write_text(settings_text(settings))
    assert replace(load_settings({"config": file}, {}), config=None) == settings


def test_times_are_written_for_people():
    written = yaml.safe_load(settings_text(load_settings({**GIVEN, "min-sync-period": "0.5"}, {})))
    assert (written["sync-period"], written["min-sync-period"]) == ("30s", "0.5s")
    assert "manifests" not in written

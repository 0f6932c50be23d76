# SPDX-License-Identifier: Apache-2.0
"""The agent's own code loads every settings file that the chart writes."""

from base64 import b64decode
from pathlib import Path

import pytest
import yaml

from ebpflb.config.settings import Settings, load_settings, plain_settings
from ebpflb.config.values import parse_bind_address
from ebpflb.dataplane.services.tunnel_keys import TunnelKeys
from tests.chart.harness.rendering import (
    EVERYTHING,
    Object,
    agent,
    container,
    render,
    settings_file,
)
from tests.memory_maps import memory_maps
from tests.options import SET_BY_THE_CHART

_DEFAULTS = plain_settings(load_settings({"node-name": "node1", "cgroup-root": "/"}, {}))
# One value for each option that can be given, and of each kind one that is not the default.
EVERY_OPTION: Object = {
    **{name: value for name, value in _DEFAULTS.items() if name not in SET_BY_THE_CHART},
    "attach": "clsact",
    "bind-address": "192.0.2.7",
    "cluster-cidr": ["10.244.0.0/16", "fd00::/56"],
    "conntrack-tcp-timeout-established": 86000,
    "conntrack-udp-timeout-stream": "2m30s",
    "dsr": "annotated",
    "ejection": True,
    "events": False,
    "external-ips": ["192.0.2.0/24"],
    "flow-events": ["start", "end"],
    "flow-export": "-",
    "host-devices": "eth*,bond0",
    "min-sync-period": "500ms",
    "nodeport-addresses": "primary",
    "oom-score-adj": -900,
    "protected-ports": [10250],
    "service-node-port-range": "20000-22767",
    "service-proxy-name": "ebpflb",
    "verbosity": 2,
    "watch-pods": False,
    "xdp": False,
}


def loaded(tmp_path: Path, values: Object) -> Settings:
    """The settings of an agent in the pod."""
    path = tmp_path / "config.yaml"
    path.write_text(settings_file(render(values)))
    return load_settings({"config": str(path)}, {"EBPFLB_NODE_NAME": "node1"})


# Where kube-proxy runs alongside.
PORTS: Object = {"metrics": {"port": 20249}, "healthz": {"port": 20256}}


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"config": EVERY_OPTION, **PORTS}])
def test_the_agent_accepts_the_settings_file(tmp_path: Path, values: Object) -> None:
    settings = loaded(tmp_path, values)
    assert settings.cgroup_root == Path("/run/ebpflb/cgroup")
    assert settings.manifests is None


def test_every_option_arrives_with_its_value(tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_text(yaml.safe_dump({"node-name": "node1", "cgroup-root": "/", **EVERY_OPTION}))
    wanted = plain_settings(load_settings({"config": str(path)}, {}))
    found = plain_settings(loaded(tmp_path, {"config": EVERY_OPTION, **PORTS}))
    assert {name: found[name] for name in EVERY_OPTION} == {
        name: wanted[name] for name in EVERY_OPTION
    }
    assert found["conntrack-udp-timeout-stream"] == "150s"
    assert found["host-devices"] == ["eth*", "bond0"]


@pytest.mark.parametrize(
    ("server", "host", "port"),
    [
        ({}, "", 10256),
        ({"bindAddress": "", "port": 20256}, "", 20256),
        ({"bindAddress": "192.0.2.7"}, "192.0.2.7", 10256),
        ({"bindAddress": "2001:db8::7"}, "2001:db8::7", 10256),
        ({"bindAddress": "::", "port": 1}, "::", 1),
    ],
)
def test_the_health_server_listens_where_the_values_say(
    tmp_path: Path, server: Object, host: str, port: int
) -> None:
    address = parse_bind_address(loaded(tmp_path, {"healthz": server}).healthz_bind_address)
    assert address == (host, port)


@pytest.mark.parametrize(
    ("metrics", "host", "port"),
    [
        ({}, "127.0.0.1", 10249),
        ({"port": 20249}, "127.0.0.1", 20249),
        ({"bindAddress": "192.0.2.7"}, "127.0.0.1", 10249),
        ({"enabled": True}, "", 10249),
        ({"enabled": True, "bindAddress": "2001:db8::7", "port": 20249}, "2001:db8::7", 20249),
    ],
)
def test_metrics_leave_the_node_only_when_they_are_enabled(
    tmp_path: Path, metrics: Object, host: str, port: int
) -> None:
    address = parse_bind_address(loaded(tmp_path, {"metrics": metrics}).metrics_bind_address)
    assert address == (host, port)


def test_selectors_reach_the_agent(tmp_path: Path) -> None:
    chosen = {"serviceSelector": "canary in (a, b)", "namespaceSelector": "!system", **PORTS}
    settings = loaded(tmp_path, chosen)
    assert str(settings.service_selector) == "canary in (a, b)"
    assert str(settings.namespace_selector) == "!system"
    assert loaded(tmp_path, {}).service_selector is None


@pytest.mark.parametrize("mode", ["annotated", "all"])
def test_direct_server_return_has_a_key_that_the_agent_accepts(tmp_path: Path, mode: str) -> None:
    values = {"config": {"dsr": mode}}
    (secret,) = (each for each in render(values) if each["kind"] == "Secret")
    path = tmp_path / "keys"
    path.write_bytes(b64decode(secret["data"]["keys"]))
    keys = TunnelKeys(path)
    keys.follow(memory_maps()["lb_tunnel_keys"])
    assert (keys.count, keys.trouble) == (1, "")
    again = next(each for each in render(values) if each["kind"] == "Secret")
    assert again["data"] != secret["data"], "a key that others can guess"
    assert mounted_secret(values) == secret["metadata"]["name"]
    assert loaded(tmp_path, values).dsr_key_file == Path("/etc/ebpflb/dsr/keys")


def test_a_secret_that_is_there_already_may_be_named(tmp_path: Path) -> None:
    values = {"config": {"dsr": "all"}, "dsrKeySecret": "own"}
    assert mounted_secret(values) == "own"
    assert not [each for each in render(values) if each["kind"] == "Secret"]


def test_without_direct_server_return_there_is_no_key(tmp_path: Path) -> None:
    for values in ({}, {"dsrKeySecret": "own"}, {"config": {"dsr": "off"}}):
        assert mounted_secret(values) == ""
        assert not [each for each in render(values) if each["kind"] == "Secret"]
        assert loaded(tmp_path, values).dsr_key_file is None


def mounted_secret(values: Object) -> str:
    """Where the agent looks for keys."""
    pod = agent(values)
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounted = container(pod, "ebpflb")["volumeMounts"]
    found = [volumes[each["name"]] for each in mounted if each["mountPath"] == "/etc/ebpflb/dsr"]
    return str(found[0]["secret"]["secretName"]) if found else ""

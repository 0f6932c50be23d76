# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebpflb.config.cgroup import cgroup_root
from ebpflb.config.file_version import digest
from ebpflb.config.settings import load_settings, setting
from ebpflb.config.values import BindAddress, PortRange, nearest, parse_bind_address
from ebpflb.errors import ConfigError, ProbeError

SOURCE_DEFAULTS: dict[str, Any] = {
    "manifests": Path("/m"),
    "kubeconfig": None,
    "master": "",
    "api_servers": (),
    "state_cache_max_age": 3600.0,
    "service_proxy_name": "",
    "service_selector": None,
    "namespace_selector": None,
}
FLOW_DEFAULTS: dict[str, Any] = {
    "flow_events": ("end", "refused", "dropped"),
    "flow_sample": 1,
    "flow_rate": 1000,
    "flow_history": 4096,
    "flow_export": "",
    "flow_export_max_bytes": 10485760,
    "flow_export_files": 5,
    "query_socket": Path("/run/ebpflb/agent.sock"),
}
GIVEN = {"manifests": "/m", "cgroup-root": "/cg"}


def test_defaults(monkeypatch):
    monkeypatch.setattr("os.uname", lambda: type("Names", (), {"nodename": "Node-A.Example"}))
    settings = load_settings(GIVEN, {})
    assert settings == replace(
        settings,
        **SOURCE_DEFAULTS,
        watch_pods=True,
        events=True,
        node_name="node-a.example",
        cgroup_root=Path("/cg"),
        bpffs_root=Path("/sys/fs/bpf/ebpflb"),
        host_devices=(),
        workload_devices=(),
        socket_lb="all",
        forwarding="auto",
        attach="auto",
        xdp="off",
        xdp_devices=(),
        metrics_bind_address="127.0.0.1:10249",
        metrics_services=True,
        metrics_backends=False,
        metrics_latency=False,
        metrics_clients=0,
        healthz_bind_address="0.0.0.0:10256",
        bind_address_hard_fail=False,
        log_format="text",
        verbosity=0,
        oom_score_adj=-999,
        bind_address="",
        nodeport_addresses=(),
        service_node_port_range=PortRange(30000, 32767),
        external_ips=("serve",),
        load_balancer_ips=("serve",),
        protected_ports=(22, 10250),
        localhost_nodeports=True,
        masquerade_all=False,
        scheduler="random",
        ejection=0,
        ejection_time=10.0,
        maglev_table_size=10007,
        dsr="off",
        dsr_port=6089,
        dsr_key_file=None,
        detect_local_mode="ClusterCIDR",
        cluster_cidr=(),
        pod_bridge_interface="",
        pod_interface_name_prefix="",
        sync_period=30.0,
        min_sync_period=0.0,
        conntrack_tcp_timeout_established=86400.0,
        conntrack_tcp_timeout_close_wait=3600.0,
        conntrack_udp_timeout=0.0,
        conntrack_udp_timeout_stream=0.0,
        conntrack_max_per_core=32768,
        conntrack_min=131072,
        **FLOW_DEFAULTS,
    )


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("node-name: from-file\nattach: tcx\nsocket-lb: host\n")
    environ = {"EBPFLB_NODE_NAME": "from-environment", "EBPFLB_ATTACH": "clsact", "PATH": "/bin"}
    settings = load_settings({**GIVEN, "config": str(file), "node-name": "from-flag"}, environ)
    assert settings.node_name == "from-flag"
    assert settings.attach == "clsact"
    assert settings.socket_lb == "host"


def test_the_file_may_be_named_by_the_environment_and_may_be_empty(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("")
    assert load_settings(GIVEN, {"EBPFLB_CONFIG": str(file)}).attach == "auto"


def test_off_is_off_although_yaml_takes_it_for_a_boolean(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("xdp: off")
    assert load_settings(GIVEN, {"EBPFLB_CONFIG": str(file)}).xdp == "off"
    file.write_text("attach: off")
    with pytest.raises(ConfigError, match="attach: False: unknown value"):
        load_settings(GIVEN, {"EBPFLB_CONFIG": str(file)})


@pytest.mark.parametrize(
    "value", ["eth*, bond0,,eth*", ("eth*", "bond0"), ["eth*,bond0"], ("eth*,", "bond0,eth*")]
)
def test_lists_are_repeated_or_split_at_commas(value):
    assert load_settings({**GIVEN, "host-devices": value}, {}).host_devices == ("eth*", "bond0")


def test_cidrs_are_made_canonical():
    given = {**GIVEN, "cluster-cidr": "10.1.2.3/16,FD00::1/64"}
    assert load_settings(given, {}).cluster_cidr == ("10.1.0.0/16", "fd00::/64")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("manifests", " ", "want a path"),
        ("manifests", 7, "want a string"),
        ("node-name", "Node_A", "lower-case letters"),
        ("node-name", "", "want the name of a Node"),
        ("socket-lb", "hosts", "did you mean host?"),
        ("attach", "xdp", "known: auto, clsact, tcx"),
        ("dsr", "on", "known: all, annotated, off"),
        ("dsr-port", "65536", "want a number from 1 to 65535"),
        ("metrics-bind-address", "10249", "want IP:PORT"),
        ("metrics-bind-address", "127.0.0.1:65536", "a port from 1 to 65535"),
        ("healthz-bind-address", "::1:80", "stands in brackets"),
        ("healthz-bind-address", "localhost:80", "want an IP address"),
        ("cluster-cidr", "10.0.0.0/33", "does not appear to be"),
        ("host-devices", {"a": 1}, "want a string"),
        ("log-format", "yaml", "known: json, text"),
        ("verbosity", "-1", "want a number"),
        ("verbosity", True, "want a number"),
        ("bind-address", "node1", "does not appear to be"),
        ("master", "api:6443", "want a URL"),
        ("nodeport-addresses", "primary,al", "not 'al' (did you mean all?)"),
        ("service-proxy-name", "a/b", "want at most 63 letters"),
        ("service-node-port-range", "32767-30000", "want two ports, as in 30000-32767"),
        ("service-node-port-range", "30000", "want two ports"),
        ("service-node-port-range", "0-100", "want two ports"),
        ("service-node-port-range", "30000-65536", "want two ports"),
        ("service-node-port-range", "80-64536", "leaves 1000 ports from 1024 on"),
        ("nodeport-addresses", "10.0.0.0/33", "want CIDRs or the words"),
        ("detect-local-mode", "ClusterCidr", "did you mean ClusterCIDR"),
        ("sync-period", "30x", "want a duration from 0, as in 30s"),
        ("sync-period", "0s", "greater than 0"),
        ("min-sync-period", "-1s", "want a duration"),
        ("oom-score-adj", "1001", "from -1000 to 1000"),
        ("flow-events", "end,drops", "unknown event 'drops' (did you mean dropped?)"),
        ("flow-events", "none,end", "unknown event 'none'"),
        ("flow-sample", "-1", "from 0 to"),
        ("flow-history", "0", "from 1 to 1048576"),
        ("metrics-clients", "-1", "from 0 to 100000"),
        ("flow-export-files", "0", "from 1 to"),
        ("query-socket", "/" + 107 * "a", "the path has 108 bytes"),
        ("masquerade-all", "maybe", "want true or false"),
        ("scheduler", "rr", "unknown value"),
        ("maglev-table-size", 10000, "want a prime, as 10007"),
        ("maglev-table-size", "65520", "want a prime, as 65521"),
        ("maglev-table-size", 65522, "want a number from 2 to 65521"),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_reason(name, value, words):
    with pytest.raises(ConfigError, match=r"^--") as caught:
        load_settings({**GIVEN, name: value}, {})
    assert str(caught.value).startswith(f"--{name}: {value!r}: ")
    assert words in str(caught.value)


def test_errors_say_where_the_value_stands(tmp_path):
    with pytest.raises(ConfigError, match=r"^EBPFLB_ATTACH: 'x': unknown value"):
        load_settings(GIVEN, {"EBPFLB_ATTACH": "x"})
    file = tmp_path / "settings.yaml"
    file.write_text("attach: 7")
    with pytest.raises(ConfigError, match=f"^{file}: attach: 7: unknown value"):
        load_settings({**GIVEN, "config": file}, {})


def test_without_manifests_the_api_is_the_source():
    assert load_settings({"cgroup-root": "/cg"}, {}).manifests is None


def test_an_unknown_variable_is_a_misspelling():
    with pytest.raises(ConfigError, match=r"EBPFLB_NODENAME .did you mean EBPFLB_NODE_NAME"):
        load_settings(GIVEN, {"EBPFLB_NODENAME": "a"})


@pytest.mark.parametrize(
    "name",
    [
        "EBPFLB_SERVICE_HOST",
        "EBPFLB_SERVICE_PORT",
        "EBPFLB_SERVICE_PORT_METRICS",
        "EBPFLB_PORT",
        "EBPFLB_PORT_10249_TCP",
        "EBPFLB_PORT_10249_TCP_ADDR",
        "EBPFLB_METRICS_SERVICE_HOST",
    ],
)
def test_what_kubernetes_puts_there_for_a_service_called_ebpflb_is_none(name):
    load_settings(GIVEN, {name: "10.96.0.1"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node_name: a", "unknown key 'node_name' .did you mean node-name"),
        ("7: a", "unknown key 7 "),
        ("[a]", "want a mapping"),
        ("a: [", "while parsing"),
        ("node-name: a\n---\nattach: tcx", "want one document, found 2"),
        ("v: 1\nverbosity: 2", "verbosity: the same setting as .*: v: give only one"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, words):
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load_settings({"config": file}, {})
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"settings file .*: No such file"):
        load_settings({"config": tmp_path / "x"}, {})
    with pytest.raises(ConfigError, match=r"settings file .*: Is a directory"):
        load_settings({"config": tmp_path}, {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"settings file .*/binary: 'utf-8' codec"):
        load_settings({"config": tmp_path / "binary"}, {})
    (tmp_path / "deep").write_text("a: " + "[" * 2000)
    with pytest.raises(ConfigError, match=r"\Asettings file .*/deep: maximum recursion [^\n]+\Z"):
        load_settings({"config": tmp_path / "deep"}, {})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sync-period": "1s", "min-sync-period": "2s"}, "no more than the sync period"),
        ({"detect-local-mode": "BridgeInterface"}, "--pod-bridge-interface is needed"),
        ({"detect-local-mode": "InterfaceNamePrefix"}, "--pod-interface-name-prefix is needed"),
    ],
)
def test_settings_that_do_not_go_together_are_named(given, words):
    with pytest.raises(ConfigError, match=words):
        load_settings({**GIVEN, **given}, {})


@pytest.mark.parametrize("name", ["hostname-override", "node-name"])
def test_both_names_of_a_setting_work_everywhere(tmp_path, name):
    file = tmp_path / "settings.yaml"
    file.write_text(f"{name}: from-file")
    variable = "EBPFLB_" + name.upper().replace("-", "_")
    assert load_settings({**GIVEN, name: "from-flag"}, {}).node_name == "from-flag"
    assert load_settings(GIVEN, {variable: "from-variable"}).node_name == "from-variable"
    assert load_settings({**GIVEN, "config": file}, {}).node_name == "from-file"


def test_two_names_of_one_setting_are_one_too_many():
    given = {**GIVEN, "node-name": "a", "hostname-override": "b"}
    with pytest.raises(ConfigError, match=r"^--hostname-override: the same .* --node-name"):
        load_settings(given, {})


def test_the_file_that_was_read_is_remembered_with_its_content(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("attach: tcx")
    version = load_settings({**GIVEN, "config": file}, {}).config
    assert version is not None
    assert version == (file, digest(b"attach: tcx"))


@pytest.mark.parametrize(
    ("name", "value", "is_told"),
    [
        ("cluster-cidr", "10.0.0.0/8", True),
        ("cluster-cidr", "", False),
        ("detect-local-mode", "NodeCIDR", True),
        ("detect-local-mode", "ClusterCIDR", False),
        ("pod-bridge-interface", "cni0", True),
        ("pod-interface-name-prefix", "veth", True),
    ],
)
def test_what_has_no_effect_is_reported_unless_it_asks_for_nothing(name, value, is_told):
    warnings: list[str] = []
    load_settings({**GIVEN, name: value}, {}, warnings.append)
    line = f"{name} has no effect: pods of this node are identified by their devices"
    assert warnings == [line] * is_told


def test_a_default_is_not_worth_a_warning():
    warnings: list[str] = []
    load_settings(GIVEN, {}, warnings.append)
    assert warnings == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        (":80", BindAddress("", 80)),
        ("127.0.0.1:1", BindAddress("127.0.0.1", 1)),
        ("[::]:65535", BindAddress("::", 65535)),
    ],
)
def test_bind_addresses(text, address):
    assert parse_bind_address(text) == address


def test_one_setting_alone_does_not_mind_the_others():
    environ = {"EBPFLB_BPFFS_ROOT": "/e", "EBPFLB_ATTACH": "x", "EBPFLB_X": ""}
    assert setting("bpffs-root", None, environ) == Path("/e")
    assert setting("bpffs-root", "/f", environ) == Path("/f")


def test_cgroup_v2_is_found_where_it_is_mounted(tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /a\\040b cgroup2 rw 0 0\n"
        "cgroup2 /second cgroup2 rw 0 0\n"
    )
    assert cgroup_root(mounts) == "/a b"
    mounts.write_text("proc /proc proc rw 0 0\n")
    with pytest.raises(ProbeError, match=r"cgroup v2 is not mounted: .*--cgroup-root"):
        cgroup_root(mounts)


def test_the_nearest_words_are_offered_else_all():
    assert nearest("tcp", ["tcx", "clsact"]) == " (did you mean tcx?)"
    assert nearest("?", ["b", "a"]) == " (known: a, b)"


def test_the_default_of_the_cgroup_is_looked_up_only_when_needed(monkeypatch):
    monkeypatch.setattr(cgroup_root, "__defaults__", (Path("/nowhere"),))
    load_settings(GIVEN, {})

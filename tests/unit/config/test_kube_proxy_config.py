# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import yaml

from ebpflb.config.kube_proxy_config import FIELDS, SECTIONS
from ebpflb.config.options import OPTIONS
from ebpflb.config.settings import load_settings
from ebpflb.errors import ConfigError

FOLDER = Path(__file__).parent / "kube_proxy"
GIVEN = {"manifests": "/m", "cgroup-root": "/cg", "node-name": "a"}
HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


@pytest.fixture
def load(tmp_path):
    """Load settings with a file of this content; the settings, and the warnings by their place."""

    def run(text, flags=(), environ=None):
        file = tmp_path / "config.conf"
        file.write_text(text)
        warnings: list[str] = []
        given = {**GIVEN, **dict(flags), "config": file}
        settings = load_settings(given, environ or {}, warnings.append)
        return settings, [
            line.replace(f"{file}: ", "").replace(f"{file}", "F") for line in warnings
        ]

    return run


def leaves(content, prefix=""):
    for key, value in content.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def ignored(warnings):
    return [line.split(" is ")[0] for line in warnings if " is ignored" in line]


def test_every_field_that_kube_proxy_writes_is_known():
    written = set(leaves(yaml.safe_load((FOLDER / "written.yaml").read_text())))
    optional = {"featureGates", "logging.vmodule"}
    assert written == {*FIELDS, "apiVersion", "kind"} - optional


def test_each_field_gives_a_setting_or_has_a_reason_why_not():
    names = {option.name for option in OPTIONS}
    for path, field in FIELDS.items():
        assert bool(field.option) != bool(field.reason), path
        assert not field.option or field.option in names, path
    assert {"logging", "logging.options", "logging.options.text", "conntrack"} <= SECTIONS


def test_what_kube_proxy_writes_are_our_defaults(load):
    settings, warnings = load((FOLDER / "written.yaml").read_text())
    usual = load_settings(GIVEN, {})
    changed = {
        name
        for name in usual.__slots__
        if getattr(settings, name) != getattr(usual, name) and name != "config"
    }
    assert changed == {"bind_address", "min_sync_period"}
    assert (settings.bind_address, settings.min_sync_period) == ("0.0.0.0", 1)
    assert ignored(warnings) == []


def test_kubeadms_file_works_as_it_is(load):
    settings, warnings = load((FOLDER / "kubeadm.yaml").read_text())
    assert settings.kubeconfig == Path("/var/lib/kube-proxy/kubeconfig.conf")
    assert settings.cluster_cidr == ("10.244.0.0/16",)
    assert (settings.sync_period, settings.min_sync_period) == (30, 0)
    assert settings.conntrack_tcp_timeout_established == 86400
    assert settings.localhost_nodeports is True
    assert ignored(warnings) == []


def test_fields_become_settings(load):
    text = """
hostnameOverride: Node-B
bindAddress: fd00::1
bindAddressHardFail: true
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: cbr0}
clusterCIDR: 10.0.0.0/8,fd00::/48
nodePortAddresses: [primary, 192.168.0.0/16, localhost]
oomScoreAdj: 0
iptables: {masqueradeAll: true, localhostNodePorts: false, syncPeriod: 1m, minSyncPeriod: 2s}
conntrack: {tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 2h, udpTimeout: 5s, min: 200000}
logging: {format: json, verbosity: 3}
"""
    given = {name: value for name, value in GIVEN.items() if name != "node-name"}
    file_only, _ = load(HEAD + text, {"node-name": "a"})
    assert file_only.node_name == "a"
    assert (file_only.healthz_bind_address, file_only.metrics_bind_address) == (
        "[::]:10256",
        "[::1]:10249",
    )
    assert file_only.detect_local_mode == "BridgeInterface"
    assert file_only.pod_bridge_interface == "cbr0"
    assert file_only.cluster_cidr == ("10.0.0.0/8", "fd00::/48")
    assert file_only.nodeport_addresses == ("primary", "192.168.0.0/16", "localhost")
    assert (file_only.oom_score_adj, file_only.masquerade_all) == (0, True)
    assert (file_only.localhost_nodeports, file_only.bind_address_hard_fail) == (False, True)
    assert (file_only.sync_period, file_only.min_sync_period) == (60, 2)
    assert file_only.conntrack_tcp_timeout_established == 0
    assert (file_only.conntrack_tcp_timeout_close_wait, file_only.conntrack_udp_timeout) == (
        7200,
        5,
    )
    assert (file_only.conntrack_min, file_only.conntrack_max_per_core) == (200000, 32768)
    assert (file_only.log_format, file_only.verbosity) == ("json", 3)
    assert load_settings({**given, "config": file_only.config.path}, {}).node_name == "node-b"


@pytest.mark.parametrize(
    ("mode", "seconds", "masquerade", "others"),
    [
        ("", 11, False, ["ipvs.syncPeriod", "nftables.masqueradeAll", "nftables.syncPeriod"]),
        ("nftables", 33, True, ["mode", "iptables.syncPeriod", "ipvs.syncPeriod"]),
        (
            "ipvs",
            22,
            False,
            ["mode", "iptables.syncPeriod", "nftables.masqueradeAll", "nftables.syncPeriod"],
        ),
    ],
)
def test_periods_and_masquerading_are_those_of_the_mode(load, mode, seconds, masquerade, others):
    settings, warnings = load(
        f"{HEAD}mode: '{mode}'\niptables: {{syncPeriod: 11s}}\nipvs: {{syncPeriod: 22s}}\n"
        "nftables: {masqueradeAll: true, syncPeriod: 33s}\n"
    )
    assert (settings.sync_period, settings.masquerade_all) == (seconds, masquerade)
    assert ignored(warnings) == others


def test_flags_and_variables_for_what_the_file_decides_are_ignored(load):
    flags = {"node-name": "b", "cluster-cidr": "10.0.0.0/8", "host-devices": "eth7"}
    environ = {"EBPFLB_SYNC_PERIOD": "40s", "EBPFLB_LOG_FORMAT": "json", "EBPFLB_V": "4"}
    settings, warnings = load(f"{HEAD}hostnameOverride: c\nclusterCIDR: ''\n", flags, environ)
    assert (settings.node_name, settings.log_format, settings.verbosity) == ("b", "json", 4)
    assert settings.host_devices == ("eth7",)
    assert (settings.cluster_cidr, settings.sync_period) == ((), 30)
    assert warnings == [
        "--cluster-cidr is ignored: F overrides it",
        "EBPFLB_SYNC_PERIOD is ignored: F overrides it",
    ]


def test_kube_proxys_gate_for_external_ips_is_obeyed(load):
    gates = f"{HEAD}featureGates: {{AllowServiceExternalIPs: false}}\n"
    settings, warnings = load(gates)
    assert (settings.external_ips, ignored(warnings)) == (("ignore",), [])
    assert load(gates, {"external-ips": "not-nodes"})[0].external_ips == ("not-nodes",)
    settings, warnings = load(f"{HEAD}featureGates:\n")
    assert (settings.external_ips, ignored(warnings)) == (("serve",), [])


def test_unknown_fields_and_those_without_effect_are_reported(load):
    _, warnings = load(
        f"{HEAD}new: 1\niptables: {{masqueradeBit: 15, other: {{}}}}\n"
        "featureGates: {A: true}\nlogging: {vmodule: [{filePattern: a, verbosity: 1}]}\n"
    )
    assert warnings == [
        "unknown field new is ignored",
        "unknown field iptables.other is ignored",
        "iptables.masqueradeBit is ignored: what is masqueraded needs no mark",
        "featureGates is ignored: kube-proxy's feature gates do not exist here, "
        "except AllowServiceExternalIPs",
        "logging.vmodule is ignored: all modules have the same verbosity",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("iptables: 7", "iptables: 7: want a mapping"),
        ("hostnameOverride: 7", "hostnameOverride: 7: want a string"),
        ("oomScoreAdj: '5'", "oomScoreAdj: '5': want a whole number"),
        ("oomScoreAdj: 1001", "oomScoreAdj: 1001: want a number from -1000"),
        ("bindAddressHardFail: 'true'", "bindAddressHardFail: 'true': want true or false"),
        ("iptables: {syncPeriod: 30}", "iptables.syncPeriod: 30: want a duration, a string"),
        ("iptables: {syncPeriod: 30x}", "iptables.syncPeriod: '30x': want a duration"),
        ("nodePortAddresses: 10.0.0.0/8", "nodePortAddresses: '10.0.0.0/8': want a list"),
        ("nodePortAddresses: [7]", "nodePortAddresses: [7]: want a string"),
        ("nodePortAddresses: [primary, any]", "want CIDRs or the words localhost, all"),
        ("detectLocalMode: Nodes", "detectLocalMode: 'Nodes': unknown value"),
        ("mode: kernelspace", "mode: 'kernelspace': unknown value (known: iptables"),
        ("featureGates: {A: 'yes'}", "featureGates: {'A': 'yes'}: want true or false"),
        ("clientConnection: {qps: '5'}", "clientConnection.qps: '5': want a number"),
        ("logging: {flushFrequency: true}", "logging.flushFrequency: True: want a whole number"),
        ("logging: {format: xml}", "logging.format: 'xml': unknown value"),
        ("healthzBindAddress: '10256'", "healthzBindAddress: '10256': want IP:PORT"),
        ("bindAddress: node1", "bindAddress: 'node1': 'node1' does not appear"),
    ],
)
def test_a_wrong_type_or_value_is_one_line_with_file_and_field(load, line, words):
    with pytest.raises(ConfigError) as caught:
        load(HEAD + line)
    assert f"config.conf: {line.split(':')[0]}" in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD.replace("v1alpha1", "v1"), "want kubeproxy.config.k8s.io/v1alpha1"),
        ("apiVersion: v1\nkind: ConfigMap\ndata: {}\n", "want the text of its key config.conf"),
        ("kind: KubeletConfiguration\n", "want one KubeProxyConfiguration, found 0"),
        (f"{HEAD}---\n{HEAD}", "want one KubeProxyConfiguration, found 2"),
        (f"{HEAD}---\n[]\n", "want a mapping"),
    ],
)
def test_another_file_of_kubernetes_is_an_error(load, text, words):
    with pytest.raises(ConfigError, match=words):
        load(text)


def test_one_document_of_kubeadms_many_is_enough(load):
    text = f"---\n---\n{HEAD}oomScoreAdj: 5\n---\nkind: ClusterConfiguration\n"
    settings, warnings = load(text)
    assert settings.oom_score_adj == 5
    assert warnings == [
        "a document of kind ClusterConfiguration is ignored: it is not a KubeProxyConfiguration"
    ]


def test_an_empty_section_says_nothing(load):
    settings, warnings = load(f"{HEAD}iptables: null\nlogging: {{options: {{json: null}}}}\n")
    assert (settings.sync_period, warnings) == (30, [])


@pytest.mark.parametrize(
    ("name", "scheduler", "told"),
    [
        ("rr", "round-robin", []),
        ("wrr", "round-robin", []),
        ("lc", "least-connections", []),
        ("wlc", "least-connections", []),
        (
            "sed",
            "least-connections",
            ["ipvs.scheduler: 'sed' is not available, using least-connections"],
        ),
        ("sh", "source-hash", []),
        ("mh", "maglev", []),
        ("dh", "source-hash", ["ipvs.scheduler: 'dh' is not available, using source-hash"]),
        ("ovf", "random", ["ipvs.scheduler: 'ovf' is not available, using random"]),
        ("''", "random", []),
    ],
)
def test_the_scheduler_of_ipvs_is_understood(load, name, scheduler, told):
    settings, warnings = load(f"{HEAD}mode: ipvs\nipvs: {{scheduler: {name}}}\n")
    assert settings.scheduler == scheduler
    assert [line for line in warnings if "scheduler" in line] == told


def test_the_scheduler_of_another_mode_does_not_count(load):
    settings, warnings = load(f"{HEAD}mode: iptables\nipvs: {{scheduler: rr}}\n")
    assert settings.scheduler == "random"
    assert "ipvs.scheduler is ignored: the mode is iptables" in warnings


def test_a_flag_for_the_scheduler_counts_beside_the_file(load):
    flags = {"scheduler": "random"}
    assert load(f"{HEAD}mode: ipvs\nipvs: {{scheduler: rr}}\n", flags)[0].scheduler == "random"

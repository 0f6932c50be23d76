# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.config.kube_proxy_flags import DEPRECATED_PORTS, IGNORED, SWITCHES, translate
from ebpflb.config.options import OPTIONS
from ebpflb.config.settings import load_settings
from ebpflb.errors import ConfigError

GIVEN = {"manifests": "/m", "cgroup-root": "/cg"}
# Every flag of kube-proxy 1.36 on Linux.
FLAGS = """
bind-address bind-address-hard-fail cleanup cluster-cidr config config-sync-period
conntrack-max-per-core conntrack-min conntrack-tcp-be-liberal conntrack-tcp-timeout-close-wait
conntrack-tcp-timeout-established conntrack-udp-timeout conntrack-udp-timeout-stream
detect-local-mode feature-gates healthz-bind-address healthz-port hostname-override init-only
iptables-localhost-nodeports iptables-masquerade-bit iptables-min-sync-period iptables-sync-period
ipvs-exclude-cidrs ipvs-min-sync-period ipvs-scheduler ipvs-strict-arp ipvs-sync-period
ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout kube-api-burst kube-api-content-type
kube-api-qps kubeconfig log-flush-frequency log-json-info-buffer-size log-json-split-stream
log-text-info-buffer-size log-text-split-stream logging-format masquerade-all master
metrics-bind-address metrics-port nodeport-addresses oom-score-adj pod-bridge-interface
pod-interface-name-prefix profiling proxy-mode show-hidden-metrics-for-version v vmodule
write-config-to
"""


def settings_and_warnings(**flags):
    warnings: list[str] = []
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    return load_settings({**GIVEN, **given}, {}, warnings.append), warnings


def test_every_flag_of_kube_proxy_is_known():
    known = {name for option in OPTIONS for name in option.names}
    known |= {*IGNORED, *DEPRECATED_PORTS, "config", "cleanup", "init-only", "write-config-to"}
    assert not [name for name in FLAGS.split() if name not in known]


def test_no_flag_is_a_setting_and_ignored():
    names = {name for option in OPTIONS for name in option.names}
    assert not names & IGNORED.keys()
    assert IGNORED.keys() >= SWITCHES


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_each_ignored_flag_is_reported_once_with_its_reason(name):
    warnings: list[str] = []
    value = "ipvs" if name == "proxy-mode" else "?"
    assert translate({name: value, "attach": "tcx"}, warnings.append) == {"attach": "tcx"}
    assert warnings == [f"--{name} is ignored: {IGNORED[name]}"]


def test_a_proxy_mode_that_does_not_exist_is_an_error():
    with pytest.raises(ConfigError, match=r"^--proxy-mode: 'nft': .*did you mean nftables"):
        settings_and_warnings(proxy_mode="nft")


@pytest.mark.parametrize(
    ("flags", "seconds", "ignored"),
    [
        ({"iptables-sync-period": "40s"}, 40, []),
        ({"iptables-sync-period": "40s", "proxy-mode": "nftables"}, 40, ["proxy-mode"]),
        ({"ipvs-sync-period": "40s"}, 30, ["ipvs-sync-period"]),
        (
            {"ipvs-sync-period": "40s", "iptables-sync-period": "50s", "proxy-mode": "ipvs"},
            40,
            ["iptables-sync-period", "proxy-mode"],
        ),
    ],
)
def test_periods_are_those_of_the_mode(flags, seconds, ignored):
    settings, warnings = settings_and_warnings(**flags)
    assert settings.sync_period == seconds
    assert [line.split()[0][2:] for line in warnings if "is ignored" in line] == ignored


@pytest.mark.parametrize(
    ("flags", "metrics", "healthz"),
    [
        ({"metrics-port": "0"}, "", "0.0.0.0:10256"),
        ({"healthz-port": "0"}, "127.0.0.1:10249", ""),
        ({"healthz-port": "0", "healthz-bind-address": "10.0.0.1:1"}, "127.0.0.1:10249", ""),
        ({"metrics-port": "9"}, "127.0.0.1:9", "0.0.0.0:10256"),
        ({"metrics-port": "9", "metrics-bind-address": "::1"}, "[::1]:9", "0.0.0.0:10256"),
        ({"metrics-port": "9", "metrics-bind-address": "[::1]:8"}, "[::1]:8", "0.0.0.0:10256"),
    ],
)
def test_ports_alone_are_deprecated_but_work(flags, metrics, healthz):
    settings, warnings = settings_and_warnings(**flags)
    assert (settings.metrics_bind_address, settings.healthz_bind_address) == (metrics, healthz)
    assert any("is deprecated: use --" in line for line in warnings)


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none(port):
    with pytest.raises(ConfigError, match=rf"^--metrics-port: '{port}': want a number from 0"):
        settings_and_warnings(metrics_port=port)


@pytest.mark.parametrize(
    ("gates", "served", "told"),
    [
        ("AllowServiceExternalIPs=false", "ignore", None),
        (" AllowServiceExternalIPs = F ,", "ignore", None),
        ("AllowServiceExternalIPs=true", "serve", None),
        ("AllAlpha=true", "serve", "--feature-gates"),
        ("AllAlpha=true,AllowServiceExternalIPs=0,B=x", "ignore", "--feature-gates: AllAlpha, B"),
    ],
)
def test_kube_proxys_gate_for_external_ips_is_obeyed(gates, served, told):
    settings, warnings = settings_and_warnings(feature_gates=gates)
    assert settings.external_ips == (served,)
    ignored = [line.split(" is ignored: ")[0] for line in warnings if "gates" in line]
    assert ignored == ([told] if told else [])


def test_the_option_for_external_ips_comes_before_the_gate():
    gate = "AllowServiceExternalIPs=false"
    settings, _ = settings_and_warnings(feature_gates=gate, external_ips="192.0.2.0/24")
    assert settings.external_ips == ("192.0.2.0/24",)


def test_a_gate_that_is_neither_on_nor_off_is_an_error():
    with pytest.raises(ConfigError, match=r"^--feature-gates: AllowServiceExternalIPs: 'x': want"):
        settings_and_warnings(feature_gates="AllowServiceExternalIPs=x")


def test_the_usual_command_line_of_a_distribution_works():
    settings, warnings = settings_and_warnings(
        hostname_override="Node1",
        kubeconfig="/var/lib/kube-proxy/kubeconfig",
        cluster_cidr="10.42.0.0/16",
        conntrack_max_per_core="0",
        proxy_mode="iptables",
        logging_format="json",
        v="2",
    )
    assert (settings.node_name, settings.log_format, settings.verbosity) == ("node1", "json", 2)
    assert str(settings.kubeconfig) == "/var/lib/kube-proxy/kubeconfig"
    assert settings.cluster_cidr == ("10.42.0.0/16",)
    assert [line for line in warnings if "ignored" in line] == [
        f"--proxy-mode is ignored: {IGNORED['proxy-mode']}"
    ]


def test_the_scheduler_of_ipvs_is_understood_in_that_mode_alone():
    settings, warnings = settings_and_warnings(proxy_mode="ipvs", ipvs_scheduler="rr")
    assert settings.scheduler == "round-robin"
    assert not [line for line in warnings if "scheduler" in line]
    settings, warnings = settings_and_warnings(proxy_mode="ipvs", ipvs_scheduler="dh")
    assert settings.scheduler == "source-hash"
    assert "--ipvs-scheduler: 'dh' is not available, using source-hash" in warnings
    settings, warnings = settings_and_warnings(ipvs_scheduler="rr")
    assert settings.scheduler == "random"
    assert "--ipvs-scheduler is ignored: the proxy mode is not ipvs" in warnings


def test_a_scheduler_named_itself_goes_before_that_of_ipvs():
    flags = {"proxy_mode": "ipvs", "ipvs_scheduler": "rr", "scheduler": "random"}
    assert settings_and_warnings(**flags)[0].scheduler == "random"

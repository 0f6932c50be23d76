# SPDX-License-Identifier: Apache-2.0
"""Every field of KubeProxyConfiguration v1alpha1: its type, and what it sets here, or why nothing.

Types and defaults are those of k8s.io/kube-proxy/config/v1alpha1.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from ebpflb.config import kube_proxy_flags as why
from ebpflb.config import values


class Field(NamedTuple):
    """A field. option: the setting it gives, empty for one that is ignored for a reason.

    check raises ValueError for a wrong type and returns what is compared with `usual`, kube-proxy's
    default: a field that has it asks for nothing. zero_counts: 0 is a value, not its absence.
    asks_if_usual: the setting's default is another one, and kube-proxy's is to be obeyed.
    """

    check: Callable[[object], object]
    option: str = ""
    reason: str = ""
    usual: object = None
    zero_counts: bool = False
    asks_if_usual: bool = True


def _of_type(want: str, *types: type) -> Callable[[object], object]:
    def check(value: object) -> object:
        if not isinstance(value, types) or isinstance(value, bool) != (bool in types):
            raise ValueError(f"want {want}")
        return value

    return check


_string = _of_type("a string", str)
_duration_text = _of_type("a duration, a string as in 30s or 1m0s", str)
_boolean = _of_type("true or false", bool)
_number = _of_type("a whole number", int)
_decimal = _of_type("a number", int, float)
_list = _of_type("a list", list)
_mapping = _of_type("a mapping", dict)
_quantity = _of_type("a quantity, as in 64Ki", str, int)


def _duration(value: object) -> object:
    return values.duration(_duration_text(value))


def _flush_frequency(value: object) -> object:
    """A duration, or nanoseconds as older versions wrote it."""
    return cast(int, _number(value)) / 1e9 if not isinstance(value, str) else _duration(value)


def _strings(value: object) -> object:
    return [_string(each) for each in cast(list[object], _list(value))]


def _gates(value: object) -> object:
    return {name: _boolean(on) for name, on in cast(dict[object, object], _mapping(value)).items()}


def _modules(value: object) -> object:
    return [_mapping(each) for each in cast(list[object], _list(value))]


def _mode(value: object) -> object:
    return values.choice(*why.MODES)(value) if value else ""


_NO_WINDOWS = "there is nothing for Windows"

FIELDS: Mapping[str, Field] = {
    "featureGates": Field(_gates, reason=why.NO_GATES),
    "clientConnection.kubeconfig": Field(_string, "kubeconfig"),
    "clientConnection.acceptContentTypes": Field(_string, reason=why.JSON_ONLY),
    "clientConnection.contentType": Field(
        _string, reason=why.JSON_ONLY, usual="application/vnd.kubernetes.protobuf"
    ),
    "clientConnection.qps": Field(_decimal, reason=why.NO_PACE, usual=5),
    "clientConnection.burst": Field(_number, reason=why.NO_PACE, usual=10),
    "logging.format": Field(_string, "log-format"),
    "logging.flushFrequency": Field(_flush_frequency, reason=why.ONE_STREAM, usual=5.0),
    "logging.verbosity": Field(_number, "verbosity"),
    "logging.vmodule": Field(_modules, reason=why.ONE_VERBOSITY),
    "logging.options.text.splitStream": Field(_boolean, reason=why.ONE_STREAM),
    "logging.options.text.infoBufferSize": Field(_quantity, reason=why.ONE_STREAM, usual="0"),
    "logging.options.json.splitStream": Field(_boolean, reason=why.ONE_STREAM),
    "logging.options.json.infoBufferSize": Field(_quantity, reason=why.ONE_STREAM, usual="0"),
    "hostnameOverride": Field(_string, "node-name"),
    "bindAddress": Field(_string, "bind-address"),
    "healthzBindAddress": Field(_string, "healthz-bind-address"),
    "metricsBindAddress": Field(_string, "metrics-bind-address"),
    "bindAddressHardFail": Field(_boolean, "bind-address-hard-fail"),
    "enableProfiling": Field(_boolean, reason=why.NO_PROFILING),
    "showHiddenMetricsForVersion": Field(_string, reason=why.NO_HIDDEN),
    "mode": Field(_mode, reason=why.ONE_MODE),
    "iptables.masqueradeBit": Field(_number, reason=why.NO_MARKS, usual=14),
    "iptables.masqueradeAll": Field(_boolean, "masquerade-all"),
    "iptables.localhostNodePorts": Field(_boolean, "localhost-nodeports", zero_counts=True),
    "iptables.syncPeriod": Field(_duration, "sync-period", usual=30.0),
    "iptables.minSyncPeriod": Field(_duration, "min-sync-period", usual=1.0),
    "ipvs.syncPeriod": Field(_duration, "sync-period", usual=30.0),
    "ipvs.minSyncPeriod": Field(_duration, "min-sync-period"),
    "ipvs.scheduler": Field(_string, reason=why.NO_IPVS),
    "ipvs.excludeCIDRs": Field(_strings, reason=why.NO_IPVS),
    "ipvs.strictARP": Field(_boolean, reason=why.NO_IPVS),
    "ipvs.tcpTimeout": Field(_duration, reason=why.NO_IPVS),
    "ipvs.tcpFinTimeout": Field(_duration, reason=why.NO_IPVS),
    "ipvs.udpTimeout": Field(_duration, reason=why.NO_IPVS),
    "nftables.masqueradeBit": Field(_number, reason=why.NO_MARKS, usual=14),
    "nftables.masqueradeAll": Field(_boolean, "masquerade-all"),
    "nftables.syncPeriod": Field(_duration, "sync-period", usual=30.0),
    "nftables.minSyncPeriod": Field(_duration, "min-sync-period", usual=1.0),
    "winkernel.networkName": Field(_string, reason=_NO_WINDOWS),
    "winkernel.sourceVip": Field(_string, reason=_NO_WINDOWS),
    "winkernel.enableDSR": Field(_boolean, reason=_NO_WINDOWS),
    "winkernel.rootHnsEndpointName": Field(_string, reason=_NO_WINDOWS),
    "winkernel.forwardHealthCheckVip": Field(_boolean, reason=_NO_WINDOWS),
    "detectLocalMode": Field(_string, "detect-local-mode"),
    "detectLocal.bridgeInterface": Field(_string, "pod-bridge-interface"),
    "detectLocal.interfaceNamePrefix": Field(_string, "pod-interface-name-prefix"),
    "clusterCIDR": Field(_string, "cluster-cidr"),
    "nodePortAddresses": Field(_strings, "nodeport-addresses"),
    "oomScoreAdj": Field(_number, "oom-score-adj", zero_counts=True),
    "conntrack.maxPerCore": Field(
        _number, "conntrack-max-per-core", usual=32768, zero_counts=True, asks_if_usual=False
    ),
    "conntrack.min": Field(
        _number, "conntrack-min", usual=131072, zero_counts=True, asks_if_usual=False
    ),
    "conntrack.tcpEstablishedTimeout": Field(
        _duration, "conntrack-tcp-timeout-established", zero_counts=True
    ),
    "conntrack.tcpCloseWaitTimeout": Field(
        _duration, "conntrack-tcp-timeout-close-wait", zero_counts=True
    ),
    "conntrack.tcpBeLiberal": Field(_boolean, reason=why.ALWAYS_LIBERAL),
    "conntrack.udpTimeout": Field(_duration, "conntrack-udp-timeout"),
    "conntrack.udpStreamTimeout": Field(_duration, "conntrack-udp-timeout-stream"),
    "configSyncPeriod": Field(_duration, reason=why.NO_RELIST, usual=900.0),
    "portRange": Field(_string, reason="kube-proxy ignores it too"),
    "windowsRunAsService": Field(_boolean, reason=_NO_WINDOWS),
}

# The settings that such a file decides.
DECIDED = frozenset(field.option for field in FIELDS.values() if field.option)
# The mappings that fields are in: logging, logging.options, ...
SECTIONS = frozenset(
    path.rsplit(".", depth)[0] for path in FIELDS for depth in range(1, path.count(".") + 1)
)

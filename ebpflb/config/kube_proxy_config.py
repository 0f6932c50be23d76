# SPDX-License-Identifier: Apache-2.0
"""KubeProxyConfiguration v1alpha1: its fields, and the settings that a document gives.

A field of the wrong type is an error, an unknown one a warning. A field that has no effect here is
a warning, too, unless it has kube-proxy's default. Types and defaults are those of
k8s.io/kube-proxy/config/v1alpha1.
"""

from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, cast

from ebpflb.config import kube_proxy_flags as why
from ebpflb.config import values
from ebpflb.config.kube_proxy_flags import MODES, Warn
from ebpflb.config.option import Given
from ebpflb.config.options import HEALTHZ_PORT, METRICS_PORT
from ebpflb.errors import SettingError


class Field(NamedTuple):
    """A field. option: the setting it maps to, empty if the field is ignored, for `reason`.

    check raises ValueError for a wrong type and returns what is compared with `usual`, kube-proxy's
    default. zero_counts: 0 is a value, not its absence.
    """

    check: Callable[[object], object]
    option: str = ""
    reason: str = ""
    usual: object = None
    zero_counts: bool = False


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
    return values.OneOf(why.MODES)(value) if value else ""


_NO_WINDOWS = "Windows is not supported"

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
    "ipvs.scheduler": Field(_string, "scheduler"),
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
    "conntrack.maxPerCore": Field(_number, "conntrack-max-per-core", zero_counts=True),
    "conntrack.min": Field(_number, "conntrack-min", zero_counts=True),
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

# The settings that such a file controls.
DECIDED = frozenset(field.option for field in FIELDS.values() if field.option)
# The mappings that contain fields: logging, logging.options, ...
SECTIONS = frozenset(
    path.rsplit(".", depth)[0] for path in FIELDS for depth in range(1, path.count(".") + 1)
)


API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"

_OF_A_MODE = ("syncPeriod", "minSyncPeriod", "masqueradeAll", "scheduler")


def read_kube_proxy_config(
    file: str, content: Mapping[object, object], warn: Warn
) -> dict[str, Given]:
    """The settings that a document gives, by option name.

    Raises SettingError naming file and field for a wrong type or another apiVersion.
    """
    if content.get("apiVersion") != API_VERSION:
        raise SettingError(f"{file}: apiVersion: {content.get('apiVersion')!r}: want {API_VERSION}")
    fields = dict(_leaves(file, content, "", warn))
    mode = str(fields.get("mode") or MODES[0])
    found: dict[str, Given] = {}
    for path, value in fields.items():
        reason = FIELDS[path].reason or _other_mode(path, mode)
        if path == "featureGates":
            gates = cast(Mapping[str, object], value or {})
            found |= why.settings_of_gates(gates, f"{file}: {path}", warn)
        elif reason:
            _warn_ignored(f"{file}: {path}", FIELDS[path], value, reason, warn)
        elif not _is_empty(FIELDS[path], value):
            where = f"{file}: {path}"
            if path == "ipvs.scheduler":
                value = why.scheduler_of_ipvs(str(value), where, warn)
            found[FIELDS[path].option] = Given(value, where)
    return {**_servers(file, found), **found}


def _leaves(
    file: str, content: Mapping[object, object], prefix: str, warn: Warn
) -> Iterator[tuple[str, object]]:
    """The fields that are present, with their paths, checked for their type."""
    for key, value in content.items():
        path = f"{prefix}{key}"
        if path in SECTIONS:
            if isinstance(value, Mapping):
                yield from _leaves(file, value, f"{path}.", warn)
            elif value is not None:
                raise SettingError(f"{file}: {path}: {value!r}: want a mapping")
        elif path in FIELDS:
            yield path, _checked(file, path, value)
        elif path not in ("apiVersion", "kind"):
            warn(f"{file}: unknown field {path} is ignored")


def _checked(file: str, path: str, value: object) -> object:
    if value is None:
        return None
    try:
        FIELDS[path].check(value)
    except ValueError as error:
        raise SettingError(f"{file}: {path}: {value!r}: {error}") from error
    return value


def _is_empty(field: Field, value: object) -> bool:
    """Whether a value means the same as its absence."""
    if value is None or value in ("", [], {}):
        return True
    return not field.zero_counts and field.check(value) == 0


def _warn_ignored(where: str, field: Field, value: object, reason: str, warn: Warn) -> None:
    if not _is_empty(field, value) and field.check(value) != field.usual:
        warn(f"{where} is ignored: {reason}")


def _other_mode(path: str, mode: str) -> str:
    """Why a field of another mode than the chosen one is ignored; empty for other fields."""
    section, _, name = path.partition(".")
    if section not in MODES or name not in _OF_A_MODE:
        return ""
    # In mode ipvs, rules of iptables masquerade.
    chosen = MODES[0] if mode == "ipvs" and name == "masqueradeAll" else mode
    return "" if section == chosen else f"the mode is {mode}"


def _servers(file: str, found: Mapping[str, Given]) -> dict[str, Given]:
    """The servers' default addresses if bindAddress is IPv6: IPv6, too."""
    given = found.get("bind-address")
    try:
        is_ipv6 = given is not None and isinstance(ip_address(str(given.value)), IPv6Address)
    except ValueError:
        is_ipv6 = False
    if not is_ipv6:
        return {}
    where = f"{file}: bindAddress"
    return {
        "healthz-bind-address": Given(f"[::]:{HEALTHZ_PORT}", where),
        "metrics-bind-address": Given(f"[::1]:{METRICS_PORT}", where),
    }

# SPDX-License-Identifier: Apache-2.0
"""Reading a KubeProxyConfiguration, as kubeadm makes it: strict about types, lenient with the rest.

What has no effect here is told once, unless it is kube-proxy's own default and so asks for nothing.
"""

from collections.abc import Iterator, Mapping
from ipaddress import IPv6Address, ip_address

from ebpflb.config.kube_proxy_fields import FIELDS, SECTIONS, Field
from ebpflb.config.kube_proxy_flags import MODES, Warn
from ebpflb.config.options import HEALTHZ_PORT, METRICS_PORT, Given
from ebpflb.errors import ConfigError

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"

_OF_A_MODE = ("syncPeriod", "minSyncPeriod", "masqueradeAll")


def read_kube_proxy_config(
    file: str, content: Mapping[object, object], warn: Warn
) -> dict[str, Given]:
    """The settings that a document gives, by option name.

    Raises ConfigError naming file and field for a wrong type or another apiVersion.
    """
    if content.get("apiVersion") != API_VERSION:
        raise ConfigError(f"{file}: apiVersion: {content.get('apiVersion')!r}: want {API_VERSION}")
    fields = dict(_leaves(file, content, "", warn))
    mode = str(fields.get("mode") or MODES[0])
    found: dict[str, Given] = {}
    for path, value in fields.items():
        reason = FIELDS[path].reason or _other_mode(path, mode)
        if reason:
            _tell(f"{file}: {path}", FIELDS[path], value, reason, warn)
        elif not _is_empty(FIELDS[path], value):
            found[FIELDS[path].option] = Given(value, f"{file}: {path}")
    return {**_servers(file, found), **found}


def _leaves(
    file: str, content: Mapping[object, object], prefix: str, warn: Warn
) -> Iterator[tuple[str, object]]:
    """The fields that are there, with their paths, of the right type."""
    for key, value in content.items():
        path = f"{prefix}{key}"
        if path in SECTIONS:
            if isinstance(value, Mapping):
                yield from _leaves(file, value, f"{path}.", warn)
            elif value is not None:
                raise ConfigError(f"{file}: {path}: {value!r}: want a mapping")
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
        raise ConfigError(f"{file}: {path}: {value!r}: {error}") from error
    return value


def _is_empty(field: Field, value: object) -> bool:
    """Whether a value says as little as its absence."""
    if value is None or value in ("", [], {}):
        return True
    if not field.asks_if_usual and field.check(value) == field.usual:
        return True
    return not field.zero_counts and field.check(value) == 0


def _tell(where: str, field: Field, value: object, reason: str, warn: Warn) -> None:
    if not _is_empty(field, value) and field.check(value) != field.usual:
        warn(f"{where} is ignored: {reason}")


def _other_mode(path: str, mode: str) -> str:
    """Why a field of another mode than the chosen one does not count, or nothing."""
    section, _, name = path.partition(".")
    if section not in MODES or name not in _OF_A_MODE:
        return ""
    # ipvs masquerades by rules of iptables.
    chosen = MODES[0] if mode == "ipvs" and name == "masqueradeAll" else mode
    return "" if section == chosen else f"the mode is {mode}"


def _servers(file: str, found: Mapping[str, Given]) -> dict[str, Given]:
    """Where servers listen by default: an IPv6 bindAddress decides for IPv6."""
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

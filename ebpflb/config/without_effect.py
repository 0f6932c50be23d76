# SPDX-License-Identifier: Apache-2.0
"""Settings that are read and checked because kube-proxy has them, and change nothing here."""

from collections.abc import Collection, Mapping
from typing import Any

from ebpflb.config.kube_proxy_flags import Warn
from ebpflb.config.options import OPTIONS

_BY_DEVICE = "pods of this node are known by their devices"

WITHOUT_EFFECT: Mapping[str, str] = {
    "detect-local-mode": _BY_DEVICE,
    "cluster-cidr": _BY_DEVICE,
    "pod-bridge-interface": _BY_DEVICE,
    "pod-interface-name-prefix": _BY_DEVICE,
}


def warn_of_what_has_no_effect(
    given: Collection[str], found: Mapping[str, Any], warn: Warn
) -> None:
    """Tell of each such option that somebody gave, unless it asks for nothing: its default.

    given: names of options; found: all values, by field.
    """
    for option in OPTIONS:
        reason = WITHOUT_EFFECT.get(option.name)
        if reason is None or option.name not in given or option.default is None:
            continue
        if found[option.field] != option.parse(option.default()):
            warn(f"{option.name} has no effect: {reason}")

# SPDX-License-Identifier: Apache-2.0
"""The agent's settings from all sources, merged and checked once.

A setting comes from the command line, else from the environment (EBPFLB_NODE_NAME), else from the
file named by --config (node-name: ...), else it has its default. The fields of a
KubeProxyConfiguration override flags and variables, except for the node's name and logging. The
rest of the program reads a frozen `Settings`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ebpflb.config import values
from ebpflb.config.kube_proxy_flags import Warn, translate, warn_without_effect
from ebpflb.config.label_selector import LabelSelector
from ebpflb.config.option import (
    ENVIRONMENT_PREFIX,
    Given,
    Option,
    by_option,
    is_service_link,
    variable,
)
from ebpflb.config.options import OPTIONS, Settings
from ebpflb.config.settings_file import NO_FILE, SettingsFile, read_settings_file
from ebpflb.config.values import PortRange, nearest
from ebpflb.errors import SettingError

__all__ = ["Settings", "load_settings", "plain_settings", "setting", "settings_text"]

_DETECTING = {
    "BridgeInterface": "pod-bridge-interface",
    "InterfaceNamePrefix": "pod-interface-name-prefix",
}


def load_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], warn: Warn = lambda _: None
) -> Settings:
    """Merge and check; flags holds what was given on the command line, by flag name.

    warn() gets a line for each flag, variable or field that has no effect. Raises SettingError
    naming the option and where the value comes from, ProbeError without cgroup v2.
    """
    others = dict(flags)
    path = others.pop("config", None) or environ.get(ENVIRONMENT_PREFIX + "CONFIG")
    from_flags = _from_flags(translate(others, warn))
    from_environment = _from_environment(environ)
    file = read_settings_file(Path(str(path)), warn) if path else NO_FILE
    free = [_undecided(source, file, warn) for source in (from_flags, from_environment)]
    sources = [*free, file.given]
    found = {option.field: _value(option, sources) for option in OPTIONS}
    settings = Settings(**found, config=file.version)
    _check_together(settings)
    given = {name for source in sources for name in source}
    warn_without_effect(given, found, warn)
    return settings


def setting(name: str, flag: object, environ: Mapping[str, str]) -> Any:
    """One checked setting, for a command that needs nothing else. Raises as load_settings."""
    option = next(option for option in OPTIONS if option.name == name)
    flags = {} if flag is None else {name: flag}
    names = {variable(each) for each in option.names}
    variables = {each: value for each, value in environ.items() if each in names}
    return _value(option, [_from_flags(flags), _from_environment(variables)])


def _from_flags(flags: Mapping[str, object]) -> dict[str, Given]:
    return by_option(OPTIONS, {name: Given(value, f"--{name}") for name, value in flags.items()})


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    names = {variable(name): name for option in OPTIONS for name in option.names}
    given = {}
    for name, value in environ.items():
        if name in names:
            given[names[name]] = Given(value, name)
        elif _is_misspelt(name):
            raise SettingError(f"unknown environment variable {name}{nearest(name, names)}")
    return by_option(OPTIONS, given)


def _is_misspelt(name: str) -> bool:
    return (
        name.startswith(ENVIRONMENT_PREFIX)
        and name != ENVIRONMENT_PREFIX + "CONFIG"
        and not is_service_link(name)
    )


def _undecided(given: Mapping[str, Given], file: SettingsFile, warn: Warn) -> dict[str, Given]:
    """The values that a KubeProxyConfiguration does not override."""
    for name in sorted(given.keys() & file.decides):
        warn(f"{given[name].where} is ignored: {file.version and file.version.path} overrides it")
    return {name: one for name, one in given.items() if name not in file.decides}


def _value(option: Option, sources: Sequence[Mapping[str, Given]]) -> Any:
    given = next((source[option.name] for source in sources if option.name in source), None)
    if given is None:
        return option.default_value()
    try:
        return option.parse(given.value)
    except ValueError as error:
        raise SettingError(f"{given.where}: {given.value!r}: {error}") from error


def _check_together(settings: Settings) -> None:
    if settings.min_sync_period > settings.sync_period:
        raise SettingError(
            f"--min-sync-period: {settings.min_sync_period:g}s: want no more than the sync period, "
            f"which is {settings.sync_period:g}s"
        )
    needed = _DETECTING.get(settings.detect_local_mode)
    if needed and not getattr(settings, needed.replace("-", "_")):
        raise SettingError(
            f"--detect-local-mode: {settings.detect_local_mode!r}: --{needed} is needed, too"
        )


def settings_text(settings: Settings) -> str:
    """YAML with every setting that has a value; read again, it gives the same settings."""
    import yaml

    return yaml.safe_dump(plain_settings(settings), sort_keys=False)


def plain_settings(settings: Settings) -> Mapping[str, object]:
    """Every setting that has a value, as JSON and YAML have it, by the name of its option."""
    found = {option.name: getattr(settings, option.field) for option in OPTIONS}
    plain = {option.name: _plain(option, found[option.name]) for option in OPTIONS}
    return {name: value for name, value in plain.items() if value is not None}


def _plain(option: Option, value: object) -> object:
    if isinstance(value, Path | LabelSelector | PortRange):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    if value is None and option.parse is values.socket_path:
        return ""
    if option.parse in (values.duration, values.positive_duration):
        return f"{value:f}".rstrip("0").rstrip(".") + "s"
    return value

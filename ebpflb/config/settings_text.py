# SPDX-License-Identifier: Apache-2.0
"""Settings as the text of a settings file."""

from collections.abc import Mapping
from pathlib import Path

from ebpflb.config import values
from ebpflb.config.option import Option
from ebpflb.config.options import OPTIONS
from ebpflb.config.settings import Settings


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
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    if value is None and option.parse is values.socket_path:
        return ""
    if option.parse in (values.duration, values.positive_duration):
        return f"{value:f}".rstrip("0").rstrip(".") + "s"
    return value

# SPDX-License-Identifier: Apache-2.0
"""What one setting of an agent is."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ebpflb.config import values

ENVIRONMENT_PREFIX = "EBPFLB_"
_LISTS = (values.words, values.cidrs, values.nodeport_addresses, values.flow_events)


class Option(NamedTuple):
    """One setting: its name as flag and YAML key, how a value is checked, and what it is for.

    parse takes a string (flag, environment) or a YAML value and raises ValueError; default gives
    the text to parse when nobody set the option, None for one that then is None. aliases are other
    names of it, everywhere where the name may stand: what kube-proxy calls it.
    """

    name: str
    parse: Callable[[object], Any]
    default: Callable[[], str] | None
    metavar: str
    help: str
    aliases: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The name in Settings."""
        return self.name.replace("-", "_")

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return self.parse in _LISTS

    @property
    def is_switch(self) -> bool:
        """Whether a flag without a value means true."""
        return self.parse is values.boolean

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return variable(self.name)


def variable(name: str) -> str:
    """The environment variable of an option's name or alias."""
    return ENVIRONMENT_PREFIX + name.replace("-", "_").upper()


def text_default(default: str) -> Callable[[], str]:
    """For an option's `default`."""
    return lambda: default

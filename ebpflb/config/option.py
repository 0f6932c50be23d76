# SPDX-License-Identifier: Apache-2.0
"""What an option is, and the environment variables that set one."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, field, fields
from typing import Any, NamedTuple, TypeVar, cast, get_args

from ebpflb.config import values
from ebpflb.errors import SettingError

ENVIRONMENT_PREFIX = "EBPFLB_"

Value = TypeVar("Value")

_LISTS = (
    *(values.words, values.urls, values.cidrs, values.ports),
    *(values.nodeport_addresses, values.served_ips, values.flow_events),
)
_OF_LITERAL = values.OneOf(())
# Kubernetes puts these into a pod's environment when a Service is called ebpflb.
_SERVICE_LINK = re.compile(r"EBPFLB(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_\w+)?)")


class Option(NamedTuple):
    """One setting: its name as flag and YAML key, how a value is checked, and what it is for.

    parse takes a string (flag, environment) or a YAML value and raises ValueError. default is the
    text to parse when nobody sets the option, or a function that finds it; without one the value is
    None. aliases: kube-proxy's names for the option, accepted wherever the name is.
    """

    name: str
    parse: Callable[[object], Any]
    default: str | Callable[[], str] | None
    metavar: str
    help: str
    aliases: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The name in Settings."""
        return self.name.replace("-", "_")

    @property
    def names(self) -> tuple[str, ...]:
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
        return variable(self.name)

    def default_value(self) -> Any:
        """The checked default. Raises what finding it raises."""
        text = self.default() if callable(self.default) else self.default
        return None if text is None else self.parse(text)


def option(
    parse: Callable[[object], Value],
    default: str | Callable[[], str] | None,
    metavar: str,
    help: str,
    aliases: tuple[str, ...] = (),
) -> Value:
    """Declares a field of Settings as an Option, which is named like it."""
    return cast(Value, _field(Option("", parse, default, metavar, help, aliases)))


def one_of(default: Value, help: str, metavar: str = "", aliases: tuple[str, ...] = ()) -> Value:
    """Declares a field of Settings as an Option whose values are the words of its Literal."""
    return cast(Value, _field(Option("", _OF_LITERAL, str(default), metavar, help, aliases)))


def _field(option: Option) -> Any:
    return field(metadata={Option: option})


def options_of(settings: type) -> tuple[Option, ...]:
    """The options that its fields are declared as, in their order."""
    return tuple(_option_of(each) for each in fields(settings) if Option in each.metadata)


def _option_of(field: Field[Any]) -> Option:
    found: Option = field.metadata[Option]
    found = found._replace(name=field.name.replace("_", "-"))
    if found.parse is not _OF_LITERAL:
        return found
    words = get_args(field.type)
    return found._replace(parse=values.OneOf(words), metavar=found.metavar or "|".join(words))


class Given(NamedTuple):
    """A value from a flag, a variable or a file, and how errors name that place."""

    value: object
    where: str


def variable(name: str) -> str:
    """The environment variable of an option's name or alias."""
    return ENVIRONMENT_PREFIX + name.replace("-", "_").upper()


def is_service_link(name: str) -> bool:
    """Whether Kubernetes set this variable, for a Service called ebpflb."""
    return bool(_SERVICE_LINK.fullmatch(name))


def by_option(options: Iterable[Option], given: Mapping[str, Given]) -> dict[str, Given]:
    """Values by the option's own name. Raises SettingError if an option is given by two names."""
    found: dict[str, Given] = {}
    names = {name: option.name for option in options for name in option.names}
    for name, one in given.items():
        option = names[name]
        if option in found:
            raise SettingError(
                f"{one.where}: the same setting as {found[option].where}: give only one"
            )
        found[option] = one
    return found

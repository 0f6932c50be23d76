# SPDX-License-Identifier: Apache-2.0
"""Whether a command line is valid; nothing is executed."""

import re
from collections.abc import Iterator, Sequence

import click

# In the documents, a word in capitals stands for a value, and ... for any others.
_ANY = re.compile(r"[^a-z]*[A-Z][^a-z]*|.*(\.\.\.|\$).*")


class NotUnderstoodError(Exception):
    """What is wrong with a command line."""


def understand(
    command: click.Command, words: Sequence[str], context: click.Context | None = None
) -> None:
    """Fail unless the command would take these words; its name alone is a mention of it."""
    within = click.Context(command, parent=context, **command.context_settings)
    values, rest, order = command.make_parser(within).parse_args(list(words))
    if isinstance(command, click.Group) and rest:
        if _ANY.fullmatch(rest[0]):
            return
        found = command.get_command(within, rest[0])
        if not found:
            raise NotUnderstoodError(f"no command {rest[0]}")
        understand(found, rest[1:], within)
        return
    if rest and not within.allow_extra_args:
        raise NotUnderstoodError(f"takes no {' '.join(rest)}")
    for given in set(order):
        _convert(given, values.get(given.name or ""), within)
    if words:
        _want_all(command, values, words)


def _convert(given: click.Parameter, value: object, context: click.Context) -> None:
    """Files need not exist, and what stands for a value is not one."""
    if not _is_given(value) or isinstance(given.type, click.Path | click.File):
        return
    if not any(_ANY.fullmatch(text) for text in _texts(value)):
        given.type_cast_value(context, value)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _want_all(command: click.Command, values: dict[str, object], words: Sequence[str]) -> None:
    wanted = [each.name or "" for each in command.params if each.required]
    missing = [name for name in wanted if not _is_given(values.get(name))]
    if missing and "..." not in words:
        raise NotUnderstoodError(f"lacks {', '.join(missing)}")


def _is_given(value: object) -> bool:
    """The parser has an object of its own for what is not."""
    return isinstance(value, str | bool | int) or (isinstance(value, list | tuple) and bool(value))

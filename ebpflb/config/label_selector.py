# SPDX-License-Identifier: Apache-2.0
"""Label selectors as `kubectl --selector` takes them: `a=b,c!=d,e in (x,y),f notin (z),g,!h`.

The grammar is that of labels.Parse in k8s.io/apimachinery, including what is undocumented there,
without the operators > and <.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_TOKEN = re.compile(r"\s*(==|!=|[=!(),]|[^=!(),\s]+)")
_OPERATORS = ("=", "==", "!=", "in", "notin")
_END = ""
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME, _LONGEST_DOMAIN = 63, 253


class Requirement(NamedTuple):
    """Whether an object must have, or must not have, the label with one of these values.

    values: None for any value.
    """

    key: str
    values: frozenset[str] | None
    wanted: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        has = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return has is self.wanted


class LabelSelector(NamedTuple):
    """Requirements that must all hold; without any, every object matches."""

    text: str
    requirements: tuple[Requirement, ...]

    def __str__(self) -> str:
        return self.text

    @property
    def keys(self) -> frozenset[str]:
        """The labels that it tests."""
        return frozenset(each.key for each in self.requirements)

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(each.matches(labels) for each in self.requirements)


def parse_label_selector(text: str) -> LabelSelector:
    """Raises ValueError, which says what was expected."""
    tokens = _Tokens(text)
    requirements = []
    if tokens.next != _END:
        requirements.append(_requirement(tokens))
    while tokens.next != _END:
        tokens.expect(",")
        requirements.append(_requirement(tokens))
    return LabelSelector(text.strip(), tuple(requirements))


class _Tokens:
    def __init__(self, text: str) -> None:
        self._rest = iter([*_split(text), _END])
        self.next = next(self._rest)

    def take(self) -> str:
        token = self.next
        self.next = next(self._rest, _END)
        return token

    def expect(self, wanted: str) -> None:
        if self.next != wanted:
            raise ValueError(f"want {wanted!r}, found {self.found}")
        self.take()

    def word(self, what: str) -> str:
        """The next token, which must not be a symbol."""
        if self.next == _END or not _is_word(self.next):
            raise ValueError(f"want {what}, found {self.found}")
        return self.take()

    @property
    def found(self) -> str:
        return repr(self.next) if self.next else "the end"


def _split(text: str) -> Iterator[str]:
    return (match[1] for match in _TOKEN.finditer(text))


def _is_word(token: str) -> bool:
    return token not in ("=", "==", "!=", "!", "(", ")", ",")


def _requirement(tokens: _Tokens) -> Requirement:
    is_negated = tokens.next == "!"
    if is_negated:
        tokens.take()
    key = _checked_key(tokens.word("a label"))
    if is_negated or tokens.next in (",", _END):
        return Requirement(key, None, not is_negated)
    operator = tokens.take()
    if operator not in _OPERATORS:
        raise ValueError(f"want one of {', '.join(_OPERATORS)} after {key}, found {operator!r}")
    values = _set(tokens) if operator in ("in", "notin") else frozenset([_value(tokens)])
    return Requirement(key, values, operator not in ("!=", "notin"))


def _set(tokens: _Tokens) -> frozenset[str]:
    """An element may be empty, as in (a,), but () has none."""
    tokens.expect("(")
    if tokens.next == ")":
        raise ValueError("want at least one value between ( and )")
    values = [_value(tokens)]
    while tokens.next == ",":
        tokens.take()
        values.append(_value(tokens))
    tokens.expect(")")
    return frozenset(values)


def _value(tokens: _Tokens) -> str:
    """Empty if there is none."""
    if tokens.next in (",", ")", _END):
        return ""
    return checked_value(tokens.word("a value"))


def _checked_key(key: str) -> str:
    domain, slash, name = key.rpartition("/")
    if slash and not (_DOMAIN.fullmatch(domain) and len(domain) <= _LONGEST_DOMAIN):
        raise ValueError(f"{key!r}: want a DNS name before the / of a label")
    if not _is_name(name):
        raise ValueError(f"{key!r}: {_WANTED}")
    return key


def checked_value(value: str) -> str:
    """The value of a label itself. Raises ValueError."""
    if not _is_name(value):
        raise ValueError(f"{value!r}: {_WANTED}")
    return value


_WANTED = (
    f"want at most {_LONGEST_NAME} letters, digits, '-', '_' and '.', with a letter or digit at "
    "both ends"
)


def _is_name(text: str) -> bool:
    return len(text) <= _LONGEST_NAME and bool(_NAME.fullmatch(text))

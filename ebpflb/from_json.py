# SPDX-License-Identifier: Apache-2.0
"""JSON that others have written: a value, or a JsonError in one line, whatever the bytes are.

Text in a value can always be encoded again: U+FFFD stands for bytes that are not UTF-8 and for
half a surrogate pair. So can numbers, and their sums: no number is infinite, and LARGEST stands for
those beyond it. Nothing is nested deeper than DEEPEST levels: null stands for what was. The last of
two members with one name counts.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

DEEPEST = 100
# More than any counter of the kernel's has.
LARGEST = 1 << 64
# Python refuses a few thousand, and takes quadratic time for those below.
_MOST_DIGITS = len(f"-{LARGEST}")
_SPACE = re.compile(r"[ \t\n\r]*")
_SURROGATES = re.compile(r"\\u[dD][89a-fA-F]")
# An escape at a time, so that a backslash that is itself escaped begins none.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
# Whole strings, and brackets outside of them. A quote alone begins a string without an end.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|["\[\]{}]', re.DOTALL)


class JsonError(ValueError):
    """Bytes that are not JSON, or not the value that was expected."""


def from_json(raw: bytes | str) -> Any:
    """The value. Raises JsonError."""
    reader = JsonReader(raw)
    found = reader.value()
    reader.end()
    return found


class JsonReader:
    """Reads JSON from its beginning to its end. Every method raises JsonError.

    `for name in reader.members():` and `for _ in reader.elements():` go over the object or the
    list at hand; the body of the loop must read each value.
    """

    def __init__(self, raw: bytes | str) -> None:
        if isinstance(raw, bytes):
            raw = raw.decode(json.detect_encoding(raw), "replace")
        self._text = _ESCAPE.sub(_whole_pair, raw) if _SURROGATES.search(raw) else raw
        self._at = 0

    def next(self) -> str:
        """The next character that is not white space, which begins a value; empty at the end."""
        if found := _SPACE.match(self._text, self._at):
            self._at = found.end()
        return self._text[self._at : self._at + 1]

    def value(self) -> Any:
        """Read a value. After a JsonError, pass_over() goes on."""
        self.next()
        try:
            found, end = _DECODER.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            self._refuse(error.msg, error.pos)
        except RecursionError:
            return self._outer_levels()
        opened = self._text.count("[", self._at, end) + self._text.count("{", self._at, end)
        if opened > DEEPEST and _is_too_deep(found):
            return self._outer_levels()
        self._at = end
        return found

    def pass_over(self) -> str:
        """The text of a list or an object of which only the brackets and quotes are right."""
        begin = self._at
        if self.next() not in ("[", "{"):
            self._refuse("Expecting value", self._at)
        for _, token in self._brackets():
            self._at = token.end()
        return self._text[begin : self._at]

    def members(self) -> Iterator[str]:
        """The names of the members of an object."""
        for _ in self._entries("{", "}"):
            name = self.value()
            if not isinstance(name, str):
                self._refuse("Expecting property name enclosed in double quotes", self._at)
            self._take(":")
            yield name

    def elements(self) -> Iterator[None]:
        """Yield before each element of a list."""
        return self._entries("[", "]")

    def end(self) -> None:
        """Refuse anything but white space."""
        if self.next():
            self._refuse("Extra data", self._at)

    def _entries(self, first: str, last: str) -> Iterator[None]:
        self._take(first)
        while self.next() != last:
            yield
            if self.next() != last:
                self._take(",")
                if self.next() == last:
                    self._refuse("Expecting value", self._at)
        self._take(last)

    def _take(self, wanted: str) -> None:
        if self.next() != wanted:
            self._refuse(f"Expecting {wanted!r}", self._at)
        self._at += 1

    def _outer_levels(self) -> Any:
        kept, pieces = self._at, []
        for depth, token in self._brackets():
            if depth > DEEPEST + 1:
                continue
            if depth == DEEPEST + 1 and token[0] in "[{":
                pieces += [self._text[kept : token.start()], "null"]
            elif depth == DEEPEST + 1:
                kept = token.end()
            end = token.end()
        self._at = end
        return from_json("".join([*pieces, self._text[kept:end]]))

    def _brackets(self) -> Iterator[tuple[int, re.Match[str]]]:
        """Each bracket of the value at hand with its level; 1 is the value itself."""
        depth = 0
        for token in _TOKEN.finditer(self._text, self._at):
            mark = token[0]
            if mark in ("[", "{"):
                depth += 1
                yield depth, token
            elif mark in ("]", "}"):
                yield depth, token
                depth -= 1
                if not depth:
                    return
            elif mark == '"':
                break
        self._refuse("Expecting an end", len(self._text))

    def _refuse(self, problem: str, at: int) -> NoReturn:
        before = self._text[:at]
        column = at - before.rfind("\n")
        raise JsonError(f"line {before.count(chr(10)) + 1}, column {column}: {problem}") from None


def _is_too_deep(value: Any) -> bool:
    """The decoder of a later Python may take ten times as many levels, or as the stack has room."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _whole_pair(escape: re.Match[str]) -> str:
    return r"\ufffd" if escape["half"] else escape[0]


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        return -LARGEST if digits.startswith("-") else LARGEST
    return max(-LARGEST, min(int(digits), LARGEST))


def _fraction(digits: str) -> float:
    return max(-float(LARGEST), min(float(digits), float(LARGEST)))


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    parse_int=_whole, parse_float=_fraction, parse_constant=_refuse_constant
)

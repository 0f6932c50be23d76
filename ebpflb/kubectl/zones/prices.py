# SPDX-License-Identifier: Apache-2.0
"""What a GB (10^9 bytes) costs that crosses zones: one price, or one for each pair of zones."""

from collections.abc import Callable, Iterable

PriceOf = Callable[[frozenset[str]], float | None]
"""The price between two zones, whatever the direction; None if none is known."""

_MOST = 1e6
_MOST_TEXT = 1 << 20
_WORDS = 3


def prices(given: str) -> PriceOf:
    """`given`: a number, or a file with lines `ZONE ZONE NUMBER`. ValueError."""
    try:
        number = float(given)
    except ValueError:
        return _of_lines(given, _text(given).splitlines()).get
    _check(number)
    return lambda _: number


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_TEXT + 1)
    except OSError as error:
        raise ValueError(f"{path}: neither a number nor a file: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: not a file of text") from error
    if len(text) > _MOST_TEXT:
        raise ValueError(f"{path}: longer than {_MOST_TEXT >> 20} MiB")
    return text


def _of_lines(path: str, lines: Iterable[str]) -> dict[frozenset[str], float]:
    found: dict[frozenset[str], float] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        try:
            if words:
                _add(found, words)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
    return found


def _add(found: dict[frozenset[str], float], words: list[str]) -> None:
    pair = frozenset(words[:2])
    if len(words) != _WORDS or len(pair) == 1:
        raise ValueError("want two zones and a price, as in: zone-a zone-b 0.02")
    if pair in found:
        raise ValueError(f"a second price for {' and '.join(sorted(pair))}; one is for both ways")
    try:
        price = float(words[2])
    except ValueError as error:
        raise ValueError(f"{words[2]} is not a number") from error
    _check(price)
    found[pair] = price


def _check(price: float) -> None:
    # Also wrong for NaN.
    if not 0 <= price <= _MOST:
        raise ValueError(f"{price:g} is no price: want from 0 to {_MOST:,.0f}")

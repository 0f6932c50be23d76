# SPDX-License-Identifier: Apache-2.0
"""Tables as text: a column says what stands in it, and what becomes of it where room is short."""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import click

Row = TypeVar("Row")
Style = Mapping[str, Any]
"""Arguments of click.style()."""

_INDENT = "    "
_MARK_WIDTH = 2


class Column(NamedTuple, Generic[Row]):
    """A column. cell: of a row; part: of the lines below it, such as the backends of a Service.

    Numbers stand to the right, as do all cells if `right`. wide: only in wide tables. rank: where a
    table is too wide, the highest is left out first; 0 never. width: the least in such a table, and
    in one that grows. cut: a long name loses its start. wraps: the rest goes on in the next line.
    """

    title: str
    cell: Callable[[Row], object]
    part: Callable[[Any], object] = lambda _: ""
    part_title: str = ""
    wide: bool = False
    width: int = 0
    rank: int = 0
    right: bool = False
    cut: bool = False
    wraps: bool = False


def positions(*titles: str) -> list[Column[Any]]:
    """Columns of rows that are tuples of cells."""
    return [Column(title, itemgetter(at)) for at, title in enumerate(titles)]


class _Cells:
    __slots__ = ("cells", "is_title", "style", "texts")

    def __init__(self, cells: Sequence[object], style: Style, *, is_title: bool = False) -> None:
        self.cells, self.style, self.is_title = cells, style, is_title
        self.texts: list[str] = [visible(str(cell)) for cell in cells]


@dataclass(frozen=True, slots=True)
class TextTable(Generic[Row]):
    """Rows, each with the lines below it; a string is a line of its own.

    style: of the cell under the title `styled`, or of all cells of a row and of what is below it.
    block: the lines of a row where the table is too wide, from its cells and the width.
    """

    columns: Sequence[Column[Row]]
    rows: Iterable[Row | str]
    parts: Callable[[Row], Iterable[object]] = lambda _: ()
    gap: str = "  "
    style: Callable[[Row], Style] = lambda _: {}
    styled: str = ""
    block: Callable[[Sequence[str], int], Iterator[str]] | None = None

    def lines(
        self, width: int | None = None, *, is_wide: bool = False, grows: bool = False
    ) -> Iterator[str]:
        """Each column is as wide as its widest cell. `width`: of the terminal, if it matters.

        Where the table is too wide, columns are left out by rank, or go on below their row.
        `grows`: lines come with their rows, and columns get wider with what has come.
        """
        columns = [each for each in self.columns if is_wide or not each.wide]
        rows = self._rows(columns)
        known = [] if grows else list(rows)
        layout = _Layout(self, columns, [row for row in known if not isinstance(row, str)], width)
        for row in rows if grows else known:
            yield from folded(row, width) if isinstance(row, str) else layout.lines(row)

    def _rows(self, columns: Sequence[Column[Row]]) -> Iterator[str | _Cells]:
        for titles in ([c.title for c in columns], [c.part_title for c in columns]):
            if any(titles):
                yield _Cells(titles, {}, is_title=True)
        for row in self.rows:
            if isinstance(row, str):
                yield row
                continue
            style = self.style(row)
            yield _Cells([column.cell(row) for column in columns], style)
            for part in self.parts(row):
                if isinstance(part, str):
                    yield part
                else:
                    yield _Cells([column.part(part) for column in columns], style)


class _Layout:
    """Where the cells of a row go."""

    def __init__(
        self,
        table: TextTable[Any],
        columns: Sequence[Column[Any]],
        rows: Sequence[_Cells],
        width: int | None,
    ) -> None:
        """`rows`: all of the table; none if they are not known yet."""
        self._table, self._columns, self._width, self._grows = table, columns, width, not rows
        is_ranked = any(each.rank for each in columns)
        has_least = is_ranked or self._grows
        self._widths = [
            max(each.width if has_least and not each.wraps else 0, len(each.title))
            for each in columns
        ]
        for row in rows:
            self._widen(row.texts)
        cells = [row.cells for row in rows if not row.is_title]
        self._pads = [
            str.rjust
            if each.right or (not each.wraps and _has_numbers([row[at] for row in cells]))
            else str.ljust
            for at, each in enumerate(columns)
        ]
        self._shown: Sequence[int] = range(len(columns))
        self._parts = [slice(None)]
        if width is not None and is_ranked:
            self._leave_out(width)
        elif width is not None and not table.block:
            self._parts = _parts(self._widths, len(table.gap), width)
        needed = sum(self._widths) + len(table.gap) * (len(columns) - 1)
        self._block = table.block if width is not None and width < needed else None

    def lines(self, row: _Cells) -> Iterator[str]:
        texts = row.texts
        if self._grows:
            self._widen(texts)
        if self._block:
            if not row.is_title:
                cells = [self._styled(at, each, row.style) for at, each in enumerate(texts)]
                yield from self._block(cells, self._width or 0)
            return
        pieces = [self._pieces(at, texts[at]) for at in self._shown]
        for line_of_each in zip_longest(*pieces, fillvalue=""):
            padded = [
                self._styled(at, self._pads[at](text, self._widths[at]), row.style)
                for at, text in zip(self._shown, line_of_each, strict=True)
            ]
            for number, part in enumerate(self._parts):
                line = self._table.gap.join(padded[part]).rstrip()
                if line or not number:
                    line = f"{_INDENT * bool(number)}{line}"
                    # A style is no text that fills the line.
                    yield from [line] if row.style else folded(line, self._width)

    def _widen(self, texts: Sequence[str]) -> None:
        pairs = zip(self._widths, map(len, texts), strict=True)
        self._widths = [max(pair) for pair in pairs]

    def _leave_out(self, width: int) -> None:
        """Choose the columns that fit; a name gets a third, what wraps the rest."""
        left, shown = width + len(self._table.gap), list[int]()
        for at in sorted(self._shown, key=lambda at: self._columns[at].rank):
            column = self._columns[at]
            if column.cut:
                share = max(column.width, min(self._widths[at], width // 3))
                self._widths[at] = min(share, max(width // 2, 1))
            left -= len(self._table.gap) + (self._widths[at] if column.cut else column.width)
            if left < 0 and column.rank:
                break
            shown.append(at)
        self._shown = sorted(shown)
        for at in self._shown:
            if self._columns[at].wraps:
                others = sum(self._widths[each] + len(self._table.gap) for each in shown)
                rest = width - others + self._widths[at] + len(self._table.gap)
                self._widths[at] = min(self._widths[at], max(rest, 1))

    def _pieces(self, at: int, text: str) -> Sequence[str]:
        """The lines of a cell."""
        width, column = self._widths[at], self._columns[at]
        if len(text) <= width or not (column.wraps or column.cut):
            return [text]
        if column.wraps:
            return _wrapped(text, width)
        return [f"{text[:_MARK_WIDTH]}…{text[_MARK_WIDTH + 1 - width :]}"]

    def _styled(self, at: int, cell: str, style: Style) -> str:
        is_styled = style and self._table.styled in ("", self._columns[at].title)
        return click.style(cell, **style) if is_styled and cell.strip() else cell


def _has_numbers(cells: Sequence[object]) -> bool:
    return bool(cells) and all(isinstance(cell, int) or cell in ("", "-") for cell in cells)


def _parts(widths: Sequence[int], gap: int, width: int) -> list[slice]:
    """Which columns share a line."""
    begins, used = [0], 0
    for index, each in enumerate(widths):
        used += each + gap
        if index and used - gap > width:
            begins.append(index)
            used = len(_INDENT) + each + gap
    return [slice(*ends) for ends in pairwise([*begins, len(widths)])]


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of whole words; only a word that is too long is broken."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines += [word[at : at + width] for at in range(0, len(word), width)]
    return lines[1:]


def folded(line: str, width: int | None) -> list[str]:
    """Wrap a line between words; continuation lines are indented."""
    line = visible(line)
    if width is None or len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip())) + _INDENT
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)


def visible(value: Any) -> Any:
    """Escape control characters (\\x1b) in untrusted text: a terminal would obey them.

    Works on a string, or on those in lists and objects.
    """
    if isinstance(value, str):
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    if isinstance(value, Mapping):
        return {key: visible(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [visible(each) for each in value]
    return value


def size(count: int) -> str:
    """A number of bytes in a suitable unit."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:  # noqa: PLR2004  the factor between two units
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"

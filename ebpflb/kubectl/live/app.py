# SPDX-License-Identifier: Apache-2.0
"""The screens of `kubectl ebpflb live`: Services, one Service, an explanation."""

import threading
import time
from collections.abc import Iterable, Sequence
from typing import ClassVar, TypeVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Header, Input, Static
from textual.worker import get_current_worker

from ebpflb.cli.flows import COLUMNS as FLOW_COLUMNS
from ebpflb.cli.table import Column, visible
from ebpflb.cli.tables.top import SORT_NAMES, name_of, ordered, without_idle
from ebpflb.config.values import socket_address
from ebpflb.kubectl.live.sight import Looked, Sight
from ebpflb.kubectl.top import COLUMNS_OF_NODES
from ebpflb.model.flow import BackendRate, Flow, ServiceRate
from ebpflb.words.connections import FORWARDED

Row = TypeVar("Row")
Table = DataTable[Text]

_TROUBLE = "bold red"
_BACK = ("escape", "app.pop_screen", "Back")


class LiveApp(App[None]):
    """Samples the Services for as long as it runs."""

    TITLE = "ebpflb"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #complaint { color: $error; height: auto; max-height: 3; }
    #filter { display: none; }
    DataTable { height: 1fr; border: round $primary; }
    #backends { height: auto; max-height: 40%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit")]

    def __init__(self, sight: Sight) -> None:
        super().__init__()
        self.sight = sight
        self.looked: Looked[list[ServiceRate]] = Looked(None, "")
        self._ended = threading.Event()

    def on_mount(self) -> None:
        self.sub_title = self.sight.where
        self.push_screen(ServicesScreen())
        self.sample()

    def on_unmount(self) -> None:
        self._ended.set()

    @work(thread=True)
    def sample(self) -> None:
        """A round takes no less than a sample, even if no node can be asked."""
        while not self._ended.is_set():
            began = time.monotonic()
            looked = self.sight.services()
            if not self._ended.is_set():
                self.call_from_thread(self._show, looked)
            self._ended.wait(self.sight.interval - (time.monotonic() - began))

    def _show(self, looked: Looked[list[ServiceRate]]) -> None:
        """What cannot be asked now leaves what was known."""
        known = self.looked.found if looked.found is None else looked.found
        self.looked = Looked(known, looked.complaint)
        self.sub_title = self.sight.where
        for screen in self.screen_stack:
            # Before a screen is composed, and after its end, there is nothing to fill.
            if isinstance(screen, LiveScreen) and screen.query(DataTable):
                screen.update()


class LiveScreen(Screen[None]):
    """One that follows the samples."""

    app: LiveApp

    def update(self) -> None:
        """Show the last sample."""
        raise NotImplementedError

    def complain(self, *complaints: str) -> None:
        told, shown = "; ".join(filter(None, complaints)), self.query_one("#complaint", Static)
        shown.update(Text(told))
        shown.display = bool(told)


class ServicesScreen(LiveScreen):
    """All Services that carry something or are in trouble."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("s", "sort", "Sort"),
        ("slash", "filter", "Filter"),
        ("a", "idle", "Idle ones too"),
    ]
    AUTO_FOCUS = "#services"

    def __init__(self) -> None:
        super().__init__()
        self._sort, self._filter, self._is_every = SORT_NAMES[0], "", False
        self._shown: list[ServiceRate] = []

    def compose(self) -> ComposeResult:
        yield Header(icon="")
        yield Static(id="complaint")
        yield Input(placeholder="part of a name", id="filter")
        yield _table("services", [each.title for each in COLUMNS_OF_NODES])
        yield Footer()

    def on_mount(self) -> None:
        self.update()

    def update(self) -> None:
        """The cursor stays with its Service."""
        known = without_idle(self.app.looked.found or [], every=self._is_every)
        fitting = [each for each in known if self._filter in name_of(each)]
        self._shown = ordered(fitting, self._sort)
        table = self.query_one("#services", DataTable)
        table.border_title = f"by {self._sort}, {len(self._shown)} of {len(known)}"
        rows = ((name_of(each), _cells(COLUMNS_OF_NODES, each)) for each in self._shown)
        _fill(table, rows, {name_of(each) for each in self._shown if each.troubles})
        waits = "" if self.app.looked.found is not None else "the first sample is being taken"
        self.complain(self.app.looked.complaint or waits)

    def action_sort(self) -> None:
        at = SORT_NAMES.index(self._sort) + 1
        self._sort = SORT_NAMES[at % len(SORT_NAMES)]
        self.update()

    def action_idle(self) -> None:
        self._is_every = not self._is_every
        self.update()

    def action_filter(self) -> None:
        given = self.query_one("#filter", Input)
        given.display = True
        given.focus()

    @on(Input.Changed)
    def select(self, changed: Input.Changed) -> None:
        self._filter = changed.value
        self.update()

    @on(Input.Submitted)
    def leave_filter(self, _: Input.Submitted) -> None:
        self.query_one("#filter", Input).display = bool(self._filter)
        self.query_one("#services").focus()

    @on(DataTable.RowSelected)
    def open(self, chosen: DataTable.RowSelected) -> None:
        self.app.push_screen(ServiceScreen(str(chosen.row_key.value)))


class ServiceScreen(LiveScreen):
    """The backends of a Service port, and its last flows; those of one backend, if it is chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [_BACK]
    AUTO_FOCUS = "#backends"

    def __init__(self, name: str) -> None:
        """`name`: as in name_of()."""
        super().__init__()
        self._port_name = name
        self._flows: Looked[list[Flow]] = Looked(None, "")
        self._shown: list[Flow] = []
        self._backend = ""
        self._is_looking = False

    def compose(self) -> ComposeResult:
        yield Header(icon="")
        yield Static(id="complaint")
        yield _table("backends", ["BACKEND", *(each.title for each in COLUMNS_OF_NODES[1:])])
        yield _table("flows", [each.title for each in FLOW_COLUMNS])
        yield Footer()

    def on_mount(self) -> None:
        self.update()

    def update(self) -> None:
        services = self.app.looked.found or []
        found = next((each for each in services if name_of(each) == self._port_name), None)
        backends = found.backends if found else ()
        table = self.query_one("#backends", DataTable)
        table.border_title = Text(f"backends of {visible(self._port_name)}")
        rows = ((_place(each), _parts(each)) for each in backends)
        wrong = {_place(each) for each in backends if each.trouble}
        _fill(table, rows, wrong)
        gone = "" if found else "no node serves it any more"
        self.complain(self.app.looked.complaint, gone, self._flows.complaint)
        if not self._is_looking:
            self._is_looking = True
            self.look(_service(self._port_name))

    @work(thread=True)
    def look(self, service: str) -> None:
        worker = get_current_worker()
        looked = self.app.sight.flows(service)
        if not worker.is_cancelled:
            self.app.call_from_thread(self._show, looked)

    def _show(self, looked: Looked[list[Flow]]) -> None:
        self._flows, self._is_looking = looked, False
        if self.query(DataTable):
            self._list_flows()

    def _list_flows(self) -> None:
        found = self._flows.found or []
        self._shown = [each for each in found if self._backend in ("", _backend(each))]
        table = self.query_one("#flows", DataTable)
        whose = f" of {self._backend}" if self._backend else ""
        table.border_title = f"the last {len(self._shown)} flows{whose}"
        rows = ((str(at), _cells(FLOW_COLUMNS, each)) for at, each in enumerate(self._shown))
        wrong = {str(at) for at, each in enumerate(self._shown) if each.verdict != FORWARDED}
        _fill(table, rows, wrong)

    @on(DataTable.RowSelected)
    def choose(self, chosen: DataTable.RowSelected) -> None:
        key = str(chosen.row_key.value)
        if chosen.data_table.id == "backends":
            key = key.partition(" ")[0]
            self._backend = "" if key == self._backend else key
            self._list_flows()
        else:
            self.app.push_screen(ExplainScreen(self._shown[int(key)]))


class ExplainScreen(Screen[None]):
    """What happens to another connection like this flow."""

    app: LiveApp
    BINDINGS: ClassVar[list[BindingType]] = [_BACK]

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self._flow = flow

    def compose(self) -> ComposeResult:
        yield Header(icon="")
        with VerticalScroll():
            yield Static("asking the nodes ...", id="answer")
        yield Footer()

    def on_mount(self) -> None:
        self.look()

    @work(thread=True)
    def look(self) -> None:
        worker = get_current_worker()
        looked = self.app.sight.explanation(self._flow)
        if not worker.is_cancelled:
            self.app.call_from_thread(self._show, looked)

    def _show(self, looked: Looked[str]) -> None:
        text = "\n\n".join(filter(None, (looked.found, looked.complaint)))
        for answer in self.query("#answer").results(Static):
            answer.update(Text.from_ansi(text))


def _table(name: str, titles: Iterable[str]) -> Table:
    table: Table = DataTable(id=name, cursor_type="row", zebra_stripes=True)
    table.add_columns(*titles)
    return table


def _fill(table: Table, rows: Iterable[tuple[str, Sequence[str]]], wrong: set[str]) -> None:
    """Replace the rows, by key; the cursor stays with its row. `wrong`: rows to mark.

    Where several have a key, as backends whose addresses may not be seen, blanks follow it.
    """
    keys = [str(key.value) for key in table.rows]
    at = keys[table.cursor_row] if table.cursor_row < len(keys) else ""
    table.clear()
    rows_at: dict[str, int] = {}
    for key, cells in rows:
        style = _TROUBLE if key in wrong else ""
        while key in rows_at:
            key = f"{key} "
        table.add_row(*(Text(visible(cell), style) for cell in cells), key=key)
        rows_at[key] = len(rows_at)
    if at in rows_at:
        table.move_cursor(row=rows_at[at], animate=False)


def _cells(columns: Iterable[Column[Row]], row: Row) -> list[str]:
    return [str(each.cell(row)) for each in columns]


def _parts(backend: BackendRate) -> list[str]:
    return [str(each.part(backend)).strip() for each in COLUMNS_OF_NODES]


def _place(backend: BackendRate) -> str:
    return socket_address(backend.address, backend.port)


def _backend(flow: Flow) -> str:
    return socket_address(flow.backend.address, flow.backend.port) if flow.backend else ""


def _service(name: str) -> str:
    """NAMESPACE/NAME of name_of()."""
    namespace, _, rest = name.partition("/")
    return f"{namespace}/{rest.partition(':')[0].partition('/')[0]}"

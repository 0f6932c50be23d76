# SPDX-License-Identifier: Apache-2.0
"""A user of `kubectl ebpflb live`, without a terminal."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from ebpflb.kubectl.live.app import LiveApp, ServicesScreen
from ebpflb.kubectl.live.sight import Sight

PATIENCE_SECONDS = 20.0


class Keys:
    """Presses keys, and waits for what they bring."""

    def __init__(self, app: LiveApp, pilot: Pilot[None]) -> None:
        self.app, self._pilot = app, pilot

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, self.app.screen
            await self._pilot.pause(0.02)

    def rows(self, table: str) -> list[list[str]]:
        found = self.app.screen.query(f"#{table}")
        if not found:
            return []
        shown = found.first(DataTable)
        return [[str(cell) for cell in shown.get_row_at(at)] for at in range(shown.row_count)]

    def text(self, name: str) -> str:
        found = self.app.screen.query(f"#{name}")
        return str(found.first(Static).render()) if found else ""


@asynccontextmanager
async def opened(sight: Sight) -> AsyncIterator[Keys]:
    """The application, after its first sample."""
    app = LiveApp(sight)
    async with app.run_test(size=(140, 40)) as pilot:
        keys = Keys(app, pilot)
        await keys.until(lambda: app.looked.found is not None or app.looked.complaint)
        await keys.until(lambda: isinstance(app.screen, ServicesScreen))
        yield keys

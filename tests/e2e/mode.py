# SPDX-License-Identifier: Apache-2.0
"""The mode of a lab's agents where a test does not choose: taken from the environment.

EBPFLB_DSR=all EBPFLB_XDP=native make test ARGS=tests/e2e/rules runs those tests in that mode.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from ebpflb.config.option import variable
from ebpflb.model.plan import Defaults
from ebpflb.model.service import Dsr
from ebpflb.words.scheduler import Scheduler


class Mode(NamedTuple):
    """Values of the agent's options of these names."""

    xdp: str = "off"
    dsr: str = "off"
    scheduler: str = "random"
    ejection: str = "off"

    @property
    def defaults(self) -> Defaults:
        return Defaults(scheduler=Scheduler(self.scheduler), dsr=Dsr(self.dsr))

    @property
    def has_dsr(self) -> bool:
        """Pods on other nodes see the addresses of external clients at external frontends."""
        return Dsr(self.dsr) is Dsr.ALL

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment that gives agents this mode."""
        return {variable(name): value for name, value in self._asdict().items()}


def chosen_mode() -> Mode | None:
    """The mode that the environment asks for, if any."""
    given = {name: os.environ.get(variable(name)) for name in Mode._fields}
    chosen = {name: value for name, value in given.items() if value}
    return Mode(**chosen) if chosen else None


def present_mode() -> Mode:
    """The mode of agents without options."""
    return chosen_mode() or Mode()

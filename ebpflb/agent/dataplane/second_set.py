# SPDX-License-Identifier: Apache-2.0
"""A second set of ebpflb's programs at this node's hooks: taken off, unless its agent runs."""

import logging
from collections.abc import Collection
from pathlib import Path

from ebpflb.agent.interface import Errors
from ebpflb.dataplane.attach.hook_lock import HookLock
from ebpflb.dataplane.attach.strays import Stray, find_strays, summary, take_off
from ebpflb.errors import AttachError, EbpflbError
from ebpflb.log import fields

_log = logging.getLogger("ebpflb.agent")


class SecondSet:
    """For the network namespace of the calling thread."""

    def __init__(self, root: Path, cgroup: Path) -> None:
        """`root`: of our pins. ConfigError if the cgroup root is not a cgroup v2 directory."""
        self._root = root
        self._lock = HookLock(cgroup)

    def close(self) -> None:
        self._lock.close()

    def refuse_other_agent(self) -> None:
        """AttachError if another agent runs that has programs at our hooks.

        The two would undo each other's work for ever.
        """
        held = self._lock.held_by_others()
        if held and (found := self._find()):
            raise AttachError(
                f"another agent serves {held}, with other pins: stop it first, one node has one "
                f"agent ({summary(found)})"
            )

    def take_off(self, own: Collection[int]) -> tuple[bool, Errors]:
        """Whether anything was taken off, and what failed. `own`: programs that are ours.

        Filters at clsact have been replaced or removed with the devices.
        """
        if self._lock.held_by_others():
            return False, {}
        try:
            strays = [each for each in self._find(own) if each.link]
        except AttachError as error:
            return False, {"a second set": error}
        errors: dict[str, EbpflbError] = {}
        for each in strays:
            try:
                take_off(each)
            except AttachError as error:
                errors[f"{each.hook} {each.device}".strip()] = error
        if strays:
            shown = fields(hooks=len(strays), failed=len(errors))
            _log.warning("%s: taken off", summary(strays), extra=shown)
        return bool(strays), errors

    def _find(self, own: Collection[int] = ()) -> list[Stray]:
        """None without the right to look at links (CAP_SYS_ADMIN), which Services do not need."""
        try:
            return find_strays(self._root, {self._lock.cgroup_id}, own)
        except AttachError as error:
            if isinstance(error.__cause__, PermissionError):
                return []
            raise

# SPDX-License-Identifier: Apache-2.0
"""Watches the settings file: new content ends the agent, which is then restarted with it."""

import logging
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

from ebpflb.config.file_version import FileVersion, digest
from ebpflb.errors import ConfigError
from ebpflb.log import fields
from ebpflb.source.watch import COMPARE_SECONDS, Watch

_log = logging.getLogger("ebpflb.agent")


@contextmanager
def config_watched(file: FileVersion | None, changed: Callable[[], None]) -> Iterator[None]:
    """Call changed() once, from a thread, when the file's content differs from what was read.

    A missing file, as for a moment while it is being replaced, does not count as changed; nor does
    one rewritten with the same content. Without a file, does nothing. ConfigError if the machine
    cannot watch files.
    """
    if file is None:
        yield
        return
    try:
        watch = Watch(str(file.path.absolute()))
    except OSError as error:
        text = f"no inotify: {error.strerror}; raise the sysctl fs.inotify.max_user_instances"
        raise ConfigError(f"settings file {file.path}: {text}") from error
    _look(watch)
    stop = os.eventfd(0)
    follow = partial(_follow, watch, stop, file, is_changed=_is_changed(file), changed=changed)
    thread = threading.Thread(target=follow, name="ebpflb-config", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(stop, 1)
        thread.join()
        os.close(stop)


def _follow(
    watch: Watch, stop: int, file: FileVersion, *, is_changed: bool, changed: Callable[[], None]
) -> None:
    poller = select.poll()
    poller.register(stop, select.POLLIN)
    poller.register(watch.fileno(), select.POLLIN)
    with closing(watch):
        while not is_changed:
            if not _wait(watch, poller, stop, file.path.name):
                return
            is_changed = _is_changed(file)
    shown = fields(path=file.path)
    _log.info("settings file changed: exiting to restart with it", extra=shown)
    changed()


def _wait(watch: Watch, poller: select.poll, stop: int, name: str) -> bool:
    """Wait until the file may have changed; False if the agent is ending."""
    while stop not in (ready := dict(poller.poll(COMPARE_SECONDS * 1000))):
        touched = watch.read()
        if touched.compare_all or not ready:
            _look(watch)
        may_differ = touched.compare_all or touched.changed or not ready
        if may_differ and watch.may_read(name, only_settled=not ready):
            return True
    return False


def _look(watch: Watch) -> None:
    """Follow the path to its current target."""
    try:
        watch.follow()
    except OSError as error:
        _log.debug("settings file is missing", extra=fields(error=error.strerror))


def _is_changed(file: FileVersion) -> bool:
    try:
        return digest(file.path.read_bytes()) != file.digest
    except OSError:
        return False

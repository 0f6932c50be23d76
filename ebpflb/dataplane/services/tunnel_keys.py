# SPDX-License-Identifier: Apache-2.0
"""The keys of DSR's tunnels (lb_tunnel_keys), from a file that may change while the agent runs.

The first key is sent with every tunneled packet, and both are accepted. No text has a key in it.
"""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ebpflb.dataplane.kernel.dsr_questions import NO_KEY
from ebpflb.dataplane.kernel.maps import BpfMap

_log = logging.getLogger("ebpflb.agent")

_INDEX = bytes(4)
_KEY = re.compile(r"[0-9a-fA-F]{16}")
_MOST_KEYS = 2
# Far more than the keys, with comments, take.
_MOST_BYTES = 4096


class TunnelKeys:
    """For one thread, except `count` and `trouble`."""

    def __init__(self, path: Path | None) -> None:
        """`path`: None if the cluster has no key."""
        self._path = path
        self._keys: Sequence[bytes] = ()
        # With which this node sends.
        self.sent = NO_KEY
        # What is wrong with the file, or "".
        self.trouble = ""

    @property
    def count(self) -> int:
        """How many keys are accepted, 0 without."""
        return len(self._keys)

    def follow(self, target: BpfMap) -> None:
        """Read the file, and write lb_tunnel_keys if it differs. MapError.

        While the file cannot be used, the keys stay as they are; if there were none, a random one
        keeps this node out of tunnels.
        """
        before = target.lookup(_INDEX) or bytes(2 * len(NO_KEY))
        self._read()
        if self._keys:
            wanted = self._keys[0] + self._keys[-1]
        elif self._path is None:
            wanted = 2 * NO_KEY
        else:
            wanted = before if any(before) else 2 * os.urandom(len(NO_KEY))
        if wanted != before:
            target.update(_INDEX, wanted)
            _log.info("the keys of DSR tunnels have changed")
        self.sent = wanted[: len(NO_KEY)]

    def _read(self) -> None:
        if self._path is None:
            return
        trouble = ""
        try:
            self._keys = _keys_in(_text_of(self._path))
        except OSError as error:
            trouble = f"{self._path}: {error.strerror}"
        except ValueError as error:
            trouble = f"{self._path}: {error}"
        if trouble and trouble != self.trouble:
            _log.error("cannot read the keys of DSR tunnels, which stay as they are: %s", trouble)
        self.trouble = trouble


def _text_of(path: Path) -> str:
    with path.open("rb") as file:
        found = file.read(_MOST_BYTES + 1)
    if len(found) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return found.decode(errors="replace")


def _keys_in(text: str) -> Sequence[bytes]:
    """One in a line, besides empty lines and comments. ValueError."""
    keys = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.partition("#")[0].strip()
        if word and (not _KEY.fullmatch(word) or not int(word, 16)):
            raise ValueError(f"line {number}: want 16 hexadecimal digits, not all of them 0")
        if word:
            keys.append(bytes.fromhex(word))
    if not 0 < len(keys) <= _MOST_KEYS:
        raise ValueError(f"want one or {_MOST_KEYS} keys, found {len(keys)}")
    return keys

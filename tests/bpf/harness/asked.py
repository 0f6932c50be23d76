# SPDX-License-Identifier: Apache-2.0
"""A process in a cgroup that answers requests, each of them a line of JSON.

It imports little: under emulation that takes seconds.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Asked:
    """The other end of the process, which runs in the network namespace of its creator.

    The process runs the module of the derived class, which calls `answer()`.
    """

    def __init__(self, cgroup: Path) -> None:
        command = [sys.executable, "-m", type(self).__module__, str(cgroup)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *question: object) -> Any:
        """The process's answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps(question), file=stdin, flush=True)
        return json.loads(stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def answer(find: Callable[..., object]) -> None:
    """The process's loop, in the cgroup that it was given: `find` gets the parts of each
    request.
    """
    Path(sys.argv[1], "cgroup.procs").write_text("0")
    for line in sys.stdin:
        print(json.dumps(find(*json.loads(line))), flush=True)

# SPDX-License-Identifier: Apache-2.0
"""A process in a cgroup that is asked and answers, each in a line of JSON.

It imports little: under emulation that takes seconds.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Asked:
    """The other end of the process; it runs in the network namespace of who makes it.

    What runs is the module of the class that derives from this one; it calls `answer()`.
    """

    def __init__(self, cgroup: Path) -> None:
        command = [sys.executable, "-m", type(self).__module__, str(cgroup)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *question: object) -> Any:
        """What the process makes of it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps(question), file=stdin, flush=True)
        return json.loads(stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def answer(find: Callable[..., object]) -> None:
    """What the process does, in the cgroup it was told: `find` gets the parts of each question."""
    Path(sys.argv[1], "cgroup.procs").write_text("0")
    for line in sys.stdin:
        print(json.dumps(find(*json.loads(line))), flush=True)

# SPDX-License-Identifier: Apache-2.0
"""A process's /proc/PID/status."""

from pathlib import Path


class ProcStatus(dict[str, str]):
    """The fields by name, such as VmRSS: `1024 kB`; a process that has ended has no memory."""

    @classmethod
    def of(cls, pid: int) -> "ProcStatus":
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        fields = (line.partition(":") for line in lines)
        return cls((name, value.strip()) for name, _, value in fields)

    def number(self, name: str) -> int:
        """Memory in KiB. KeyError."""
        return int(self[name].split()[0])

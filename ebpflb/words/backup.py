# SPDX-License-Identifier: Apache-2.0
"""Words for a Service with a backup."""

from enum import StrEnum

# In place of the names of namespaces that may have a Service as their backup.
EVERY_NAMESPACE = "*"


class BackupUse(StrEnum):
    """Whether new connections go to the endpoints of the backup. SPILL: to its own, too."""

    NONE = "none"
    SPILL = "spill"
    ONLY = "only"

    @property
    def shown(self) -> str:
        """For people."""
        return _SHOWN[self]


_SHOWN = {
    BackupUse.NONE: "",
    BackupUse.SPILL: "spills over to its backup",
    BackupUse.ONLY: "on its backup",
}

# SPDX-License-Identifier: Apache-2.0
"""What the annotations of a Service ask for."""

from dataclasses import dataclass

from ebpflb.model.extensions.weights import Weights
from ebpflb.words.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Annotated:
    """None: the agent's default.

    dsr: whether it has direct server return. ejection: after how many failed connections in a row
    an endpoint is ejected, 0 for never. weights: None for even ones. backup: NAME or NAMESPACE/NAME
    of another Service. backup_for: the namespaces that may use this one so. spill_at: from how many
    open connections on new ones also go to the backup.
    """

    scheduler: Scheduler | None = None
    dsr: bool | None = None
    ejection: int | None = None
    weights: Weights | None = None
    backup: str | None = None
    backup_for: tuple[str, ...] | None = None
    spill_at: int | None = None


NOTHING = Annotated()

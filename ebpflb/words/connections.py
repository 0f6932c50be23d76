# SPDX-License-Identifier: Apache-2.0
"""What becomes of a connection: in `explain` before it is made, in flow records afterwards."""

from enum import StrEnum

START, END, REFUSED, DROPPED = "start", "end", "refused", "dropped"
FLOW_EVENTS = (START, END, REFUSED, DROPPED)
"""Every event of a flow record, in the order of a flow's life."""

FORWARDED, FAILED = "forwarded", "failed"
VERDICTS = (FORWARDED, FAILED, REFUSED, DROPPED)
"""Every verdict, in the order in which they are shown; all but the first are problems."""
# How a connection ends that no backend accepted.
NO_ANSWER, BACKEND_REFUSED = "no_answer", "backend_refused"
FAILURES = (NO_ANSWER, BACKEND_REFUSED)

SOCKET_HOOK = "socket hook"
"""Where socket LB translates a connection: the place in an answer of `explain`."""


class Fate(StrEnum):
    """What happens to a new connection."""

    TRANSLATED = "translated"
    REFUSED = REFUSED
    DROPPED = DROPPED
    PASSES = "passes"

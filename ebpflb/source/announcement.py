# SPDX-License-Identifier: Apache-2.0
"""What users of the API should know about one of its objects."""

from typing import NamedTuple

from ebpflb.model.changes import ObjectKey


class Announcement(NamedTuple):
    """reason: one word for programs; note: a sentence for people."""

    about: ObjectKey
    reason: str
    note: str
    warning: bool = True

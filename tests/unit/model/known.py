# SPDX-License-Identifier: Apache-2.0
"""A model that knows some objects."""

from ebpflb.model.changes import Changes
from ebpflb.model.objects.kinds import ApiObject
from tests.builders import NODE


def known(*items: ApiObject) -> Changes:
    """Changes that have received these objects, and were read."""
    changes = Changes(NODE)
    for item in items:
        changes.set(item)
    changes.take()
    return changes

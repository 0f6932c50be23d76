# SPDX-License-Identifier: Apache-2.0
"""When the endpoints of a slice changed, as the EndpointSlice controller notes it."""

from contextlib import suppress
from datetime import datetime

from ebpflb.source.fields import Fields
from ebpflb.source.metadata import metadata_of

_ANNOTATION = "endpoints.kubernetes.io/last-change-trigger-time"


def trigger_time(item: Fields) -> float | None:
    """In seconds since 1970; None where the slice does not tell, or not in RFC 3339."""
    text = metadata_of(item).annotations.get(_ANNOTATION)
    with suppress(ValueError):
        found = datetime.fromisoformat(str(text))
        return found.timestamp() if found.tzinfo else None
    return None

# SPDX-License-Identifier: Apache-2.0
"""Invalid objects, from the API to the maps: each refused one is named in one line, and another
Service is still served.
"""

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.changes import Changes
from ebpflb.model.objects.kinds import key_of
from ebpflb.model.service import ServiceName
from tests.builders import NODE, Manifest, service_manifest, slice_manifest
from tests.memory_maps import memory_maps
from tests.unit.nonsense_objects import OBJECTS, decoded

# With "web" in the namespace "prod", which no object of chance has.
VALID = [
    service_manifest("web", namespace="prod", cluster_ip="10.96.0.99"),
    slice_manifest("web-1", service="web", namespace="prod"),
]
WEB = ServiceName("prod", "web")


@settings(max_examples=150)
@given(st.lists(OBJECTS, max_size=6))
def test_what_is_nonsense_is_named_and_what_is_not_is_served(documents: list[Manifest]):
    changes = Changes(NODE)
    sync = Sync(memory_maps(), quiesce=lambda: None)
    sync.load()
    for document in (*documents, *VALID):
        found = decoded(document)
        if found:
            changes.set(found)
    desired = {name: changes.plan(name) for name in sorted(changes.take())}
    assert not sync.apply(desired)
    for name in desired:
        changes.health_check(name)
    (frontend,) = changes.plan(WEB)
    assert frontend.local.backends
    for document in documents:
        found = decoded(document)
        if found:
            changes.remove(key_of(found))
    assert not sync.apply({name: changes.plan(name) for name in changes.take()})
    assert changes.names() == {WEB}


@pytest.mark.parametrize("hours", [14, -14])
@pytest.mark.parametrize("time", [datetime.min, datetime.max])
@pytest.mark.parametrize("field", ["creationTimestamp", "deletionTimestamp"])
def test_a_time_that_no_clock_has_in_utc_is_named(field: str, time: datetime, hours: int):
    document = service_manifest()
    document["metadata"][field] = time.replace(tzinfo=timezone(timedelta(hours=hours)))
    decoded(document)

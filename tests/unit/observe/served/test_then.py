# SPDX-License-Identifier: Apache-2.0
"""Which of the lines that were kept are read to tell what one Service was."""

from collections.abc import Callable, Iterator
from pathlib import Path

from ebpflb.model.address import format_address
from ebpflb.model.changes import Changes
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.extensions.weights import Weights
from ebpflb.model.objects.kinds import ApiObject
from ebpflb.model.service import ServiceName
from ebpflb.observe.served.kept_changes import KeptChanges
from ebpflb.observe.served.records import ServedRecord, line_of, read_name, read_record
from ebpflb.observe.served.then import PastServices
from tests.builders import NODE, endpoint, endpoint_slice, service, service_port

WEB = ServiceName("default", "web")
TIME = "2026-11-24T02:10:00.000000000Z"


class Kept(KeptChanges):
    """Of a few objects, which remembers the names of those that were read."""

    def __init__(self, *objects: ApiObject) -> None:
        super().__init__(Path(), 0)
        self._all = [line_of(TIME, each) for each in objects]
        self.read: list[str] = []

    def records(self, moment: int, mentions: Callable[[bytes], bool]) -> Iterator[ServedRecord]:
        for line in self._all:
            if not mentions(line):
                continue
            self.read.append(read_name(line))
            yield read_record(line)


def test_a_slice_that_becomes_another_services_is_read():
    others = endpoint_slice("web-1", service="api")
    kept = Kept(service("web"), endpoint_slice("web-1"), service("api"), others)
    found = PastServices(kept, lambda: Changes(NODE)).named(WEB, 0)
    assert not found.changes.slices(WEB)
    assert kept.read == ["web", "web-1", "web-1"]


def test_the_pods_of_its_namespace_have_the_labels_of_then():
    v1, v2 = (PodLabels("default", "web-1", (("version", each),)) for each in ("v1", "v2"))
    heavy = PodLabels("default", "web-2", weight=9)
    pods = [v1, heavy, PodLabels("shop", "web-3", (("a", "default"),)), v2]
    kept = Kept(service("web", weights=Weights()), *pods)
    found = PastServices(kept, lambda: Changes(NODE)).named(WEB, 0).changes
    assert found.pod_labels("default", "web-1") == v2
    assert found.pod_labels("default", "web-2") == heavy
    assert kept.read == ["web", "web-1", "web-2", "web-1"]


def test_names_that_occur_in_other_objects_make_nobody_read_those():
    pieces = [endpoint_slice("protocol"), endpoint_slice("cart")]
    kept = Kept(service("web"), *pieces, service("cart"), endpoint_slice("cart-1", service="cart"))
    found = PastServices(kept, lambda: Changes(NODE)).named(WEB, 0)
    assert len(found.changes.slices(WEB)) == 2
    # Of the same name as one of its slices, which is read to no avail.
    assert kept.read == ["web", "protocol", "cart", "cart"]


def test_the_backup_of_then_is_read_too():
    static = service("static", service_port("10.96.0.20"))
    lent = endpoint_slice("static-1", endpoint("10.2.0.1"), service="static")
    kept = Kept(service("web", backup="static"), static, lent, service("cart"))
    found = PastServices(kept, lambda: Changes(NODE)).named(WEB, 0)
    (frontend,) = found.changes.plan(WEB)
    assert [format_address(each.address) for each in frontend.others.backends] == ["10.2.0.1"]
    # The annotation has the name of the backup.
    assert kept.read == ["web", "web", "static", "static-1"]
    assert found.since == TIME


def test_a_backup_of_then_that_is_not_known_is_no_error():
    kept = Kept(service("web", backup="static"), endpoint_slice("web-1", endpoint()))
    found = PastServices(kept, lambda: Changes(NODE)).named(WEB, 0)
    assert found.changes.plan(WEB)[0].others.backends

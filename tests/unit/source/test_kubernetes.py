# SPDX-License-Identifier: Apache-2.0
"""The agent's view of four resources, each of which appears and fails independently."""

import threading
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from ebpflb.config.label_selector import parse_label_selector
from ebpflb.errors import SourceError
from ebpflb.model.address import Family
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.model.pod import PodNamespace
from ebpflb.model.selection import EVERYTHING, Selection
from ebpflb.model.service import ServiceCidr, ServiceName
from ebpflb.source.api import ApiRequest, MissingError, WatchStream
from ebpflb.source.api_objects import Item
from ebpflb.source.api_types import Fields, ListMetadata
from ebpflb.source.interface import SourceEvent, Trigger
from ebpflb.source.kubernetes import KubernetesSource
from tests.builders import (
    NODE,
    OTHER_NODE,
    endpoint,
    endpoint_manifest,
    endpoint_slice,
    node,
    node_manifest,
    port_manifest,
    service,
    service_cidr_manifest,
    service_manifest,
    slice_manifest,
)
from tests.unit.source.scripted import SECONDS, Script, event, item, page, versioned

NODE_KEY = ObjectKey(Kind.NODE, "", NODE)
WEB_KEY = ObjectKey(Kind.SERVICE, "default", "web")
WEB = service_manifest("web")
LISTED = {
    Kind.SERVICE: [WEB],
    Kind.ENDPOINT_SLICE: [slice_manifest()],
    Kind.NODE: [node_manifest()],
}
CIDR = service_cidr_manifest("kubernetes", "10.96.0.0/12")
CIDR_KEY = ObjectKey(Kind.SERVICE_CIDR, "", "kubernetes")
RESOURCES = ("services", "endpointslices", "nodes", "servicecidrs", "pods", "namespaces")
NO_NODE = {"Node node-a": "Node node-a does not exist: --node-name must name one"}


class ManualSource:
    """A source whose reflectors do not run: a test says what they would."""

    def __init__(self, selection: Selection = EVERYTHING, *, all_nodes: bool = False) -> None:
        self.events: list[SourceEvent] = []
        self.source = KubernetesSource(
            Script(), NODE, self.events.append, selection, all_nodes=all_nodes
        )

    def listed(self, kind: Kind, *items: Fields) -> None:
        self.source.replace(kind, map(item, items))

    def list_all(self, **other: list[Fields]) -> SourceEvent:
        """List everything, and forget the events until then; other: kind -> items."""
        for kind, items in LISTED.items():
            self.listed(kind, *other.get(kind.name.lower(), items))
        return self.last()

    def change(self, kind: Kind, document: Fields) -> SourceEvent:
        self.source.change(kind, item(document), deleted=False)
        return self.last()

    def delete(self, kind: Kind, document: Fields) -> SourceEvent:
        self.source.change(kind, item(document), deleted=True)
        return self.last()

    def last(self) -> SourceEvent:
        last = self.events[-1]
        del self.events[:]
        return last


@pytest.fixture
def manual() -> ManualSource:
    return ManualSource()


@pytest.mark.parametrize("last", list(LISTED))
def test_the_first_event_comes_with_the_last_of_the_three_and_carries_everything(
    manual: ManualSource, last: Kind
):
    for kind in LISTED.keys() - {last}:
        manual.listed(kind, *LISTED[kind])
        early = manual.last()
        assert (early.upserts, early.removals, early.initial) == ((), (), False)
    manual.listed(last, *LISTED[last])
    first = manual.last()
    assert first.initial
    expected = [service("web"), endpoint_slice("web-1", endpoint()), node()]
    assert sorted(first.upserts, key=str) == sorted(expected, key=str)
    assert first.removals == ()
    assert first.errors == {}


def test_namespaces_are_waited_for_if_they_choose_the_services():
    manual = ManualSource(Selection(namespaces=parse_label_selector("team=a")))
    assert not manual.list_all().initial
    labels = {"team": "a", "app": "web"}
    space = {"kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    manual.listed(Kind.NAMESPACE, space)
    first = manual.last()
    assert first.initial
    assert PodNamespace("default", labels=(("team", "a"),)) in first.upserts
    selected = ManualSource(Selection(parse_label_selector("canary")))
    assert selected.list_all().initial


def test_only_one_event_is_the_first(manual: ManualSource):
    assert manual.list_all().initial
    manual.listed(Kind.NODE, node_manifest(zone="zone-1"))
    again = manual.last()
    assert (again.initial, again.upserts) == (False, (node(zone="zone-1"),))


def test_what_goes_before_the_first_event_is_not_in_it(manual: ManualSource):
    manual.listed(Kind.SERVICE, WEB, service_manifest("shop"))
    manual.delete(Kind.SERVICE, WEB)
    manual.listed(Kind.ENDPOINT_SLICE)
    manual.listed(Kind.NODE, node_manifest())
    assert manual.last().upserts == (service("shop"), node())


def test_what_comes_back_before_the_first_event_is_in_it(manual: ManualSource):
    manual.listed(Kind.SERVICE, WEB)
    manual.delete(Kind.SERVICE, WEB)
    manual.change(Kind.SERVICE, WEB)
    manual.listed(Kind.ENDPOINT_SLICE)
    manual.listed(Kind.NODE, node_manifest())
    assert manual.last().upserts == (service("web"), node())


def test_a_node_that_is_missing_is_an_error_until_it_comes(manual: ManualSource):
    first = manual.list_all(node=[])
    assert first.removals == (NODE_KEY,)
    assert first.errors == NO_NODE
    there = manual.change(Kind.NODE, node_manifest())
    assert there.upserts == (node(),)
    assert there.errors == {}


def test_a_node_that_goes_is_an_error(manual: ManualSource):
    manual.list_all()
    gone = manual.delete(Kind.NODE, node_manifest())
    assert gone.removals == (NODE_KEY,)
    assert gone.errors == NO_NODE


def test_among_all_nodes_the_own_one_may_be_missing():
    manual = ManualSource(all_nodes=True)
    first = manual.list_all(node=[node_manifest(OTHER_NODE)])
    assert (first.removals, first.errors) == ((NODE_KEY,), NO_NODE)
    assert node(OTHER_NODE) in first.upserts
    assert manual.change(Kind.NODE, node_manifest()).errors == {}
    assert manual.delete(Kind.NODE, node_manifest(OTHER_NODE)).errors == {}
    assert manual.delete(Kind.NODE, node_manifest()).errors == NO_NODE


def test_a_slice_without_a_service_is_nothing_to_tell(
    manual: ManualSource, caplog: pytest.LogCaptureFixture
):
    manual.list_all()
    alone = slice_manifest("alone")
    del alone["metadata"]["labels"]["kubernetes.io/service-name"]
    manual.source.change(Kind.ENDPOINT_SLICE, item(alone), deleted=False)
    manual.source.change(Kind.ENDPOINT_SLICE, item(alone), deleted=True)
    assert (manual.events, caplog.records) == ([], [])


def test_a_heartbeat_of_a_node_is_nothing_to_tell(manual: ManualSource):
    manual.list_all()
    beat = node_manifest()
    beat["status"]["conditions"] = [{"type": "Ready", "lastHeartbeatTime": "now"}]
    manual.source.change(Kind.NODE, item(beat), deleted=False)
    assert manual.events == []
    broken = {**beat, "status": 3}
    manual.source.change(Kind.NODE, item(broken), deleted=False)
    manual.source.change(Kind.NODE, item(broken), deleted=False)
    assert [list(each.errors) for each in manual.events] == [[NODE_KEY]]


def test_a_node_that_cannot_be_read_is_not_said_to_be_missing(manual: ManualSource):
    broken = {**node_manifest(), "status": 3}
    text = "Node node-a: status: must be an object, not 3"
    assert manual.list_all(node=[broken]).errors == {NODE_KEY: text}


def test_a_node_that_was_not_listed_yet_is_not_missing(manual: ManualSource):
    manual.listed(Kind.SERVICE, WEB)
    assert manual.last().errors == {}


def test_errors_before_the_first_event_are_reported_without_objects(manual: ManualSource):
    manual.listed(Kind.SERVICE, WEB)
    manual.source.report(Kind.NODE, "may not list nodes")
    early = manual.last()
    assert early.errors == {"api": "may not list nodes"}
    assert (early.upserts, early.initial) == ((), False)
    manual.listed(Kind.ENDPOINT_SLICE)
    manual.source.report(Kind.NODE, "")
    manual.listed(Kind.NODE, node_manifest())
    first = manual.last()
    assert (first.upserts, first.errors) == ((service("web"), node()), {})


def test_errors_after_the_first_event_remove_nothing(manual: ManualSource):
    manual.list_all()
    manual.source.report(Kind.SERVICE, "away")
    during = manual.last()
    assert during.errors == {"api": "away"}
    assert (during.upserts, during.removals) == ((), ())
    manual.source.report(Kind.SERVICE, "")
    assert manual.last().errors == {}


def test_one_reason_for_several_resources_is_one_line(manual: ManualSource):
    manual.list_all()
    for kind in Kind:
        manual.source.report(kind, "away")
    assert manual.last().errors == {"api": "away"}
    manual.source.report(Kind.NODE, "may not watch nodes")
    assert manual.last().errors == {"api": "away; may not watch nodes"}


def test_the_same_error_again_is_nothing_to_tell(manual: ManualSource):
    manual.list_all()
    manual.source.report(Kind.NODE, "away")
    manual.source.report(Kind.NODE, "away")
    assert len(manual.events) == 1


def test_a_list_that_breaks_off_leaves_the_first_event_to_come(manual: ManualSource):
    manual.listed(Kind.SERVICE, WEB)
    manual.listed(Kind.ENDPOINT_SLICE)
    manual.last()

    def items() -> Iterator[Item]:
        yield item(node_manifest())
        raise SourceError("away")

    with pytest.raises(SourceError):
        manual.source.replace(Kind.NODE, items())
    assert manual.events == []
    manual.listed(Kind.NODE, node_manifest())
    assert manual.last().initial


def test_an_unreadable_object_is_an_error_that_others_leave_alone(manual: ManualSource):
    manual.list_all()
    broken = service_manifest("web", ports=[port_manifest(0)])
    port = "spec.ports[0].port: must be a whole number from 1 to 65535, not 0"
    errors = {WEB_KEY: f"Service default/web: {port}"}
    during = manual.change(Kind.SERVICE, broken)
    assert (during.upserts, during.removals, during.errors) == ((), (), errors)
    assert manual.change(Kind.SERVICE, service_manifest("shop")).errors == errors
    assert manual.change(Kind.SERVICE, WEB).errors == {}


def test_an_object_that_the_selector_leaves_out_from_now_on_is_removed(manual: ManualSource):
    manual.list_all()
    left = service_manifest("web", labels={"service.kubernetes.io/service-proxy-name": "other"})
    gone = manual.delete(Kind.SERVICE, left)
    assert (gone.upserts, gone.removals) == ((), (WEB_KEY,))


def test_triggers_come_with_their_change(manual: ManualSource):
    manual.list_all()
    moved = slice_manifest(endpoints=[endpoint_manifest("10.1.0.2")])
    name = "endpoints.kubernetes.io/last-change-trigger-time"
    moved["metadata"]["annotations"] = {name: "1970-01-01T00:00:10Z"}
    trigger = Trigger(ServiceName("default", "web"), Family.IPV4, 10.0)
    assert manual.change(Kind.ENDPOINT_SLICE, moved).triggers == (trigger,)
    assert manual.change(Kind.SERVICE, service_manifest("shop")).triggers == ()


def test_uids_are_of_the_kind_that_is_asked_for(manual: ManualSource):
    manual.list_all(service=[versioned(WEB, "1", "uid-1")])
    assert manual.source.uid(WEB_KEY) == "uid-1"
    assert manual.source.uid(NODE_KEY) == ""


def test_nothing_is_reported_after_the_stop(manual: ManualSource):
    manual.list_all()
    manual.source.stop()
    manual.source.change(Kind.SERVICE, item(service_manifest("shop")), deleted=False)
    manual.source.report(Kind.SERVICE, "away")
    assert manual.events == []


class Server:
    """A Reader with a script for each resource."""

    def __init__(self, **scripts: Script) -> None:
        empty = {name: Script(page(version="1")) for name in RESOURCES}
        self.scripts = {**empty, **scripts}

    def items(self, request: ApiRequest) -> Generator[Item, None, ListMetadata]:
        return self._script(request).items(request)

    def watch(self, request: ApiRequest, silence: float) -> WatchStream:
        return self._script(request).watch(request, silence)

    def _script(self, request: ApiRequest) -> Script:
        return self.scripts[request.path.rpartition("/")[2]]


def test_all_resources_are_listed_and_watched_as_kube_proxy_does(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("ebpflb.source.reflector._SHORT_WATCH_SECONDS", 0)
    scripts = {
        "services": Script(page(WEB, version="1"), [event("DELETED", versioned(WEB, "2"))]),
        "endpointslices": Script(page(slice_manifest(), version="1")),
        "nodes": Script(page(version="1"), [event("ADDED", versioned(node_manifest(), "2"))]),
        "servicecidrs": Script(page(CIDR, version="1")),
        "pods": Script(page(version="1")),
        "namespaces": Script(page(version="1")),
    }
    events: list[SourceEvent] = []
    source = KubernetesSource(Server(**scripts), NODE, events.append)
    source.start()
    assert all(script.over.wait(SECONDS) for script in scripts.values())
    source.stop()
    queries: dict[str, Any] = {name: script.queries[0] for name, script in scripts.items()}
    assert [queries["services"].get(key) for key in ("labelSelector", "fieldSelector")] == [
        "!service.kubernetes.io/service-proxy-name",
        "spec.clusterIP!=None",
    ]
    assert queries["endpointslices"]["labelSelector"] == (
        "!service.kubernetes.io/headless,kubernetes.io/service-name"
    )
    assert queries["nodes"]["fieldSelector"] == f"metadata.name={NODE}"
    assert queries["pods"]["fieldSelector"] == f"spec.nodeName={NODE}"
    assert scripts["endpointslices"].paths == ["/apis/discovery.k8s.io/v1/endpointslices"]
    assert scripts["servicecidrs"].paths == ["/apis/networking.k8s.io/v1/servicecidrs"]
    assert [each.initial for each in events].count(True) == 1
    assert node() in [item for each in events for item in each.upserts]


def test_a_proxy_with_a_name_asks_for_its_services_alone():
    script = Script(page(version="1"))
    chosen = Selection(proxy_name="ebpflb")
    source = KubernetesSource(Server(services=script), NODE, lambda _: None, chosen)
    source.start()
    assert script.over.wait(SECONDS)
    source.stop()
    wanted = "service.kubernetes.io/service-proxy-name=ebpflb"
    assert script.queries[0]["labelSelector"] == wanted
    assert script.queries[0]["fieldSelector"] == "spec.clusterIP!=None"


def test_all_nodes_are_asked_for_if_they_are_needed():
    script = Script(page(node_manifest(), node_manifest(OTHER_NODE), version="1"))
    source = KubernetesSource(Server(nodes=script), NODE, lambda _: None, all_nodes=True)
    source.start()
    assert script.over.wait(SECONDS)
    source.stop()
    assert "fieldSelector" not in script.queries[0]


def test_errors_of_the_api_server_reach_the_agent():
    heard = threading.Event()
    events: list[SourceEvent] = []

    def emit(event: SourceEvent) -> None:
        events.append(event)
        heard.set()

    away = SourceError("away")
    scripts = {name: Script(away) for name in RESOURCES}
    source = KubernetesSource(Server(**scripts), NODE, emit)
    source.start()
    assert heard.wait(SECONDS)
    source.stop()
    assert events[0].errors == {"api": "away"}


def test_service_cidrs_need_not_be_there_for_the_first_event(manual: ManualSource):
    assert manual.list_all().initial
    manual.listed(Kind.SERVICE_CIDR, CIDR)
    assert manual.last().upserts == (ServiceCidr("kubernetes", ("10.96.0.0/12",)),)
    assert manual.delete(Kind.SERVICE_CIDR, CIDR).removals == (CIDR_KEY,)


def test_an_api_server_without_service_cidrs_is_no_error():
    missing = Script(MissingError("no such thing"), MissingError("no such thing"))
    others = {"services": WEB, "endpointslices": slice_manifest(), "nodes": node_manifest()}
    scripts = {name: Script(page(item, version="1")) for name, item in others.items()}
    events: list[SourceEvent] = []
    source = KubernetesSource(Server(**scripts, servicecidrs=missing), NODE, events.append)
    source.start()
    assert all(script.over.wait(SECONDS) for script in (*scripts.values(), missing))
    source.stop()
    first = next(each for each in events if each.initial)
    assert len(first.upserts) == 3
    assert "no such thing" not in str([each.errors for each in events])

# SPDX-License-Identifier: Apache-2.0
"""What the official client's informer lacks, and why source/reflector.py does not use it.

Each test states today's behaviour. A failure with a newer client means that a gap is closed: then
reconsider what docs/development/decisions/sources.md says of the reflector.
"""

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration, CoreV1Api, DiscoveryV1Api
from kubernetes.informer import ERROR, SharedInformer
from urllib3 import PoolManager

from ebpflb.source.api_types import Fields
from tests.builders import service_manifest, slice_manifest
from tests.unit.source.api_server import Answer, ApiServer, answer
from tests.unit.source.scripted import event, page, versioned

SECONDS = 60
# So many requests in a row show that nothing waits between them: a second between them would take
# longer. Without it they take less than one.
MANY, HURRY = 100, 60.0
SILENT = Answer(end="silent")

# The client's models want addresses.
ODD = slice_manifest(endpoints=[{"conditions": {}}])

Start = Callable[..., SharedInformer]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def client(server: ApiServer) -> ApiClient:
    configuration = Configuration()
    configuration.host = server.url
    configuration.retries = False
    return ApiClient(configuration)


@pytest.fixture
def start(server: ApiServer) -> Iterator[Start]:
    """Starts informers; before they are stopped the server lets go of who is kept waiting."""
    informers: list[SharedInformer] = []

    def start_informer(list_func: Callable[..., Any], on_error: Any = None) -> SharedInformer:
        informers.append(SharedInformer(list_func))
        if on_error:
            informers[-1].add_event_handler(ERROR, on_error)
        informers[-1].start()
        return informers[-1]

    yield start_informer
    for informer in informers:
        informer._stop_event.set()
    server.answers.extend([answer({}, 410)] * 5)
    server.released.set()
    for informer in informers:
        informer.stop()


def wait_for(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def listed(kind: str, *items: Fields, rest: str = "") -> Answer:
    return answer({"kind": kind, **page(*items, version="7", rest=rest)})


def watched(*events: Fields, end: str = "whole") -> Answer:
    return Answer(pieces=tuple(json.dumps(each).encode() + b"\n" for each in events), end=end)


def test_a_list_is_asked_for_whole_and_further_pages_are_lost(
    server: ApiServer, client: ApiClient, start: Start
):
    server.answers.extend([listed("ServiceList", service_manifest(), rest="token"), SILENT])
    informer = start(CoreV1Api(client).list_service_for_all_namespaces)
    wait_for(lambda: len(server.requests) == 2)
    listing, watch = server.requests
    assert "limit" not in listing.query
    assert watch.query["watch"] == ["true"]
    assert informer.cache.list_keys() == ["default/web"]


def test_a_watch_has_no_bookmarks_and_no_bound_in_time(
    server: ApiServer, client: ApiClient, start: Start
):
    server.answers.extend([listed("ServiceList"), SILENT])
    start(CoreV1Api(client).list_service_for_all_namespaces)
    wait_for(lambda: len(server.requests) == 2)
    query = server.requests[1].query
    assert not {"allowWatchBookmarks", "timeoutSeconds"} & query.keys()


def test_a_connection_that_is_dead_is_waited_on_for_ever(
    server: ApiServer, client: ApiClient, start: Start, monkeypatch: pytest.MonkeyPatch
):
    timeouts: list[object] = []
    request = PoolManager.request

    def noted(*args: Any, **how: Any) -> Any:
        timeouts.append(how.get("timeout"))
        return request(*args, **how)

    monkeypatch.setattr(PoolManager, "request", noted)
    server.answers.extend([listed("ServiceList"), SILENT])
    start(CoreV1Api(client).list_service_for_all_namespaces)
    wait_for(lambda: len(server.requests) == 2)
    assert timeouts == [None, None]


@pytest.mark.parametrize("ends", ["refused", "at once"])
def test_there_is_no_wait_between_watches_that_fail(
    server: ApiServer, client: ApiClient, start: Start, ends: str
):
    failing = answer({"kind": "Status", "message": "starting"}, 503)
    server.answers.append(listed("ServiceList"))
    server.answers.extend([failing if ends == "refused" else Answer()] * MANY + [SILENT])
    start(CoreV1Api(client).list_service_for_all_namespaces)
    wait_for(lambda: len(server.requests) > MANY, HURRY)


def test_one_odd_object_hides_the_whole_list(server: ApiServer, client: ApiClient, start: Start):
    errors: list[Exception] = []
    server.answers.append(listed("EndpointSliceList", slice_manifest(), ODD))
    informer = start(DiscoveryV1Api(client).list_endpoint_slice_for_all_namespaces, errors.append)
    wait_for(lambda: errors)
    assert isinstance(errors[0], ValueError)
    assert informer.cache.list() == []


def test_an_odd_object_in_a_watch_is_asked_for_again_and_again(
    server: ApiServer, client: ApiClient, start: Start
):
    odd = versioned(ODD, "8")
    server.answers.append(listed("EndpointSliceList"))
    server.answers.extend([watched(event("ADDED", odd))] * MANY + [SILENT])
    start(DiscoveryV1Api(client).list_endpoint_slice_for_all_namespaces)
    wait_for(lambda: len(server.requests) > MANY, HURRY)
    assert {request.query["resourceVersion"][0] for request in server.requests[1:]} == {"7"}


def test_objects_as_json_are_had_for_the_version(
    server: ApiServer, client: ApiClient, start: Start
):
    """A function whose result has no type gives dicts, and the watch never gets further."""
    api = CoreV1Api(client)

    def as_json(**query: Any) -> Any:
        if query.get("watch"):
            return api.list_service_for_all_namespaces(**query)
        raw: Any = api.list_service_for_all_namespaces(_preload_content=False, **query)
        found = json.loads(raw.data)
        version = found["metadata"]["resourceVersion"]
        return SimpleNamespace(
            items=found["items"], metadata=SimpleNamespace(resource_version=version)
        )

    server.answers.append(listed("ServiceList"))
    server.answers.append(watched(event("ADDED", versioned(service_manifest(), "8"))))
    server.answers.append(SILENT)
    informer = start(as_json)
    wait_for(lambda: len(server.requests) == 3)
    assert informer.cache.list_keys() == ["default/web"]
    assert server.requests[2].query["resourceVersion"] == ["7"]

# SPDX-License-Identifier: Apache-2.0
"""The relay's port: health for the kubelet, discovery and answers for the API server."""

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path

from msgspec.json import encode

from ebpflb.errors import EbpflbError
from ebpflb.relay.access import ObservedCluster
from ebpflb.relay.identity import FrontProxy, Viewer, viewer_of
from ebpflb.relay.places import Places
from ebpflb.relay.requests import (
    DISCOVERY,
    ApiError,
    Document,
    ListRequest,
    list_request,
    status_document,
)
from ebpflb.relay.watching import FlowWatches
from ebpflb.web.answers import JSON, Answer, Request, StreamedAnswer, in_thread
from ebpflb.web.tls import CERTIFICATE, KEY, Certificates

MOST_AT_ONCE, MOST_WATCHERS = 16, 1000
_OK = Answer(b"ok")


class RelayPort:
    """Answers each request with an Answer; a request is worth little until it names a viewer."""

    def __init__(
        self, cluster: ObservedCluster, watches: FlowWatches, ready: Callable[[], str]
    ) -> None:
        """`ready`: why the relay cannot answer now, or ""."""
        self._cluster = cluster
        self._watches = watches
        self._ready = ready
        self._answering = Places(MOST_AT_ONCE, "requests")
        self._watching = Places(MOST_WATCHERS, "watches")

    async def respond(self, request: Request) -> Answer | StreamedAnswer:
        match request.target.partition("?")[0]:
            case "/livez":
                return _OK
            case "/readyz":
                why = await in_thread(self._ready)
                status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
                return Answer((why or "ok").encode(), status=status)
        return await in_thread(self._answer, request)

    def _answer(self, request: Request) -> Answer | StreamedAnswer:
        try:
            found = self._found(request)
            if isinstance(found, Mapping):
                return Answer(encode(found), JSON)
            return StreamedAnswer(found)
        except ApiError as error:
            return _refusal(error)
        except EbpflbError as error:
            return _refusal(ApiError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)))

    def _found(self, request: Request) -> Document | Iterator[bytes]:
        """A document, or the lines of a watch."""
        headers = [
            (name.decode(), value.decode(errors="replace")) for name, value in request.headers
        ]
        viewer = viewer_of(request.subject, headers, self._cluster.front_proxy.get())
        if viewer is None:
            raise ApiError(HTTPStatus.UNAUTHORIZED, "only the API server may ask, for its users")
        if request.method != "GET":
            raise ApiError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        if document := DISCOVERY.get(request.target.partition("?")[0].rstrip("/")):
            return document
        wanted = list_request(request.target)
        if wanted is None:
            raise ApiError(HTTPStatus.NOT_FOUND, "the relay knows no such path")
        if wanted.is_watch:
            made = self._watch(wanted, viewer)
            # Errors are told before the stream begins, and its place is given back at its end.
            next(made)
            return made
        with self._answering.place_of(viewer):
            return self._watches.answers.document(wanted, viewer)

    def _watch(self, wanted: ListRequest, viewer: Viewer) -> Iterator[bytes]:
        with self._watching.place_of(viewer):
            pieces = self._watches.lines(wanted, viewer)
            yield b""
            yield from pieces


def _refusal(error: ApiError) -> Answer:
    headers = {"Retry-After": "1"} if error.status == HTTPStatus.TOO_MANY_REQUESTS else {}
    return Answer(encode(status_document(error)), JSON, error.status, headers)


class ServingCertificates:
    """The context of the relay's port. Clients need no certificate, or one of the API server."""

    def __init__(self, directory: Path, front_proxy: Callable[[], FrontProxy | None]) -> None:
        """`front_proxy`: as far as it is known; the kubelet's probes must not wait for it."""
        self._directory = directory
        self._front_proxy = front_proxy
        self._lock = threading.Lock()
        self._client_ca = ""
        self._certificates = Certificates(directory, partial(_context, ""))

    def context(self) -> ssl.SSLContext:
        """OSError if there are no certificates yet."""
        proxy = self._front_proxy()
        with self._lock:
            if proxy and proxy.client_ca != self._client_ca:
                self._client_ca = proxy.client_ca
                self._certificates = Certificates(
                    self._directory, partial(_context, self._client_ca)
                )
            certificates = self._certificates
        return certificates.context()


def _context(client_ca: str, directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(directory / CERTIFICATE, directory / KEY)
    if client_ca:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=client_ca)
    return context

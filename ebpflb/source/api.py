# SPDX-License-Identifier: Apache-2.0
"""The API server: requests and answers as JSON, and errors in one line.

The client's own models are not used: they take many times the memory and time of the few fields
needed here.
"""

import hashlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import urllib3
import yaml
from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.utils.keepalive import tcp_keepalive_socket_options

from ebpflb import __version__
from ebpflb.errors import ConfigError, SourceError
from ebpflb.from_json import JsonError, from_json
from ebpflb.model.address import SocketAddress
from ebpflb.source.api_objects import Item, WatchEvent, event_of, items_of, object_of
from ebpflb.source.api_servers import ApiServer, ApiServers
from ebpflb.source.api_types import Fields, ListMetadata
from ebpflb.source.typed import FieldError

_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
_CHUNK = 1 << 16
_ERRNO = re.compile(r"\[Errno -?\d+\] ")
# Raised for an invalid kubeconfig, which the client does not validate.
WRONG_KUBECONFIG = (
    *(ConfigException, yaml.YAMLError, OSError),
    *(ValueError, TypeError, LookupError, AttributeError, RecursionError),
)
# The client has no types for it.
_load_kubeconfig: Callable[..., None] = load_kube_config
_load_pod_config: Callable[..., None] = load_incluster_config
JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_VERBS = {"GET": "list", "WATCH": "watch", "POST": "create", "PATCH": "patch", "DELETE": "delete"}

Query = Mapping[str, str]
SocketOption = tuple[int, int, int]


class ExpiredError(SourceError):
    """The API server no longer has the changes since that version (410 Gone)."""


class BrokenError(SourceError):
    """A watch broke off; the server may still be reachable."""


class RefusedError(SourceError):
    """The API server refused the request."""


class MissingError(RefusedError):
    """The API server does not have that resource."""


class ConflictError(RefusedError):
    """The object to be written is not as it was when it was last read, or there is none."""


class UnreadableError(SourceError):
    """The API server's answer is not what was asked for."""


class ApiRequest(NamedTuple):
    """A request; resource and verb are for errors. verb: "" for the method's usual one.

    accept: the media type to answer in.
    """

    path: str
    resource: str
    query: Query
    body: Fields | None = None
    verb: str = ""
    accept: str = JSON


class Api:
    """The API server. Thread-safe.

    Credentials and addresses are reread after each failure: tokens and certificates rotate.
    """

    def __init__(
        self,
        kubeconfig: Path | None,
        master: str,
        *,
        others: Sequence[str] = (),
        memory: Path | None = None,
        socket_options: Sequence[SocketOption] = (),
    ) -> None:
        """Raise ConfigError if neither these nor a pod's environment give the address.

        `others`: URLs to try if that one fails. `memory`: where to keep the addresses learned from
        the API server; None to learn none. `socket_options`: to set before connecting.
        """
        self._configure: Callable[[], Configuration] = lambda: _configuration(kubeconfig, master)
        first = self._configure()
        # What tells this cluster from others.
        self.cluster = _cluster(first)
        self._servers = ApiServers([first.host, *others], None if master else memory)
        self._socket_options = socket_options
        self._session: _Session | None = None
        self._session = self._connect()

    @property
    def address(self) -> str:
        """The address of the server in use."""
        return self._servers.current.url

    @property
    def configured(self) -> frozenset[SocketAddress]:
        """The addresses of the configured servers."""
        return self._servers.configured

    def learn(self, urls: Sequence[str]) -> None:
        """Replace the learned API servers by these."""
        self._servers.learn(urls)

    def get(self, request: ApiRequest) -> Fields:
        """One object. Raises SourceError."""
        response = self._send("GET", request, (_CONNECT_SECONDS, _READ_SECONDS))
        try:
            return object_of(self._read(response, request))
        except JsonError as error:
            raise UnreadableError(f"cannot read {request.resource}: {error}") from error

    def items(self, request: ApiRequest) -> Generator[Item, None, ListMetadata]:
        """The objects of a list; returns its metadata. The iterator raises SourceError."""
        response = self._send("GET", request, (_CONNECT_SECONDS, _READ_SECONDS))
        try:
            return (yield from items_of(self._read(response, request)))
        except (JsonError, FieldError) as error:
            raise UnreadableError(f"cannot read {request.resource}: {error}") from error

    def post(self, request: ApiRequest) -> None:
        """Create an object. Raises SourceError."""
        self._read(self._send("POST", request, (_CONNECT_SECONDS, _READ_SECONDS)), request)

    def patch(self, request: ApiRequest) -> None:
        """Change an object by a JSON merge patch (RFC 7386). Raises SourceError."""
        self._read(self._send("PATCH", request, (_CONNECT_SECONDS, _READ_SECONDS)), request)

    def delete(self, request: ApiRequest) -> None:
        """Delete an object. Raises SourceError."""
        self._read(self._send("DELETE", request, (_CONNECT_SECONDS, _READ_SECONDS)), request)

    def watch(self, request: ApiRequest, silence: float) -> "WatchStream":
        """Events until the server ends the response, which has begun when this returns.

        `silence`: seconds without any data until the connection counts as dead. Raises
        SourceError, also from the iterator.
        """
        response = self._send("WATCH", request, (_CONNECT_SECONDS, silence))
        return WatchStream(self._events(response, request), response.shutdown)

    def _events(self, response: Any, request: ApiRequest) -> Iterator[WatchEvent]:
        try:
            for line in _lines(response):
                yield event_of(line)
        except JsonError as error:
            raise UnreadableError(f"cannot read {request.resource}: {error}") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._session = None
            raise BrokenError(f"cannot watch {request.resource}: {reason_of(error)}") from error
        finally:
            response.close()

    def _connect(self) -> "_Session":
        configuration = self._configure()
        self._servers.trust_learned(bool(configuration.verify_ssl))
        server = self._servers.current
        configuration.socket_options = [*tcp_keepalive_socket_options(), *self._socket_options]
        return _Session(server, _client(configuration, server))

    def _current(self) -> "_Session":
        session = self._session
        if session is None:
            try:
                session = self._session = self._connect()
            except ConfigError as error:
                raise SourceError(f"cannot reach the API server: {error}") from error
        return session

    def _move_on(self, failed: ApiServer) -> None:
        self._session = None
        self._servers.move_on(failed)

    def _send(self, verb: str, request: ApiRequest, timeout: tuple[float, float]) -> Any:
        """The response of the first API server that answers."""
        failures: dict[str, str] = {}
        for _ in range(len(self._servers)):
            server, client = self._current()
            try:
                response = _ask(client, verb, request, timeout)
            except (urllib3.exceptions.HTTPError, OSError, ApiException, ConfigException) as error:
                self._move_on(server)
                failures[server.url] = reason_of(error)
                cause = error
                continue
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise self._refusal(verb, request, server, response)
            return response
        raise SourceError(_unreachable(failures)) from cause

    def _read(self, response: Any, request: ApiRequest) -> bytes:
        try:
            return bytes(response.read())
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._session = None
            raise SourceError(f"cannot read {request.resource}: {reason_of(error)}") from error

    def _refusal(
        self, verb: str, request: ApiRequest, server: ApiServer, response: Any
    ) -> SourceError:
        self._session = None
        status = int(response.status)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._servers.move_on(server)
        message = message_of(response)
        rbac_verb = request.verb or _VERBS[verb]
        if status == HTTPStatus.GONE:
            return ExpiredError(f"{request.resource}: {message}")
        if status == HTTPStatus.FORBIDDEN:
            return RefusedError(
                f"may not {rbac_verb} {request.resource}: the ClusterRole lacks the verb "
                f"{rbac_verb} on {request.resource} ({message})"
            )
        if status == HTTPStatus.UNAUTHORIZED:
            return RefusedError(
                "the API server does not accept these credentials: check the ServiceAccount's "
                f"token or the kubeconfig ({message})"
            )
        if status == HTTPStatus.NOT_FOUND and verb in ("GET", "WATCH"):
            return MissingError(
                f"the API server does not have {request.resource}: Kubernetes 1.21 or newer is "
                f"needed ({message})"
            )
        is_conflict = status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND)
        kind = ConflictError if is_conflict else RefusedError
        return kind(f"cannot {rbac_verb} {request.resource}: {status} {message}")


class WatchStream(Iterator[WatchEvent]):
    """The events of a watch."""

    def __init__(self, events: Iterator[WatchEvent], shut_down: Callable[[], None]) -> None:
        """`shut_down`: makes whoever waits for an event get none; ValueError, RuntimeError or
        OSError if it is over.
        """
        self._events = events
        self._shut_down = shut_down
        self._is_cut = False

    def __next__(self) -> WatchEvent:
        try:
            return next(self._events)
        except SourceError:
            if self._is_cut:
                raise StopIteration from None
            raise

    def cut(self) -> None:
        """End the watch now. Callable from any thread."""
        self._is_cut = True
        with suppress(ValueError, RuntimeError, OSError):
            self._shut_down()


class _Session(NamedTuple):
    server: ApiServer
    client: ApiClient


def _configuration(kubeconfig: Path | None, master: str) -> Configuration:
    configuration = Configuration()
    try:
        _configure(configuration, kubeconfig, master)
    except WRONG_KUBECONFIG as error:
        place = f"--master {master}" if master else "not in a pod, and no --kubeconfig"
        place = f"kubeconfig {kubeconfig}" if kubeconfig else place
        raise ConfigError(f"{place}: {' '.join(str(error).split())}") from error
    return configuration


def _cluster(configuration: Configuration) -> Mapping[str, str]:
    digest = ""
    # One that is missing fails each request.
    if configuration.ssl_ca_cert:
        with suppress(OSError):
            content = Path(configuration.ssl_ca_cert).read_bytes()
            digest = hashlib.sha256(content).hexdigest()
    return {"API server": configuration.host, "certificate authority": digest}


def _client(configuration: Configuration, server: ApiServer) -> ApiClient:
    _set_address(configuration, server.url)
    configuration.tls_server_name = server.certificate_name or configuration.tls_server_name
    if not configuration.verify_ssl:
        # The kubeconfig asks for it: a warning at every request would be noise.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    configuration.retries = False
    client = ApiClient(configuration)
    client.user_agent = f"ebpflb/{__version__}"
    return client


def _ask(client: ApiClient, verb: str, request: ApiRequest, timeout: tuple[float, float]) -> Any:
    # Rereads a pod's token when it is old.
    method, url, headers, body, *_ = client.param_serialize(
        "GET" if verb == "WATCH" else verb,
        request.path,
        query_params=list(request.query.items()),
        header_params={
            "Accept": request.accept,
            "Content-Type": _MERGE_PATCH if verb == "PATCH" else JSON,
        },
        body=request.body,
        auth_settings=["BearerToken"],
    )
    return client.call_api(
        method, url, header_params=headers, body=body, _request_timeout=timeout
    ).response


def _configure(configuration: Configuration, kubeconfig: Path | None, master: str) -> None:
    if kubeconfig:
        _load_kubeconfig(str(kubeconfig), client_configuration=configuration)
    elif not master:
        _load_pod_config(configuration)
    if master:
        _set_address(configuration, master)


def _set_address(configuration: Configuration, url: str) -> None:
    if configuration.host != url:
        configuration.host = url
        # A kubeconfig's hook would restore its address. Credentials are reread after a failure.
        configuration.refresh_api_key_hook = None


def _unreachable(failures: Mapping[str, str]) -> str:
    lines = [f"{url}: {reason}" for url, reason in failures.items()]
    if len(lines) == 1:
        return f"cannot reach the API server at {lines[0]}"
    return f"cannot reach any API server: {'; '.join(lines)}"


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(_CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())


def message_of(response: Any) -> str:
    """The API server's message in a refusal; closes the response."""
    try:
        text = from_json(response.read())["message"]
    except (urllib3.exceptions.HTTPError, OSError, ValueError, LookupError, TypeError):
        text = response.reason
    finally:
        response.close()
    return " ".join(str(text).split())


def reason_of(error: BaseException) -> str:
    """The shorter text of the cause that an exception of urllib3 wraps."""
    cause = getattr(error, "reason", None)
    text = str(cause if isinstance(cause, BaseException) else error)
    if not isinstance(error, OSError | ConfigException):
        text = text.rpartition(": ")[2]
    words = _ERRNO.sub("", text).split()
    return " ".join(words or [type(error).__name__])

# SPDX-License-Identifier: Apache-2.0
"""The API server that a kubeconfig names: lists of objects, and websockets to pods."""

import os
import ssl
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import urllib3
import websocket
import yaml
from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import ConfigException, list_kube_config_contexts, load_kube_config

from ebpflb import __version__
from ebpflb.cli.table import visible
from ebpflb.errors import ClusterError, ConfigError
from ebpflb.from_json import JsonError, from_json
from ebpflb.source.api import WRONG_KUBECONFIG, message_of, reason_of
from ebpflb.source.api_objects import object_of, readable_items_of

# The client has no types for it.
_load: Callable[..., None] = load_kube_config
_contexts: Callable[[str], tuple[list[Any], Any]] = list_kube_config_contexts

JSON = "application/json"
# The objects of a list without spec and status.
METADATA = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_PAGE, _MOST_PAGES = 500, 2000
_MOST_BYTES = 256 << 20
_LONGEST_LINE = 64 << 10
# How long an answer that goes on may be silent.
_SILENT_SECONDS = 60.0
_DEFAULT_PORTS = {"http": 80, "https": 443}
# Subprotocol of the kubelet's exec: binary frames whose first byte is the channel.
_SUBPROTOCOL = "v4.channel.k8s.io"

# Raised when an object or an answer has an unexpected form.
NONSENSE = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError),
    msgspec.DecodeError,
)

Query = Sequence[tuple[str, str]]
Object = Mapping[str, Any]


class ApiRefusalError(ClusterError):
    """The API server refuses a request. status: of HTTP. message: the server's own."""

    def __init__(self, text: str, status: int, message: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.message = message


class ForbiddenError(ApiRefusalError):
    """RBAC does not allow the request."""

    def __init__(self, text: str) -> None:
        super().__init__(text, HTTPStatus.FORBIDDEN)


class EndlessError(ClusterError):
    """An answer is too long."""


class Access:
    """The API server, with the user's permissions. Thread-safe."""

    def __init__(self, kubeconfig: str = "", context: str = "", seconds: float = 10.0) -> None:
        """`seconds`: how long an answer may take. ConfigError for an invalid kubeconfig.

        Without a kubeconfig, reads the file that kubectl would read.
        """
        path = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        configuration = Configuration()
        try:
            chosen = _context(path, context)
            self.namespace = str(chosen["context"].get("namespace") or "default")
            self.context = str(chosen["name"])
            _load(path, context or None, configuration)
        except WRONG_KUBECONFIG as error:
            raise ConfigError(
                f"kubeconfig {path}: {_what_is_wrong(error)} (--kubeconfig selects another)"
            ) from error
        self._use(configuration, seconds)

    def _use(self, configuration: Configuration, seconds: float) -> None:
        if not configuration.verify_ssl:
            # The kubeconfig asks for it: a warning at every request would be noise.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        configuration.retries = False
        self.seconds = seconds
        self._configuration = configuration
        self._client = ApiClient(configuration)
        self._client.user_agent = f"kubectl-ebpflb/{__version__}"
        self._lock = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """ClusterError in place of what objects of an unexpected form raise."""
        try:
            yield
        except NONSENSE as error:
            raise ClusterError(
                f"{self.server}: an object that this version cannot read ({error!r:.60})"
            ) from error

    def items(self, path: str, query: Query = (), accept: str = JSON) -> Iterator[Object]:
        """The objects of a list, page by page. ClusterError."""
        more = ""
        for _ in range(_MOST_PAGES):
            raw = self.read(path, [*query, ("limit", str(_PAGE)), ("continue", more)], accept)
            try:
                page = yield from readable_items_of(raw)
            except JsonError as error:
                raise ClusterError(f"{self.server}: what answers is no API server") from error
            with self.reading():
                more = page.get("metadata", {}).get("continue", "")
            if not more:
                return
        raise ClusterError(f"{self.server}: the list at {path} does not end")

    def get(self, path: str, query: Query = (), accept: str = JSON) -> Object:
        """An object or a list. ClusterError."""
        try:
            return object_of(self.read(path, query, accept))
        except JsonError as error:
            raise ClusterError(f"{self.server}: what answers is no API server") from error

    def read(self, path: str, query: Query = (), accept: str = "*/*") -> bytes:
        """The API server's raw answer. ClusterError."""
        return self._answer("GET", path, query, accept)

    def lines(self, path: str, query: Query = (), accept: str = JSON) -> Generator[str, None, None]:
        """The lines of an answer that goes on, as they arrive, also empty ones. ClusterError.

        Asks at once; what is wrong until the answer begins is raised here, and the rest on reading.
        """
        with self._reaching():
            answer = self._sent("GET", path, query, accept)
        connection = answer.connection
        # Without one the answer has taken the socket over, with the time for its beginning.
        if connection and connection.sock:
            connection.sock.settimeout(_SILENT_SECONDS)
        return self._lines(answer)

    def _lines(self, answer: Any) -> Generator[str, None, None]:
        rest = b""
        try:
            for piece in answer.stream(_LONGEST_LINE):
                *lines, rest = (rest + piece).split(b"\n")
                if any(len(line) > _LONGEST_LINE for line in (*lines, rest)):
                    text = f"sends a line of more than {_LONGEST_LINE >> 10} KiB"
                    raise EndlessError(f"{self.server}: {text}")
                yield from (line.decode(errors="replace") for line in lines)
        except (urllib3.exceptions.ReadTimeoutError, TimeoutError) as error:
            text = f"{self.server}: nothing has come for {_SILENT_SECONDS:g} s"
            raise ClusterError(text) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            text = f"the connection to {self.server} was lost: {reason_of(error)}"
            raise ClusterError(text) from error
        finally:
            answer.close()

    def create(self, path: str, body: Mapping[str, object]) -> Object:
        """What the API server makes of an object. ClusterError."""
        try:
            return object_of(self._answer("POST", path, (), JSON, body))
        except JsonError as error:
            raise ClusterError(f"{self.server}: what answers is no API server") from error

    def _answer(
        self,
        method: str,
        path: str,
        query: Query,
        accept: str,
        body: Mapping[str, object] | None = None,
    ) -> bytes:
        with self._reaching():
            answer = self._sent(method, path, query, accept, body)
            content = bytes(answer.read(_MOST_BYTES + 1))
        if len(content) > _MOST_BYTES:
            raise EndlessError(f"{self.server}: the answer to {path} does not end")
        return content

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (urllib3.exceptions.HTTPError, OSError, ApiException, ConfigException) as error:
            raise ClusterError(
                f"cannot reach the API server at {self.server}: {reason_of(error)}"
            ) from error

    def _sent(
        self,
        method: str,
        path: str,
        query: Query,
        accept: str,
        body: Mapping[str, object] | None = None,
    ) -> Any:
        """The answer, of which no more than the beginning has been read. ApiRefusalError."""
        host = self._configuration.host
        url = f"{host}{path}?{urlencode([pair for pair in query if pair[1]])}"
        timeout = (min(self.seconds, 5.0), self.seconds)
        headers = {**self._headers(), "Accept": accept}
        if body is not None:
            headers["Content-Type"] = JSON
        answer = self._client.call_api(
            method, url, header_params=headers, body=body, _request_timeout=timeout
        ).response
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise self._refusal(answer.status, message_of(answer), path)
        return answer

    def websocket(self, path: str, query: Query) -> websocket.WebSocket:
        """A connection to a pod's subresource. ClusterError."""
        url = f"{self._configuration.host}{path}?{urlencode(query)}"
        connection = websocket.WebSocket(
            sslopt={"context": self._tls, "server_hostname": self._configuration.tls_server_name},
            skip_utf8_validation=True,
        )
        connect: Callable[..., None] = connection.connect
        try:
            connect(
                f"ws{url.removeprefix('http')}",
                header=[f"{name}: {value}" for name, value in self._headers().items()],
                subprotocols=[_SUBPROTOCOL],
                timeout=self.seconds,
                redirect_limit=0,
                suppress_origin=True,
                **self._proxy(),
            )
        except websocket.WebSocketBadStatusException as error:
            raise self._refusal(error.status_code, _refused(error), path) from error
        except (websocket.WebSocketException, OSError, ConfigException) as error:
            raise ClusterError(f"cannot reach {self.server}: {reason_of(error)}") from error
        return connection

    @property
    def cluster(self) -> str:
        """By which people know it: the name of the context, and the server."""
        return f"{self.context} ({self.server})"

    @property
    def server(self) -> str:
        """Its URL."""
        return str(self._configuration.host)

    def _headers(self) -> dict[str, str]:
        """The headers that authenticate the user. One thread at a time renews an expired token."""
        with self._lock:
            _, _, headers, *_ = self._client.param_serialize(
                "GET", "/", header_params={}, auth_settings=["BearerToken"]
            )
        names = ("authorization", "user-agent")
        return {name: value for name, value in headers.items() if name.lower() in names}

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        """The TLS settings of the client; made once, because it takes milliseconds."""
        given = self._configuration
        if urlsplit(given.host).scheme != "https":
            return None
        context = ssl.create_default_context(cafile=given.ssl_ca_cert)
        if given.assert_hostname is False or not given.verify_ssl:
            context.check_hostname = False
        if not given.verify_ssl:
            context.verify_mode = ssl.CERT_NONE
        if given.cert_file:
            context.load_cert_chain(given.cert_file, given.key_file)
        return context

    def _proxy(self) -> dict[str, Any]:
        if not self._configuration.proxy:
            return {}
        parts = urlsplit(self._configuration.proxy)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        return {"http_proxy_host": parts.hostname, "http_proxy_port": port}

    def _refusal(self, status: int, message: str, path: str) -> ApiRefusalError:
        message = visible(message)
        if status == HTTPStatus.FORBIDDEN:
            # Without the pod's name, which differs from node to node.
            return ForbiddenError(f"RBAC forbids it: {message.rpartition(' is forbidden: ')[2]}")
        if status == HTTPStatus.UNAUTHORIZED:
            text = (
                f"the API server at {self.server} does not accept the kubeconfig's credentials: "
                "log in again, or use another --kubeconfig or --context"
            )
        elif status == HTTPStatus.NOT_FOUND:
            text = f"not found: {message}"
        else:
            text = f"the API server answers {status} to {path}: {message}"
        return ApiRefusalError(text, status, message)


def _what_is_wrong(error: Exception) -> str:
    """An error in one line. The client's own exceptions often have no useful text."""
    if not isinstance(error, ConfigException | OSError | yaml.YAMLError):
        return "not a valid kubeconfig"
    return " ".join(str(error).split()) or type(error).__name__


def _context(path: str, context: str) -> Any:
    """An entry of the kubeconfig's contexts; of the active one for ""."""
    contexts, active = _contexts(path)
    chosen = next((each for each in contexts if each["name"] == context), None)
    if context and not chosen:
        known = ", ".join(sorted(str(each["name"]) for each in contexts))
        raise ConfigException(f"no context {context!r}, only {known}")
    return chosen or active


def _refused(error: websocket.WebSocketBadStatusException) -> str:
    try:
        text = from_json(error.resp_body or b"")["message"]
    except (ValueError, LookupError, TypeError):
        text = error.status_message or error.resp_body or "no reason given"
    return " ".join(str(text).split())

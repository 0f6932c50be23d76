# SPDX-License-Identifier: Apache-2.0
"""What the API of the relay looks like: its paths, parameters, documents and errors.

They are those of Kubernetes (API conventions; k8s.io/apimachinery, pkg/apis/meta/v1).
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from ebpflb.config.values import nearest
from ebpflb.words.observe import (
    API_VERSION,
    CONNECTIONS,
    EXPLANATIONS,
    FLOWS,
    FRONTENDS,
    GROUP,
    KINDS,
    PATH,
    RATES,
    VERSION,
)

Document = Mapping[str, Any]

# `node`: names with commas, for all resources.
_PARAMETERS = {
    FRONTENDS: ("service",),
    RATES: ("interval", "at", "window"),
    FLOWS: ("limit", "since", "until", "service", "from", "to", "verdict", "event", "id"),
    CONNECTIONS: ("service", "from", "older", "backend-gone"),
    EXPLANATIONS: ("from", "to", "at"),
}
# What clients of Kubernetes add to any list.
_OF_EVERY_LIST = (
    *("timeout", "timeoutSeconds", "pretty"),
    *("limit", "resourceVersion", "resourceVersionMatch"),
)
_FALSE = ("", "0", "false")
_REASONS = {
    HTTPStatus.BAD_REQUEST: "BadRequest",
    HTTPStatus.UNAUTHORIZED: "Unauthorized",
    HTTPStatus.FORBIDDEN: "Forbidden",
    HTTPStatus.NOT_FOUND: "NotFound",
    HTTPStatus.METHOD_NOT_ALLOWED: "MethodNotAllowed",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "RequestEntityTooLarge",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Invalid",
    HTTPStatus.TOO_MANY_REQUESTS: "TooManyRequests",
    HTTPStatus.SERVICE_UNAVAILABLE: "ServiceUnavailable",
    HTTPStatus.GATEWAY_TIMEOUT: "Timeout",
}


class ApiError(Exception):
    """Why a request is not answered; the text is one line for who asked."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class ListRequest(NamedTuple):
    """namespace: "" for all. parameters: those of the resource. nodes: the only ones; none: all.

    is_watch: for what happens from now on.
    """

    resource: str
    namespace: str
    parameters: Mapping[str, str]
    nodes: tuple[str, ...] = ()
    is_watch: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """The same for requests for the same."""
        return self.resource, self.namespace, self.nodes, *sorted(self.parameters.items())


def list_request(target: str) -> ListRequest | None:
    """From the target of a request; None if it is no list. ApiError."""
    path, _, query = target.partition("?")
    if not path.startswith(f"{PATH}/"):
        return None
    match [unquote(part) for part in path.removeprefix(f"{PATH}/").split("/")]:
        case ["namespaces", namespace, resource] if namespace:
            pass
        case [resource]:
            namespace = ""
        case _:
            return None
    if resource not in KINDS:
        return None
    given = _parameters(resource, query)
    nodes = tuple(filter(None, given.pop("node", "").split(",")))
    is_watch = given.pop("watch", "") not in _FALSE
    if is_watch and resource != FLOWS:
        raise ApiError(HTTPStatus.METHOD_NOT_ALLOWED, f"{resource} cannot be watched")
    if is_watch and (wrong := given.keys() & {"limit", "since", "until", "id"}):
        raise ApiError(HTTPStatus.BAD_REQUEST, f"{min(wrong)}: a watch begins now, and has no end")
    return ListRequest(resource, namespace, given, nodes, is_watch)


def _parameters(resource: str, query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    known = ("node", *_PARAMETERS[resource])
    found = dict[str, str]()
    for name, value in pairs:
        if name in found:
            raise ApiError(HTTPStatus.BAD_REQUEST, f"{name}: may be given once")
        if name in known or name == "watch":
            found[name] = value
        elif name not in _OF_EVERY_LIST:
            text = f"unknown parameter {name!r}{nearest(name, known)}"
            raise ApiError(HTTPStatus.BAD_REQUEST, text)
    return {name: value for name, value in found.items() if value}


def list_document(resource: str, items: list[Any], failures: Mapping[str, list[str]]) -> Document:
    """failures: what went wrong -> on which nodes."""
    return {
        "apiVersion": API_VERSION,
        "kind": f"{KINDS[resource]}List",
        "metadata": {},
        "items": items,
        "failures": failures,
    }


def status_document(error: ApiError) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
        "reason": _REASONS.get(error.status, ""),
        "code": int(error.status),
    }


_VERSION = {"groupVersion": API_VERSION, "version": VERSION}
_GROUP: Document = {
    "apiVersion": "v1",
    "kind": "APIGroup",
    "name": GROUP,
    "versions": [_VERSION],
    "preferredVersion": _VERSION,
}
DISCOVERY: Mapping[str, Document] = {
    "/apis": {"apiVersion": "v1", "kind": "APIGroupList", "groups": [_GROUP]},
    f"/apis/{GROUP}": _GROUP,
    PATH: {
        "apiVersion": "v1",
        "kind": "APIResourceList",
        "groupVersion": API_VERSION,
        "resources": [
            {
                "name": resource,
                "singularName": kind.lower(),
                "namespaced": True,
                "kind": kind,
                "verbs": ["list", "watch"] if resource == FLOWS else ["list"],
            }
            for resource, kind in KINDS.items()
        ],
    },
}
"""What clients read to know the API, by path."""

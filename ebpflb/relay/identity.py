# SPDX-License-Identifier: Apache-2.0
"""Who asks: the user that the API server names in the headers of a request that it passes on.

The rules are those of the request-header authentication of aggregated API servers
(k8s.io/apiserver/pkg/authentication/request/headerrequest; "Configure the Aggregation Layer").
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from ebpflb.errors import ClusterError
from ebpflb.from_json import JsonError, from_json

_PREFIX = "requestheader"
_MALFORMED = re.compile(r"%(?![0-9a-f]{2})")

Header = tuple[str, str]
"""Name and value."""


class Viewer(NamedTuple):
    """A user, as in a SubjectAccessReview. extra: keys with their values, sorted by key."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class FrontProxy(NamedTuple):
    """How the API server proves that it asks, and in which headers it names the user.

    client_ca: certificates in PEM, one or several. allowed_names: common names of its client
    certificate; none for any. Names and prefixes of headers are in lower case.
    """

    client_ca: str
    allowed_names: tuple[str, ...]
    username_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    uid_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]


def front_proxy(published: Mapping[str, str]) -> FrontProxy:
    """What the API server has published. ClusterError.

    `published`: data of the ConfigMap kube-system/extension-apiserver-authentication. Without
    requestheader-uid-headers there, no header names a uid: API servers without the feature
    RemoteRequestHeaderUID pass on an X-Remote-Uid that the user has sent.
    """
    client_ca = published.get(f"{_PREFIX}-client-ca-file", "")
    if not client_ca.strip():
        raise ClusterError(
            "the API server has no front proxy: it must run with --requestheader-client-ca-file"
        )
    return FrontProxy(
        client_ca,
        _texts(published, "allowed-names"),
        _headers(published, "username-headers"),
        _headers(published, "group-headers"),
        _headers({f"{_PREFIX}-uid-headers": "[]", **published}, "uid-headers"),
        _headers(published, "extra-headers-prefix"),
    )


def viewer_of(subject: str, headers: Sequence[Header], proxy: FrontProxy) -> Viewer | None:
    """None if the request does not come from the API server, or names no user.

    `subject`: the common name of the verified client certificate, "" without one. `headers`:
    decoded as UTF-8.
    """
    if not subject or subject not in (proxy.allowed_names or (subject,)):
        return None
    given = [(name.lower(), value) for name, value in headers]
    name = _first(given, proxy.username_headers)
    if not name:
        return None
    groups = tuple(filter(None, _values(given, proxy.group_headers)))
    uid = _first(given, proxy.uid_headers)
    return Viewer(name, groups, uid, _extra(given, proxy.extra_prefixes))


def _headers(published: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Without a name of the user's header, nobody could ask; an empty prefix is that of all."""
    found = tuple(each.strip().lower() for each in _texts(published, key))
    if "" in found or (key == "username-headers" and not found):
        raise ClusterError(f"the API server has no front proxy: --{_PREFIX}-{key} is empty")
    return found


def _texts(published: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        found = from_json(published.get(f"{_PREFIX}-{key}", ""))
    except JsonError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ClusterError(
            f"the API server has no front proxy: {_PREFIX}-{key} in ConfigMap "
            "kube-system/extension-apiserver-authentication is no JSON list of texts"
        )
    return tuple(found)


def _values(given: Iterable[Header], names: Iterable[str]) -> Iterator[str]:
    """Those of the first name come first."""
    given = list(given)
    return (value for wanted in names for name, value in given if name == wanted)


def _first(given: Sequence[Header], names: Iterable[str]) -> str:
    """Of each header only the first value counts, as in Go; "" without any."""
    firsts = (next(_values(given, [name]), "") for name in names)
    return next(filter(None, firsts), "")


def _extra(
    given: Iterable[Header], prefixes: Iterable[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, tuple[str, ...]] = {}
    given = list(given)
    for prefix in prefixes:
        for name, value in given:
            if name.startswith(prefix):
                key = _decoded(name.removeprefix(prefix))
                found[key] = (*found.get(key, ()), value)
    return tuple(sorted(found.items()))


def _decoded(key: str) -> str:
    """As it is if it is not percent-encoded throughout, as in Go."""
    return key if _MALFORMED.search(key) else unquote(key)

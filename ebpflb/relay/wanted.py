# SPDX-License-Identifier: Apache-2.0
"""What a request names, in the one form in which agents write it and answers are compared."""

import re
from collections.abc import Mapping

from ebpflb.cli.explain_words import address_or_name, parse_source, parse_target
from ebpflb.errors import ConfigError
from ebpflb.model.address import format_address
from ebpflb.model.service import ServiceName
from ebpflb.relay.requests import ListRequest
from ebpflb.words.observe import EXPLANATIONS

# Of namespaces, pods and Services; other texts would be paths of other objects.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
ENDS = ("from", "to")


def normal(request: ListRequest) -> ListRequest:
    """Names without a namespace are of that of the request, if it has one. ConfigError."""
    given, namespace = dict(request.parameters), request.namespace
    if request.resource == EXPLANATIONS:
        _check_explanation(given, namespace)
        return request
    for name in ENDS:
        if name in given:
            given[name] = _end(name, given[name], namespace)
    if "service" in given:
        given["service"] = _full("service", given["service"], namespace)
    return request._replace(parameters=given)


def _check_explanation(given: Mapping[str, str], namespace: str) -> None:
    for name in ENDS:
        if name not in given:
            raise ConfigError(f"{name}: say what is to be explained")
    ends = (parse_source(given["from"], namespace), parse_target(given["to"], namespace).end)
    for name, end in zip(ENDS, ends, strict=True):
        if end.name:
            _check_name(name, given[name], end.name)


def _end(name: str, text: str, namespace: str) -> str:
    """An address, or NAMESPACE/NAME."""
    found = address_or_name(text, "", None)
    if found and found.address:
        return format_address(found.address)
    return _full(name, text, namespace)


def _full(name: str, text: str, namespace: str) -> str:
    found = ServiceName(*text.split("/", 1)) if "/" in text else ServiceName(namespace, text)
    _check_name(name, text, found)
    return str(found)


def _check_name(name: str, text: str, found: ServiceName) -> None:
    if not all(map(_NAME.fullmatch, found)):
        what = "" if name == "service" else "an address or "
        raise ConfigError(f"{name}: {text!r}: want {what}NAMESPACE/NAME")

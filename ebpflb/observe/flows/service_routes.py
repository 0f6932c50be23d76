# SPDX-License-Identifier: Apache-2.0
"""What the query socket tells of Services: all about one by its name, and whose a frontend is.

Both are the model's view; what is in force can be read from the maps without an agent.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from ebpflb.config.values import near
from ebpflb.model.address import Protocol, parse_address
from ebpflb.model.changes import Changes
from ebpflb.model.explain import describe
from ebpflb.model.plan import FrontendKey
from ebpflb.model.service import ServiceName
from ebpflb.observe.flows.inquiry import Answer, Inquiry
from ebpflb.observe.http.query_socket import Query, QueryError, Route, StreamedReply, json_reply

Tell = Callable[[Inquiry[Any]], None]


def service_routes(tell: Tell, changes: Changes) -> Mapping[str, Route]:
    """`tell`: gives an inquiry to the loop; names may be asked for by any thread."""

    def service(question: Query) -> StreamedReply:
        name = _name(question.path)
        found = _asked(tell, lambda known: describe(known, name))
        if found is None:
            like = near(str(name), map(str, changes.names()))
            raise QueryError(f"no Service {name}{like}", HTTPStatus.NOT_FOUND)
        return json_reply(found)

    def frontend(question: Query) -> StreamedReply:
        key = _key(question.path)
        owner = _asked(tell, lambda known: known.owner(key))
        if owner is None:
            raise QueryError("no Service has that frontend", HTTPStatus.NOT_FOUND)
        return json_reply({"namespace": owner.namespace, "name": owner.name})

    return {"/v1/services": service, "/v1/frontends": frontend}


def _asked(tell: Tell, question: Callable[[Changes], Answer]) -> Answer:
    inquiry = Inquiry(question)
    tell(inquiry)
    return inquiry.wait()


def _name(path: tuple[str, ...]) -> ServiceName:
    if len(path) != 2:  # noqa: PLR2004  namespace and name
        raise QueryError("want /v1/services/NAMESPACE/NAME")
    return ServiceName(*path)


def _key(path: tuple[str, ...]) -> FrontendKey:
    """An unspecified address means NodePorts."""
    try:
        address, port, protocol = path
        return FrontendKey(parse_address(address), int(port), Protocol[protocol.upper()])
    except (ValueError, KeyError) as error:
        raise QueryError("want /v1/frontends/ADDRESS/PORT/PROTOCOL") from error

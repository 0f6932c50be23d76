# SPDX-License-Identifier: Apache-2.0
"""Answers the relay what the query socket answers root, over mutual TLS."""

from collections.abc import Mapping
from http import HTTPStatus

from ebpflb.observe.http.listener import RETRY_SECONDS
from ebpflb.observe.http.query_socket import Route, answered, json_reply
from ebpflb.observe.http.server import TcpPort
from ebpflb.web.answers import Answer, Request, StreamedAnswer
from ebpflb.web.server import Encryption, HttpServer
from ebpflb.words.observe import RELAY


class QueryPort(TcpPort):
    """Answers the same queries of the relay, over TLS with certificates on both sides."""

    # Each may hold half a megabyte of buffers for TLS.
    most_clients = 48

    def __init__(
        self,
        server: HttpServer,
        address: tuple[str, int],
        routes: Mapping[str, Route],
        encryption: Encryption,
        *,
        retry: float = RETRY_SECONDS,
    ) -> None:
        respond = self._respond_to_relay
        super().__init__(server, address, respond, retry=retry, encryption=encryption)
        self._routes = routes

    async def _respond_to_relay(self, request: Request) -> Answer | StreamedAnswer:
        if request.subject != RELAY:
            text = f"only {RELAY} may ask, and not {request.subject!r}"
            return json_reply({"error": text}, HTTPStatus.FORBIDDEN)
        return await answered(self._routes, self.clients, request)

# SPDX-License-Identifier: Apache-2.0
"""What all HTTP requests to the agent have in common."""

import socket
from http.server import BaseHTTPRequestHandler


class Request(BaseHTTPRequestHandler):
    """Answers what one connection asks, while it is made."""

    timeout = 10.0

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, ("", 0), None)  # type: ignore[arg-type]

    def answer(self) -> None:
        """Answer one GET."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """What the standard library calls."""
        self.answer()

    def version_string(self) -> str:
        """Say who answers, and no version: that is for those who may read metrics."""
        return "ebpflb"

    def log_message(self, *_: object) -> None:
        """Keep a steady state silent."""

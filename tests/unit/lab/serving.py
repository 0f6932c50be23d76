# SPDX-License-Identifier: Apache-2.0
"""A TCP server whose behaviour a test defines."""

import contextlib
import socket
import threading


@contextlib.contextmanager
def serving(serve):
    """A TCP server on loopback that gives each connection to `serve`; yields its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:

        def one(sock):
            with sock, contextlib.suppress(OSError):
                serve(sock)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(server.accept()[0],), daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()

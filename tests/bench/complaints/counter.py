# SPDX-License-Identifier: Apache-2.0
"""An endpoint that serves 20 connections at a time, as long as they stay; others wait in a queue.

Arguments: name and port. Answers each line with its name. Prints "ready".
"""

import socket
import sys
import threading

_AT_A_TIME, _QUEUE = 20, 8


def main(name: str, port: str) -> None:
    """Serve until it is killed."""
    with socket.create_server(
        ("", int(port)), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_QUEUE
    ) as server:
        workers = [
            threading.Thread(target=_serve, args=(server, f"{name}\n".encode()))
            for _ in range(_AT_A_TIME)
        ]
        for each in workers:
            each.start()
        print("ready", flush=True)
        for each in workers:
            each.join()


def _serve(server: socket.socket, answer: bytes) -> None:
    while True:
        client = server.accept()[0]
        with client, client.makefile("rb") as lines:
            try:
                for _ in lines:
                    client.sendall(answer)
            except ConnectionError:
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""A gRPC server that answers each call with its name; needs grpcio. Arguments: name and port."""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

SERVICE, METHOD = "bench.Pod", "Name"


def main(name: str, port: str) -> None:
    """Serve until it is killed."""
    answer = grpc.unary_unary_rpc_method_handler(lambda *_: name.encode())
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(SERVICE, {METHOD: answer})]
    )
    server.add_insecure_port(f"[::]:{port}")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""Room for file descriptors: each health check node port is one or two."""

import resource

# As many as anybody needs; some tools look through all numbers up to the limit.
ENOUGH = 65536


def raise_file_limit() -> None:
    """Take what this process may have without asking anybody, up to what is enough.

    systemd starts services with 1,024, of which two hundred Services could use up half.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

# SPDX-License-Identifier: Apache-2.0
"""HTTP servers: health and metrics ports, health check node ports, the query socket.

They deal with sockets and requests; the contents of the pages come from elsewhere.
"""

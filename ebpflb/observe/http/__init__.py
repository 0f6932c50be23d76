# SPDX-License-Identifier: Apache-2.0
"""HTTP servers: health and metrics ports, health check node ports, the query socket.

They know sockets and requests, not what the pages say.
"""

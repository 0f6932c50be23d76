# SPDX-License-Identifier: Apache-2.0
"""Direct server return: packets sent to other nodes in tunnels, and packets received in them."""

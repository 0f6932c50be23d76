# SPDX-License-Identifier: Apache-2.0
"""lb_xdp: packets that it sends, and packets that it leaves to tc."""

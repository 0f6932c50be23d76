# SPDX-License-Identifier: Apache-2.0
"""lb_xdp: what it sends, and what it leaves to tc."""

# SPDX-License-Identifier: Apache-2.0
"""Every path to a Service, every kind of packet, on every kind of network."""

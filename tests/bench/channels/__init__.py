# SPDX-License-Identifier: Apache-2.0
"""Channels of gRPC that stay open while their Service gets more pods."""

# SPDX-License-Identifier: Apache-2.0
"""What Services with annotations of ebpflb do with real traffic."""

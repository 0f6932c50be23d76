# SPDX-License-Identifier: Apache-2.0
"""What the programs do for Services with annotations of ebpflb."""

# SPDX-License-Identifier: Apache-2.0
"""What others may see of the agent: health, metrics, and the HTTP servers that show them."""

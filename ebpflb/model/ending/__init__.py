# SPDX-License-Identifier: Apache-2.0
"""Open connections that Services want elsewhere."""

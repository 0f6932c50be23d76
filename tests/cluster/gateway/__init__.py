# SPDX-License-Identifier: Apache-2.0
"""Gateway API and the MCS API: their definitions, and Gateway API's own tests."""

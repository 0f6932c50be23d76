# SPDX-License-Identifier: Apache-2.0
"""What this node served in the last 24 hours: recorded as it comes into force, and found again."""

# SPDX-License-Identifier: Apache-2.0
"""What attackers try, and what it costs others: docs/threat-model.md says it in a table."""

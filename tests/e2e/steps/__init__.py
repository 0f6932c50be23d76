# SPDX-License-Identifier: Apache-2.0
"""Steps and queries that tests of several folders use in a lab."""

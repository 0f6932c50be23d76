# SPDX-License-Identifier: Apache-2.0
"""Everything comes, changes and goes, again and again; what an agent holds levels off."""

# SPDX-License-Identifier: Apache-2.0
"""Objects and devices are created, changed and deleted in rounds; an agent's footprint levels
off.
"""

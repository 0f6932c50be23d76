# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb top --by zone: traffic between zones, and what it costs.

known, prices -> traffic -> table
"""

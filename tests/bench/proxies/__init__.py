# SPDX-License-Identifier: Apache-2.0
"""ebpflb beside other proxies, in equal labs."""

# SPDX-License-Identifier: Apache-2.0
"""The same packets through ebpflb's programs and through netfilter's connection tracking."""

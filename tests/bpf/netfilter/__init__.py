# SPDX-License-Identifier: Apache-2.0
"""The same packets through our programs and through netfilter's connection tracking."""

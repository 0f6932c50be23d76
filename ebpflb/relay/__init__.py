# SPDX-License-Identifier: Apache-2.0
"""The relay: an aggregated API server through which people see what is theirs, without a way into
agents' pods.
"""

# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests in the lab: a cluster of agents, requests, sockets, load."""

# SPDX-License-Identifier: Apache-2.0
"""What the tests in the lab share: a cluster of agents, questions, sockets, load."""

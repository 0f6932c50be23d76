# SPDX-License-Identifier: Apache-2.0
"""Direct server return: what goes to other nodes in a tunnel, and what is taken out of one."""

# SPDX-License-Identifier: Apache-2.0
"""What each hook would do with a new connection, step by step, on the live maps, and why.

Called by the CLI. The modules follow the C headers they mirror, in the same order of steps.
"""

# SPDX-License-Identifier: Apache-2.0
"""An agent starts, ends, is upgraded, takes over, and leaves."""

# SPDX-License-Identifier: Apache-2.0
"""The kernel side: compile, load, attach, write and read maps."""

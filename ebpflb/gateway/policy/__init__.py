# SPDX-License-Identifier: Apache-2.0
"""What is to be made of the objects that there are: pure, no clock, no I/O."""

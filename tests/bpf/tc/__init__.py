# SPDX-License-Identifier: Apache-2.0
"""The programs at devices: frames in, frames out."""

# SPDX-License-Identifier: Apache-2.0
"""The container image: built as an operator would, and tried without a container runtime."""

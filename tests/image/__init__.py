# SPDX-License-Identifier: Apache-2.0
"""The container image: built as an operator would, and tested without a container runtime."""

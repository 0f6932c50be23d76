# SPDX-License-Identifier: Apache-2.0
"""What a Service gets of what it asks for, where others may ask for the same or have it already."""

# SPDX-License-Identifier: Apache-2.0
"""The one truth about bytes: structs and enums shared with bpf/, what each map holds and its size.

The C compiler checks the mirrors at every compile (`load/source_text.py`). Every room but `kernel`
may import it.
"""

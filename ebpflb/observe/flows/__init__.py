# SPDX-License-Identifier: Apache-2.0
"""Flow records: read from the kernel, named, kept, filtered, exported, queried.

`pipeline.FlowPipeline` is the entry point.
"""

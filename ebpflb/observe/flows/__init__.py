# SPDX-License-Identifier: Apache-2.0
"""Flow records on their way to people: read, named, kept, filtered, exported, queried.

`pipeline.FlowPipeline` is the door.
"""

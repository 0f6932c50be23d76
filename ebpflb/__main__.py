# SPDX-License-Identifier: Apache-2.0
"""python -m ebpflb: the same as the command ebpflb."""

from ebpflb.cli import main

if __name__ == "__main__":
    main(prog_name="ebpflb")

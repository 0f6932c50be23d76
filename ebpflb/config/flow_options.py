# SPDX-License-Identifier: Apache-2.0
"""The settings of flow records: which are made, and where they go."""

from ebpflb.config import values
from ebpflb.config.option import Option, text_default

QUERY_SOCKET = "/run/ebpflb/agent.sock"
_MOST = 999_999_999

FLOW_OPTIONS: tuple[Option, ...] = (
    Option(
        "flow-events",
        values.flow_events,
        text_default("end,refused,dropped"),
        "EVENT,...",
        "what makes a flow record: start, end, refused, dropped, or the word none  "
        "[end,refused,dropped]",
    ),
    Option(
        "flow-sample",
        values.number(0, _MOST),
        text_default("1"),
        "N",
        "of N flows one gets records of its start and end; 0 = none  [1: each]",
    ),
    Option(
        "flow-rate",
        values.number(0, _MOST),
        text_default("1000"),
        "N",
        "flow records per second and CPU; 0 = no limit  [1000]",
    ),
    Option(
        "flow-history",
        values.number(1, 1048576),
        text_default("4096"),
        "N",
        "the last flow records, which the agent keeps for those who ask  [4096]",
    ),
    Option(
        "flow-export",
        values.text,
        text_default(""),
        "FILE",
        "append each flow record as a line of JSON; - = standard output  [no export]",
    ),
    Option(
        "flow-export-max-bytes",
        values.number(1024, _MOST),
        text_default("10485760"),
        "N",
        "a larger export file is renamed to FILE.1, that to FILE.2  [10485760]",
    ),
    Option(
        "flow-export-files",
        values.number(1, 1000),
        text_default("5"),
        "N",
        "export files that are kept, the one being written included  [5]",
    ),
    Option(
        "query-socket",
        values.socket_path,
        text_default(QUERY_SOCKET),
        "PATH",
        f"UNIX socket at which the agent answers `ebpflb flows`; empty = off  [{QUERY_SOCKET}]",
    ),
)

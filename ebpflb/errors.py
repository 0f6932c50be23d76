# SPDX-License-Identifier: Apache-2.0
"""Every error this program raises on purpose.

EbpflbError
├── ConfigError      a flag, variable or settings file; names the option
├── SourceError      a manifest or API object; names file, document and field
├── ProbeError       the kernel or the machine lacks something; says what to do
├── CompileError     clang's text
├── LoadError        the verifier's last lines
├── PinError         bpffs: not mounted, locked by another agent, newer layout
├── AttachError      a hook refused a program; names the hook
├── QueryError       the agent cannot be reached, or cannot answer
├── ClusterError     the API server cannot be reached, or refuses; an agent's pod cannot be asked
└── MapError         one map operation; names map, operation and errno

The agent retries MapError and SourceError; the CLI prints one line for each and exits 1.
"""

import os


class EbpflbError(Exception):
    """Base of all; its text is one line that says what, where and what to do."""


class ConfigError(EbpflbError):
    """Something that was asked for and cannot be had."""


class SettingError(ConfigError):
    """An option, a variable of the environment or a field of a file that cannot be used."""


class SourceError(EbpflbError):
    """An object that cannot be read."""


class ProbeError(EbpflbError):
    """The machine lacks something that is needed."""


class CompileError(EbpflbError):
    """clang rejected the C programs; the text carries file and line."""


class LoadError(EbpflbError):
    """The kernel rejected a program; the text carries the end of the verifier's log."""


class PinError(EbpflbError):
    """The pin directory cannot be used."""


class AttachError(EbpflbError):
    """A program could not be attached."""


class QueryError(EbpflbError):
    """The agent did not answer a query."""


class ClusterError(EbpflbError):
    """The cluster, or one of its agents, could not be asked."""


class MapError(EbpflbError):
    """A map operation failed."""

    def __init__(self, map_name: str, operation: str, errno: int) -> None:
        super().__init__(f"map {map_name}: {operation} failed: {os.strerror(errno)}")
        self.map_name = map_name
        self.operation = operation
        self.errno = errno

# SPDX-License-Identifier: Apache-2.0
"""The objects that the API server had when it was last heard, in a file: for a start without it.

A header says which cluster and node they are of; each further line is an object with the fields
that decode() reads. gzip tells whether the file is whole. Its time of modification is when the
objects were known to be what the API server has. A file that others may have written is not read.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ebpflb import own_files
from ebpflb.errors import SourceError
from ebpflb.from_json import JsonError, from_json
from ebpflb.model.objects.kinds import ApiObject
from ebpflb.source.decode import decode
from ebpflb.source.encode import encode

_FORMAT = 1
_QUICK = 1  # of gzip's levels: a tenth of the size in a third of the time that the usual one takes
# Objects between two pauses: some milliseconds of work.
_BATCH = 100
# How far the clock may have been ahead when the file was written.
_CLOCK_SECONDS = 60.0


class KeptState(NamedTuple):
    """as_of: seconds since 1970. left_out: why an object is missing, a line for each."""

    objects: list[ApiObject]
    as_of: float
    left_out: list[str]


class StateFile:
    """Read once, then written by one thread. Every method but read() raises OSError."""

    def __init__(
        self,
        path: Path,
        origin: Mapping[str, object],
        label_keys: Collection[str] = (),
    ) -> None:
        """`origin`: what the state is of, name -> a value. `label_keys`: see decode()."""
        self.path = path
        self._label_keys = label_keys
        header = {**origin, "label selectors": sorted(label_keys), "file format": _FORMAT}
        # As it comes back from the file.
        self._header = from_json(json.dumps(header))

    def write(self, objects: Iterable[ApiObject], as_of: float, pause: Callable[[], None]) -> None:
        """Replace the file. `pause` is called between parts of the work."""
        own_files.make(self.path.parent)
        name = self.path.name
        with (
            own_files.opened(self.path.parent) as folder,
            own_files.replacing(folder, name, f"{name}.new") as file,
        ):
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_QUICK) as packed:
                packed.writelines(self._lines(objects, pause))
            file.flush()
            os.fsync(file.fileno())
            os.utime(file.fileno(), (as_of, as_of))

    def stamp(self, as_of: float) -> None:
        """The file still has what the API server has."""
        with self._opened() as file:
            os.utime(file.fileno(), (as_of, as_of))

    def read(self, most_seconds: float, now: float) -> KeptState:
        """What was kept, if it is no older. SourceError, in one line, if it cannot be used."""
        try:
            with self._opened() as file:
                as_of = os.fstat(file.fileno()).st_mtime
                self._check_age(now - as_of, most_seconds)
                return self._unpacked(file, as_of)
        except FileNotFoundError as error:
            raise SourceError(f"{self.path}: nothing was kept there") from error
        # Of a file that is damaged.
        except (gzip.BadGzipFile, EOFError, zlib.error, JsonError) as error:
            raise SourceError(f"{self.path}: it is damaged: {error}") from error
        except OSError as error:
            raise SourceError(f"{self.path}: {error.strerror}") from error

    def _lines(self, objects: Iterable[ApiObject], pause: Callable[[], None]) -> Iterator[bytes]:
        yield _line(self._header)
        for index, item in enumerate(objects, 1):
            yield _line(encode(item))
            if index % _BATCH == 0:
                pause()

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with (
            own_files.opened(self.path.parent) as folder,
            own_files.reading(folder, self.path.name) as file,
        ):
            yield file

    def _check_age(self, seconds: float, most: float) -> None:
        if seconds > most:
            raise SourceError(
                f"{self.path}: it is {seconds:.0f} s old, and --state-cache-max-age is {most:.0f} s"
            )
        if seconds < -_CLOCK_SECONDS:
            raise SourceError(f"{self.path}: it is {-seconds:.0f} s in the future: check the clock")

    def _unpacked(self, file: BinaryIO, as_of: float) -> KeptState:
        found = KeptState([], as_of, [])
        with gzip.GzipFile(fileobj=file) as lines:
            self._check_header(from_json(lines.readline()))
            for line in lines:
                try:
                    item = decode(line, self._label_keys)
                except (SourceError, JsonError) as error:
                    found.left_out.append(str(error))
                    continue
                if item is not None:
                    found.objects.append(item)
        return found

    def _check_header(self, header: object) -> None:
        given = header if isinstance(header, dict) else {}
        for what, wanted in self._header.items():
            if (there := given.get(what)) != wanted:
                raise SourceError(f"{self.path}: it has another {what}: {there}, not {wanted}")


def _line(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"

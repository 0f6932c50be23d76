# SPDX-License-Identifier: Apache-2.0
"""The short-lived child that compiles with bcc, loads and pins, and the call that starts it.

Compiling pulls LLVM (about 120 MB) into the process, so the agent never does it itself.
bcc creates every map where the C text says so (LB_PIN_MAPS), and reuses what is already pinned
there. What was compiled before, here or when the image was built (precompile.py), is loaded without
bcc (compile_cache.py). If that fails in any way, bcc compiles and loads, and reports its errors.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import die_with_parent, owned
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.load import compile_cache
from ebpflb.dataplane.load.bytecode import (
    Bytecode,
    is_pinned_as,
    load_and_pin,
    load_code,
    taken_apart,
)
from ebpflb.dataplane.load.source_text import bpf_directory
from ebpflb.errors import CompileError, LoadError, ProbeError

STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")

_NO_BCC, _NOT_COMPILED, _NOT_LOADED = 3, 4, 5
_TIMEOUT_SECONDS = 600  # an emulated machine needs minutes
_LOG_LINES = 25
_PINS = "LB_PIN_MAPS"
_FRAGS = "LB_HAS_XDP_FRAGS"


class _Request(NamedTuple):
    """The child's input. `pins`: the directory of pinned maps, empty if it is in the text.

    `has_frags`: the kernel has Feature.XDP_FRAGS. `parent`: the process that waits for the child.
    """

    text: str
    cflags: Sequence[str]
    pins: str
    programs: str
    names: Sequence[str]
    cache: str
    has_frags: bool
    parent: int


def compile_and_pin(
    text: str,
    defines: Mapping[str, str],
    programs: Path,
    *,
    names: Iterable[str] = PROGRAMS,
    flags: Iterable[str] = (),
    cache: Path = compile_cache.DIRECTORY,
) -> None:
    """Compile `text`, load the programs `names` and pin them as `programs`/NAME.

    `cache`: the directory of compiled objects.
    Raises ProbeError without bcc, CompileError with clang's text, LoadError with the end of the
    verifier's log. Maps and programs pinned before a failure stay; the caller removes them.
    """
    others = {name: value for name, value in defines.items() if name != _PINS}
    request = _Request(
        text,
        [*arguments(others), *flags],
        defines.get(_PINS, "").strip('"'),
        str(programs),
        list(names),
        str(cache),
        defines.get(_FRAGS) == "1",
        os.getpid(),
    )
    child = subprocess.run(
        [sys.executable, "-m", "ebpflb.dataplane.load.compile"],
        input=json.dumps(request._asdict()),
        capture_output=True,
        text=True,
        env={**os.environ, "BCC_KERNEL_SOURCE": str(bpf_directory() / "uapi")},
        timeout=_TIMEOUT_SECONDS,
        check=False,
        start_new_session=True,
    )
    if child.returncode:
        _raise(child.returncode, child.stderr)


def compile_only(text: str, cflags: Sequence[str]) -> Bytecode:
    """Compile in this process, where the preloaded .ci/no_maps.c keeps bcc from creating maps.

    CompileError; clang writes to stderr.
    """
    from bcc import BPF
    from bcc.libbcc import lib

    os.environ["BCC_KERNEL_SOURCE"] = str(bpf_directory() / "uapi")
    with tempfile.TemporaryDirectory() as pins:
        try:
            module = BPF(text=text, cflags=[*cflags, f'-D{_PINS}="{pins}"'])
        except Exception as error:  # bcc raises nothing narrower
            raise CompileError("the C programs do not compile: see clang's output above") from error
        return taken_apart(module, lib, lambda _, name: Path(pins, name).exists())


def arguments(defines: Mapping[str, str]) -> list[str]:
    """The arguments for clang."""
    return [f"-D{name}={value}" for name, value in defines.items()]


def _raise(code: int, output: str) -> None:
    lines = [line for line in output.splitlines() if line.strip()]
    if code == _NO_BCC and compile_cache.OF_IMAGE.is_dir():
        raise ProbeError(
            "this image has no compiler, and no programs compiled for this kernel with these "
            "settings: use the image that is not slim"
        )
    if code == _NO_BCC:
        raise ProbeError(
            "bcc for Python is missing: install the distribution's package (Debian: "
            "python3-bpfcc; the package called bcc on PyPI is something else)"
        )
    if code == _NOT_COMPILED:
        raise CompileError("\n".join(["the C programs do not compile:", *lines[:_LOG_LINES]]))
    raise LoadError("\n".join(["the kernel rejects a program:", *lines[-_LOG_LINES:]]))


def _main() -> int:
    # What an agent that was killed had begun would get in the way of the next one.
    die_with_parent()
    request = _Request(**json.load(sys.stdin))
    if os.getppid() != request.parent:
        return _NOT_LOADED
    key = compile_cache.key(request.text, request.cflags) if request.pins else None
    if key and _from_cache(request, key):
        return 0
    return _from_bcc(request, key)


def _from_cache(request: _Request, key: str) -> bool:
    try:
        places = (Path(request.cache), compile_cache.OF_IMAGE)
        found = (compile_cache.find(place, key) for place in places)
        bytecode = next(filter(None, found), None)
        if bytecode is None:
            return False
        pins, programs = Path(request.pins), Path(request.programs)
        load_and_pin(bytecode, pins, programs, request.names, has_frags=request.has_frags)
    except Exception:  # noqa: BLE001  bcc compiles instead
        return False
    return True


def _from_bcc(request: _Request, key: str | None) -> int:
    try:
        from bcc import BPF
    except ImportError:
        return _NO_BCC
    pins = [f'-D{_PINS}="{request.pins}"'] if request.pins else []
    try:
        module = BPF(text=request.text, cflags=[*request.cflags, *pins])
    except Exception:  # noqa: BLE001  bcc raises nothing narrower
        return _NOT_COMPILED
    try:
        for name in request.names:
            _load_and_pin(module, name, Path(request.programs), has_frags=request.has_frags)
    except Exception as error:  # noqa: BLE001  bcc raises nothing narrower
        print(error, file=sys.stderr)
        return _NOT_LOADED
    if key:
        _keep(request, key, module)
    return 0


def _keep(request: _Request, key: str, module: Any) -> None:
    from bcc.libbcc import lib

    with suppress(Exception):  # all is loaded
        pins = Path(request.pins)
        bytecode = taken_apart(module, lib, lambda each, name: is_pinned_as(each, pins / name))
        compile_cache.keep(Path(request.cache), key, bytecode)


def _load_and_pin(module: Any, name: str, directory: Path, *, has_frags: bool) -> None:
    """bcc does not support program flags, but reports rejected programs in more detail."""
    program, bcc_name = PROGRAMS[name], name.encode()
    if program.flags and has_frags:
        with (
            suppress(OSError),
            owned(load_code(name, module.dump_func(bcc_name), has_frags=True)) as descriptor,
        ):
            libbpf.obj_pin(descriptor, directory / name)
            return
    attach_type = -1 if program.attach_type is None else program.attach_type
    function = module.load_func(bcc_name, program.type, None, attach_type)
    libbpf.obj_pin(function.fd, directory / name)


if __name__ == "__main__":
    sys.exit(_main())

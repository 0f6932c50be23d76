# SPDX-License-Identifier: Apache-2.0
"""ebpflb cleanup: remove everything that ebpflb has put on this node."""

from dataclasses import dataclass, replace
from pathlib import Path

import click

from ebpflb.cli.options import Output, output_option
from ebpflb.cli.pinned import bpffs_option, pin_root
from ebpflb.cli.render import emit
from ebpflb.config.options import BPFFS_ROOT
from ebpflb.errors import AttachError


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """What was removed: hooks and where they were attached, directories of pins and of objects."""

    hooks: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()


@click.command(
    epilog="""\b
Examples:
  ebpflb cleanup
  ebpflb cleanup --drain 30
  ebpflb cleanup --bpffs-root /sys/fs/bpf/ebpflb -o json
"""
)
@bpffs_option
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Stop serving new connections, then wait this long for those at tc to end.  [0]",
)
@output_option
def cleanup(bpffs_root: str | None, drain: float, output: Output) -> None:
    """Detach all programs and remove all pins. Stop the agent first.

    After that, new connections to Services fail unless kube-proxy serves them. Connections at tc
    break unless they end within --drain. Running it twice is safe. It covers the devices of the
    current network namespace. It also removes /var/cache/ebpflb, where agents keep compiled
    objects, what the API server had and the flows of the last day, unless another --bpffs-root is
    given or another agent runs: all agents of a machine share it.
    """
    removed = remove(pin_root(bpffs_root), drain)
    emit(removed, output, lambda: _lines(removed))


def remove(root: Path, drain_seconds: float = 0) -> CleanedUp:
    """Remove everything below `root`; for the default root also the cache, if nobody holds it.

    PinError while an agent holds it, AttachError for a hook.
    """
    from ebpflb.dataplane.load import compile_cache

    removed = _remove_pins(root, drain_seconds)
    if root != Path(BPFFS_ROOT) or not compile_cache.remove(compile_cache.DIRECTORY):
        return removed
    return replace(removed, cache=(str(compile_cache.DIRECTORY),))


def _remove_pins(root: Path, drain_seconds: float) -> CleanedUp:
    from ebpflb.dataplane.attach.attachments import attachments
    from ebpflb.dataplane.attach.hooks import detach_all
    from ebpflb.dataplane.flows.drain import drain
    from ebpflb.dataplane.kernel.libc import BPF_FS_MAGIC, filesystem_type
    from ebpflb.dataplane.kernel.maps import open_maps
    from ebpflb.dataplane.load.pins import Pins, newest_generation

    if not root.is_dir() or filesystem_type(root) != BPF_FS_MAGIC:
        return CleanedUp()
    pins = Pins(root)
    try:
        if drain_seconds > 0 and (generation := newest_generation(root)):
            drain(open_maps(generation.maps), drain_seconds)
        hooks = tuple(f"{each.hook} {each.place}".strip() for each in attachments(pins.links, None))
        errors = detach_all(pins.links).errors
        if errors:
            place, error = next(iter(errors.items()))
            raise AttachError(f"{place}: {error}; the pins are left in place") from error
        directories = tuple(sorted(path.name for path in root.iterdir()))
        pins.remove_all()
    finally:
        pins.close()
    return CleanedUp(hooks, directories)


def _lines(removed: CleanedUp) -> list[str]:
    lines = [f"removed hook {hook}" for hook in removed.hooks]
    lines += [f"removed pins {directory}" for directory in removed.pins]
    lines += [f"removed cache {directory}" for directory in removed.cache]
    return lines or ["nothing to remove"]

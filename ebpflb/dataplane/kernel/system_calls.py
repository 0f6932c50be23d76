# SPDX-License-Identifier: Apache-2.0
"""The system calls that a thread gives up. Threads and children that it starts lack them too.

The filter (seccomp) is made by libseccomp, which knows each call's number on each architecture.
"""

from collections.abc import Iterable
from errno import EACCES, ENOSYS, EPERM
from typing import Any, NamedTuple

from ebpflb.dataplane.kernel import libc
from ebpflb.errors import ProbeError

_CLONE_THREAD = 0x10000
# CLONE_NEW*: mount, cgroup, UTS, IPC, user, PID and network namespaces.
_NAMESPACES = (1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30)
_O_WRONLY, _O_RDWR, _O_CREAT, _O_TRUNC, _O_ACCMODE = 1, 2, 0o100, 0o1000, 3
_LAST_INTERNET_FAMILY = 10  # AF_INET6; netlink and packet sockets come later
_DEVICE_REQUESTS = 0x8900  # SIOC*
_UNKNOWN = -1


class Condition(NamedTuple):
    """How an argument must compare (libseccomp's words); MASKED_EQ: the mask, then the value."""

    argument: int
    comparison: str
    values: tuple[int, ...]


class Refused(NamedTuple):
    """A system call that fails, always or under a condition."""

    name: str
    error: int = EPERM
    condition: Condition | None = None


def _has(argument: int, mask: int, value: int) -> Condition:
    return Condition(argument, "MASKED_EQ", (mask, value))


def _all(names: str, error: int = EPERM) -> tuple[Refused, ...]:
    return tuple(Refused(name, error) for name in names.split())


# ENOSYS: the C library then does without.
_NEW_NAMESPACES = (
    *(Refused("clone", condition=_has(0, flag, flag)) for flag in _NAMESPACES),
    Refused("clone3", ENOSYS),
    Refused("unshare"),
    Refused("setns", condition=Condition(1, "NE", (libc.CLONE_NEWNET,))),
)
_OTHER_MOUNTS = (
    Refused("mount", condition=Condition(3, "NE", (libc.BPFFS_FLAGS,))),
    *_all("fsconfig fsmount fsopen fspick mount_setattr move_mount open_tree pivot_root"),
    *_all("umount umount2"),
)

ALL_BUT_THE_AGENTS = (
    *_NEW_NAMESPACES,
    *_OTHER_MOUNTS,
    # Other processes, and their memory.
    *_all("kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace"),
    # The machine.
    *_all("delete_module finit_module init_module kexec_file_load kexec_load reboot"),
    *_all("acct adjtimex chroot clock_adjtime clock_settime iopl ioperm quotactl quotactl_fd"),
    *_all("setdomainname sethostname settimeofday swapoff swapon syslog vhangup"),
    # What has often been a way into the kernel.
    *_all("add_key fanotify_init io_uring_enter io_uring_register io_uring_setup keyctl"),
    *_all("lookup_dcookie modify_ldt open_by_handle_at perf_event_open request_key userfaultfd"),
)

PROGRAMS = (
    *_all("execve execveat fork vfork"),
    Refused("clone", condition=_has(0, _CLONE_THREAD, 0)),
    Refused("clone3", ENOSYS),
)

THE_KERNELS_TABLES = (*_all("bpf mount setns"),)

SOCKETS_BUT_INTERNET = (
    Refused("socket", EACCES, Condition(0, "GT", (_LAST_INTERNET_FAMILY,))),
    Refused("ioctl", condition=_has(1, 0xFF00, _DEVICE_REQUESTS)),
)

NEW_SOCKETS = _all("bind connect socket", EACCES)

SIGNALS = _all("kill pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo tkill")

_OPENED_TO_CHANGE = (
    (_O_ACCMODE, _O_WRONLY),
    (_O_ACCMODE, _O_RDWR),
    (_O_CREAT, _O_CREAT),
    (_O_TRUNC, _O_TRUNC),
)
CHANGED_FILES = (
    *(Refused("open", EACCES, _has(1, *flags)) for flags in _OPENED_TO_CHANGE),
    *(Refused("openat", EACCES, _has(2, *flags)) for flags in _OPENED_TO_CHANGE),
    Refused("openat2", ENOSYS),
    *_all("chmod chown creat fchmodat fchownat lchown link linkat mkdir mkdirat", EACCES),
    *_all("mknod mknodat", EACCES),
    *_all("rename renameat renameat2 rmdir symlink symlinkat truncate unlink unlinkat", EACCES),
    *_all("lremovexattr lsetxattr removexattr setxattr utimensat", EACCES),
)


def refuse(calls: Iterable[Refused]) -> None:
    """Refuse these to the calling thread from now on.

    ProbeError without the library; what the library raises if the kernel refuses.
    """
    library = _library()
    rules = library.SyscallFilter(library.ALLOW)
    # Calls of another architecture's table fail instead of ending the process.
    rules.set_attr(library.Attr.ACT_BADARCH, library.ERRNO(ENOSYS))
    # Before Linux 5.16 a filter would otherwise switch on a mitigation that costs time.
    rules.set_attr(library.Attr.CTL_SSB, 1)
    for name, error, condition in calls:
        if library.resolve_syscall(library.Arch(), name) != _UNKNOWN:
            found = [_argument(library, condition)] if condition else []
            rules.add_rule(library.ERRNO(error), name, *found)
    rules.load()


def _argument(library: Any, condition: Condition) -> Any:
    comparison = getattr(library, condition.comparison)
    return library.Arg(condition.argument, comparison, *condition.values)


def _library() -> Any:
    try:
        import seccomp
    except ImportError as error:
        raise ProbeError(
            "libseccomp for Python is missing: install the distribution's package (Debian: "
            "python3-seccomp)"
        ) from error
    return seccomp

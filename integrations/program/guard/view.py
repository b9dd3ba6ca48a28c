"""A copy-on-write view of the file system: what a process and its children write goes to a store.

A mount namespace (user_namespaces(7), mount_namespaces(7)) in which overlayfs covers every folder
that can be written. With the right to mount, one overlay of `/` becomes the root, and one more lies
on each file system mounted below it. An ordinary user gets a user namespace first, in which `/`
cannot be a lower layer, since what is mounted on it is locked: each folder without a mount below it
is covered by itself there, and the rest is read-only.

/dev, /proc, /sys and /run, with what is mounted there, are the machine's own.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from neusight.fake_cuda.overlay.open_handles import open_for_writing, reopen
from neusight.fake_cuda.store.changes import is_in
from neusight.integrations.program.guard.layers import add_layer
from neusight.integrations.program.guard.system_calls import system_call

# Linux, include/uapi/linux/sched.h, mount.h, capability.h.
_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 18
_DETACH = 2
_CAPABILITY_VERSION_3 = 0x20080522

#: Not files: devices, processes, and what services keep while they run.
_SYSTEM = ("/dev", "/proc", "/sys", "/run")
#: File systems of the kernel's own, wherever they are mounted.
_PSEUDO = (
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore",
    "securityfs", "sysfs", "tracefs",
)  # fmt: skip

#: Flags of statvfs that a bind mount must keep when it is remounted in a user namespace.
_KEPT_FLAGS = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
_KEPT_FLAGS |= os.ST_RELATIME


class _Mount(NamedTuple):
    """A line of /proc/self/mountinfo."""

    path: str
    kind: str
    is_read_only: bool

    @property
    def is_covered(self) -> bool:
        """Whether the files on it may be the user's, and may be written."""
        return not self.is_read_only and self.kind not in _PSEUDO


def enter_view(store: str, kept: Iterable[str]) -> None:
    """From now on this process, which has one thread, writes to layers in the folder `store` in
    place of its files; what it writes to the folders `kept` really stands there.

    OSError, with the reason in words, where this machine refuses it: the process must end then.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        raise OSError(errno.EINVAL, "the process has several threads")
    here = os.getcwd()
    could_write = os.access(here, os.W_OK)
    is_privileged = _unshare()
    _mount("none", "/", "", _REC | _PRIVATE)
    opened = {path: _opened(path) for path in (store, *kept)}
    layers = f"/proc/self/fd/{opened[store]}"
    kept_at = {path: opened[path] for path in kept}
    try:
        if is_privileged:
            _enter_new_root(layers, kept_at)
        else:
            _cover_folders(layers, kept_at)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    os.chdir("/")
    os.chdir(here)
    if could_write:
        _require_writable(here)
    reopen_inherited(store)


def _unshare() -> bool:
    """Enters a mount namespace of its own; whether with the right to mount that it had before."""
    with suppress(OSError):
        _call("unshare", _NEWNS)
        return True
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEWNS | _NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return False


def _require_writable(folder: str) -> None:
    """Files of a group that has no number in the user namespace cannot be copied (EOVERFLOW)."""
    if _is_system(folder):
        raise OSError(errno.EINVAL, f"{folder} is the machine's own")
    probe = f"{folder}/.neusight-{os.getpid()}"
    try:
        os.mkdir(probe)
    except OSError as error:
        why = error.strerror
        if error.errno == errno.EOVERFLOW:
            why = "its owner or group is another than yours"
        raise OSError(error.errno, f"{folder} cannot be covered: {why}") from None
    os.rmdir(probe)


# -- with the right to mount ---------------------------------------------------------------------


def _enter_new_root(layers: str, kept: Mapping[str, int]) -> None:
    root = f"{layers}/root"
    os.mkdir(root)
    _overlay(layers, "/", root)
    for mount in _mounts():
        if mount.path == "/" or _is_system(mount.path):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):  # hidden by another mount
            _copy_mount(layers, mount, root + mount.path)
    for path in _SYSTEM:
        if os.path.isdir(path) and (path != "/run" or os.path.ismount(path)):
            _mount(path, root + path, "", _BIND | _REC)
    _bind_kept(root, kept)
    os.chdir(root)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", _DETACH)


def _copy_mount(layers: str, mount: _Mount, target: str) -> None:
    """What is mounted below `/`, mounted on the new root as well."""
    if mount.is_covered and os.path.isdir(mount.path):
        try:
            return _overlay(layers, mount.path, target)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise
    _mount(mount.path, target, "", _BIND)
    if mount.is_covered:  # a file, or a file system that cannot be a lower layer
        _make_read_only(target)
    return None


# -- as an ordinary user -------------------------------------------------------------------------


def _cover_folders(layers: str, kept: Mapping[str, int]) -> None:
    mounts = {mount.path: mount for mount in _mounts()}
    split: list[str] = []
    _cover(layers, "/", mounts, split)
    _bind_kept("", kept)
    for folder in split:
        _make_read_only(folder)
    # Without the rights that the user namespace gave the modes of the user's own files hold again.
    _call("capset", struct.pack("II", _CAPABILITY_VERSION_3, 0), bytes(24))


def _cover(layers: str, folder: str, mounts: Mapping[str, _Mount], split: list[str]) -> None:
    """Covers a folder, or those in it where something is mounted below; mounts of which only parts
    are covered go to `split`."""
    mount = mounts.get(folder)
    if _is_system(folder) or not (mount is None or mount.is_covered):
        return
    if not any(is_in(path, folder) for path in mounts if path != folder):
        try:
            _overlay(layers, folder, folder)
        except OSError:
            _mount(folder, folder, "", _BIND)
            _make_read_only(folder)
        return
    if mount is not None:
        split.append(folder)
    with os.scandir(folder) as entries:
        below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in sorted(below):
        with suppress(PermissionError):
            _cover(layers, path, mounts, split)


# -- mounts --------------------------------------------------------------------------------------


def _overlay(layers: str, folder: str, target: str) -> None:
    """Mounts a copy-on-write view of `folder` on `target`; paths go by descriptor, so that a colon
    or comma in one separates nothing."""
    status = os.stat(folder)
    upper, work = add_layer(layers, folder)
    mode = stat.S_IMODE(status.st_mode)
    os.chmod(upper, mode if os.access(folder, os.W_OK) else mode & ~0o222)
    with suppress(OSError):
        os.chown(upper, status.st_uid, status.st_gid)
    os.utime(upper, ns=(status.st_atime_ns, status.st_mtime_ns))
    opened = [_opened(path) for path in (folder, upper, work)]
    try:
        places = zip(("lowerdir", "upperdir", "workdir"), opened, strict=True)
        paths = ",".join(f"{name}=/proc/self/fd/{number}" for name, number in places)
        _mount("overlay", target, "overlay", 0, f"{paths},volatile,{_options_on(upper)}")
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _options_on(upper: str) -> str:
    """Only who may set trusted attributes can have folders renamed, and several names of a file."""
    try:
        os.setxattr(upper, "trusted.neusight", b"")
    except OSError:
        return "userxattr"
    os.removexattr(upper, "trusted.neusight")
    return "redirect_dir=on,index=on"


def _bind_kept(root: str, kept: Mapping[str, int]) -> None:
    for path, descriptor in kept.items():
        _mount(f"/proc/self/fd/{descriptor}", root + path, "", _BIND | _REC)


def _make_read_only(path: str) -> None:
    flags = os.statvfs(path).f_flag & _KEPT_FLAGS
    _mount("none", path, "", _REMOUNT | _BIND | _RDONLY | flags)


def _mounts() -> list[_Mount]:
    """What is mounted, parents first; of several on one path the last."""
    found: dict[str, _Mount] = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            left, right = line.split(" - ")
            path = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), left.split()[4])
            found[path] = _Mount(path, right.split()[0], "ro" in left.split()[5].split(","))
    return sorted(found.values())


def _is_system(path: str) -> bool:
    return any(is_in(path, folder) for folder in _SYSTEM)


def _opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = (os.fsencode(word) for word in (source, target, kind))
    _call("mount", *words, flags, data.encode(), what=f"mount {kind or 'bind'} on {target}")


def _call(name: str, *arguments: object, what: str = "") -> None:
    """Its error says what was called."""
    try:
        system_call(name, *arguments)
    except OSError as error:
        raise OSError(error.errno, f"{what or name}: {error.strerror}") from None


# -- descriptors ---------------------------------------------------------------------------------


def reopen_inherited(store: str) -> None:
    """Files that were open for writing (`9>>notes.txt`) are those that this process may write now;
    standard output and error stay where they lead."""
    for descriptor, path in open_for_writing().items():
        if not is_in(path, store):
            with suppress(OSError):  # this process may not
                reopen(descriptor, path, os.open)

"""Checkpoints in a directory of this host, or one that all hosts have mounted.

A file is written under a temporary name, synced, and renamed; then the directory is synced too. A crash of the process or the
machine leaves at most the unfinished file, which is removed after an hour. Files and directories are
created readable by their user only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from millrace.errors import CheckpointMissing, MillraceError, StoreUnreachable
from millrace.runtime.checkpoints.guarded import write_and_look
from millrace.runtime.checkpoints.lock import Lock
from millrace.runtime.durable import make_directory, write_file
from millrace.state.checkpoint import topology_prefix

UNFINISHED = ".unfinished-"  # prefix of a file that is being written
UNFINISHED_SECONDS = 3600.0  # a writer that takes longer is presumed dead
LOCK = ".lock"  # suffix of a topology's lock in the root; the path of a topology has no dot


class DirectoryStore:
    """A directory. Any number of processes may use it at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._durable: set[Path] = set()  # directories known to survive a crash
        with self._translated("be opened"):
            self._make(self.root)

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        path = self._path(name)
        unfinished = path.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
        with self._translated(f"write {name}"):
            self._make(path.parent)
            write_file(path, unfinished, parts)

    def write_if(self, name: str, parts: Sequence[bytes | memoryview], guard: str, content: bytes) -> bool:
        return write_and_look(self, name, parts, guard, content)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._translated(f"read {name}"):
            try:
                with self._path(name).open("rb") as file:
                    file.seek(offset)
                    return file.read(-1 if length is None else length)
            except (FileNotFoundError, NotADirectoryError):
                raise not_there(name, str(self.root)) from None

    def names(self, prefix: str) -> list[str]:
        with self._translated(f"list {prefix}*"):
            self.root.stat()  # a missing store must not look empty
            return sorted(name for name in self._walk(self._directory_of(prefix)) if name.startswith(prefix))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with self._translated(f"delete {name}"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._path(name).unlink()

    def missing(self, names: Iterable[str]) -> set[str]:
        return {name for name in names if not self._exists(name)}

    def lock(self, topology: str) -> Lock | None:
        """Works between hosts if the file system's locks do; None if it has no locks."""
        with self._translated(f"lock {topology}"):
            self._make(self.root)
            return Lock.take(self.root / f"{topology_prefix(topology)}{LOCK}", topology)

    def close(self) -> None:
        """Nothing is open but the locks, which their owners close."""

    def _exists(self, name: str) -> bool:
        with self._translated(f"look for {name}"):
            try:
                self._path(name).stat()
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def _walk(self, directory: Path) -> Iterator[str]:
        for folder, _, files in os.walk(directory, onerror=_unless_gone):
            for file in files:
                path = Path(folder, file)
                if file.startswith(UNFINISHED):
                    _remove_if_old(path)
                elif not _is_lock(name := path.relative_to(self.root).as_posix()):
                    yield name

    def _path(self, name: str) -> Path:
        check_name(name)
        return self.root / name

    def _directory_of(self, prefix: str) -> Path:
        directory, slash, _ = prefix.rpartition("/")
        return self._path(directory) if slash else self.root

    def _make(self, directory: Path) -> None:
        """Make a directory that survives a crash: each is synced as an entry in its parent."""
        if directory in self._durable and directory.is_dir():  # it may have been deleted
            return
        if directory != self.root:
            self._make(directory.parent)
        make_directory(directory)
        self._durable.add(directory)

    @contextlib.contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise refused(str(self.root), action, error) from error


def check_name(name: str) -> None:
    """Refuse a name that leads out of the store, to an unfinished file or to a lock: names also come with messages."""
    if ("\0" in name or _is_lock(name)
            or any(step in ("", ".", "..") or step.startswith(UNFINISHED) for step in name.split("/"))):
        raise MillraceError(f"{name!r} cannot be a name in a checkpoint store: make names with millrace.state.checkpoint")


def _is_lock(name: str) -> bool:
    return name.endswith(LOCK) and "/" not in name


def not_there(name: str, place: str) -> CheckpointMissing:
    return CheckpointMissing(f"the checkpoint store {place} has no {name}: it was deleted, or another store was written to. "
                             "Is it on a disk that all hosts share, and does nothing else clean it up?")


def refused(place: str, action: str, error: Exception) -> StoreUnreachable:
    """An error of a file system with advice."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "Make room there, or name a larger one in checkpoint.store"
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "Let the user that workers and master run as write there, or name another one in checkpoint.store"
    else:
        advice = "Check that it is mounted or reachable from every host, or name another one in checkpoint.store"
    line = " ".join(str(error).split())[:500]
    return StoreUnreachable(f"the checkpoint store {place} could not {action}: {line}. {advice}")


def _remove_if_old(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # finished or removed meanwhile
        if time.time() - path.stat().st_mtime > UNFINISHED_SECONDS:
            path.unlink()


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error

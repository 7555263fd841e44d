"""Directories and files that a killed process leaves behind: marked while they are used, swept by the next run.

Whoever uses such a directory holds a shared lock on a file in it. The kernel releases the lock when the process ends, in
whatever way, so a directory whose lock can be taken alone belongs to nobody. Nothing is concluded from a directory without
that file, or from age.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
from pathlib import Path

from millrace.runtime.durable import PRIVATE_FILE
from millrace.runtime.wire.transport import private_directory

IN_USE = ".in-use"

log = logging.getLogger(__name__)


def lock_file(path: Path, how: int, make: bool = True) -> int:
    """Lock the file of this name, and return its descriptor. Raises `BlockingIOError` if another process has it and `how`
    includes LOCK_NB. A file that its holder has removed meanwhile does not count: another process may have locked the next
    one of this name."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if make else 0), PRIVATE_FILE)
        try:
            fcntl.flock(descriptor, how)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


class UsedDirectory:
    """A private directory of this user that is not swept as long as this process, or another user of it, lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = self._enter()

    def _enter(self) -> int | None:
        while True:
            private_directory(str(self.path))
            try:
                return lock_file(self.path / IN_USE, fcntl.LOCK_SH)
            except FileNotFoundError:  # swept since it was found or made
                continue
            except OSError as error:
                log.warning("%s cannot be marked as used, and is not cleaned up after a crash: %s", self.path, error)
                return None

    def leave(self) -> None:
        """Stop using it, and remove it if nobody else does."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
            _remove_if_unused(self.path)


def sweep(place: Path) -> list[Path]:
    """Remove this user's directories in `place` whose users have all died. Returns those removed."""
    return [path for path in sorted(place.glob("millrace-*")) if _is_own(path) and _remove_if_unused(path)]


def _is_own(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _remove_if_unused(path: Path) -> bool:
    """Remove the directory, unless another process uses it or nothing tells. The lock is held meanwhile: a process that enters
    now waits, and then makes the directory anew."""
    try:
        descriptor = lock_file(path / IN_USE, fcntl.LOCK_EX | fcntl.LOCK_NB, make=False)
    except OSError:
        return False
    try:
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
    return True

"""Files and directories of this host that survive a power cut, and that only their user can read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600


def make_directory(directory: Path, mode: int = PRIVATE_DIRECTORY) -> None:
    """Make the directory and its missing parents, and sync each as an entry in its own parent; the directory itself even if it
    exists: the process that made it may not have synced it yet."""
    if not directory.parent.is_dir():
        make_directory(directory.parent, mode)
    is_new = not directory.exists()
    directory.mkdir(mode, exist_ok=True)
    try:
        sync_directory(directory.parent)
    except OSError:
        if is_new:  # a second sync would succeed and prove nothing: the entry must be made again
            with contextlib.suppress(OSError):  # another process uses it already
                directory.rmdir()
        raise


def sync_directory(directory: Path) -> None:
    """Sync the directory's entries to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, unfinished: Path, parts: Sequence[bytes | memoryview]) -> None:
    """Write a file under the name `unfinished` in the same directory, and rename it once it is on the disk. A file whose sync
    has failed is given up: a second sync would succeed, even though the disk does not have all of its bytes."""
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error matters
            unfinished.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)

"""Copies of snapshots on the worker's own disk, so that tasks which survive a failure are restored without the network.

A copy is a file with the content of a blob, or with those of its pieces that were read from elsewhere: the rest is a hole.
Nothing depends on a copy. Each piece is checked by its CRC-32 when it is read, so a file that is incomplete, damaged or gone
costs a read from the store and no more. That is why nothing is synced and errors are only logged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace.config import CHECKPOINTS, LOCAL_COPIES
from millrace.errors import CorruptCheckpoint
from millrace.runtime.checkpoints.directory import check_name
from millrace.runtime.checkpoints.store import local_directory
from millrace.state.checkpoint import PieceRef, read_piece, wave_of

log = logging.getLogger("millrace.worker")


DEFAULT_MEGABYTES = 1024.0


def limit_of(settings: Mapping[str, Any], one_host: bool) -> int:
    """The most bytes of copies in a worker. Unless told, none if the store is a directory and all workers are on `one_host`: it
    is as near as a copy then. Several hosts share a directory over the network."""
    megabytes = LOCAL_COPIES.of(settings)
    if megabytes is None:
        near = one_host and local_directory(CHECKPOINTS.of(settings)) is not None
        megabytes = 0.0 if near else DEFAULT_MEGABYTES
    return int(megabytes * 2**20)


class LocalCopies:
    """A directory of copies, `limit` bytes at most: the oldest are removed to make room. Thread-safe.

    The directory belongs to a slot. A process that follows another in it finds the copies of its predecessor.
    """

    def __init__(self, root: Path, limit: int) -> None:
        self.root, self.limit = root, limit
        self._lock = threading.Lock()
        self._sizes = self._found()  # by blob, the oldest first

    def _found(self) -> dict[str, int]:
        files = list[tuple[float, str, int]]()
        for folder, _, names in os.walk(self.root):
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(FileNotFoundError):  # a predecessor that was presumed dead may still clean up
                    stat = path.stat()
                    files.append((stat.st_mtime, path.relative_to(self.root).as_posix(), stat.st_size))
        return {blob: size for _, blob, size in sorted(files)}

    # -- store threads -----------------------------------------------------------------------------------------------

    def add(self, blob: str, parts: Sequence[bytes]) -> None:
        """Copy a blob that this worker has written to the store."""
        offset, pieces = 0, list[tuple[int, bytes]]()
        for part in parts:
            pieces.append((offset, part))
            offset += len(part)
        self._write(blob, pieces)

    def add_pieces(self, pieces: Mapping[PieceRef, bytes]) -> None:
        """Copy pieces that this worker has read from the store or from fragments."""
        by_blob: dict[str, list[tuple[int, bytes]]] = {}
        for ref, content in pieces.items():
            by_blob.setdefault(ref.blob, []).append((ref.offset, content))
        for blob, contents in by_blob.items():
            self._write(blob, contents)

    def _write(self, blob: str, pieces: Iterable[tuple[int, bytes]]) -> None:
        try:
            with self._lock:
                path = self._path(blob)
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                for offset, content in pieces:
                    file.seek(offset)
                    file.write(content)
                size = file.seek(0, os.SEEK_END)
        except OSError as error:
            log.warning("%s is not copied to %s: %s", blob, self.root, error)
            return
        with self._lock:
            self._sizes.pop(blob, None)
            self._sizes[blob] = size
            self._make_room()

    def read(self, refs: Collection[PieceRef]) -> dict[PieceRef, bytes]:
        """Those of the pieces that are here, checked."""
        by_blob: dict[str, list[PieceRef]] = {}
        for ref in refs:
            by_blob.setdefault(ref.blob, []).append(ref)
        pieces: dict[PieceRef, bytes] = {}
        for blob, wanted in by_blob.items():
            if blob in self._sizes:
                pieces.update(self._read_blob(blob, wanted))
        return pieces

    def _read_blob(self, blob: str, refs: Iterable[PieceRef]) -> dict[PieceRef, bytes]:
        pieces: dict[PieceRef, bytes] = {}
        try:
            with self._path(blob).open("rb") as file:
                for ref in refs:
                    file.seek(ref.offset)
                    with contextlib.suppress(CorruptCheckpoint):  # a hole, or a process that died while it wrote
                        pieces[ref] = read_piece(ref, file.read(ref.length), ref.offset)
        except OSError as error:
            log.warning("the copy of %s in %s cannot be read: %s", blob, self.root, error)
        return pieces

    # -- the worker's loop -------------------------------------------------------------------------------------------

    def keep(self, prefix: str, blobs: Collection[str], wave: int) -> None:
        """Remove the copies of a task, up to this wave, that its state no longer needs."""
        with self._lock:
            self._remove([blob for blob in self._sizes
                          if blob.startswith(f"{prefix}/") and blob not in blobs and wave_of(blob) <= wave])

    def drop(self, prefix: str) -> None:
        """Remove all copies of a topology."""
        with self._lock:
            self._remove([blob for blob in self._sizes if blob.startswith(f"{prefix}/")])

    def close(self) -> None:
        """Remove everything: the slot is given up."""
        with self._lock:
            self._sizes.clear()
            shutil.rmtree(self.root, ignore_errors=True)

    def _make_room(self) -> None:
        total, oldest = sum(self._sizes.values()), list[str]()
        for blob, size in self._sizes.items():
            if total <= self.limit:
                break
            oldest.append(blob)
            total -= size
        self._remove(oldest)

    def _remove(self, blobs: Iterable[str]) -> None:
        for blob in blobs:
            del self._sizes[blob]
            with contextlib.suppress(OSError):  # at worst it takes up room until the directory is removed
                self._path(blob).unlink(missing_ok=True)

    def _path(self, blob: str) -> Path:
        check_name(blob)
        return self.root / blob

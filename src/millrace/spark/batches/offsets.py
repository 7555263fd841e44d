"""Spark's notes on a batch: how far it reads each source, and for files which ones.

    <place>/offsets/<batch>                     "v1", then metadata of the batch, then one line for each source
    <place>/sources/<source>/<entry>[.compact]  the files of a batch, if the source reads files; its offset names the entry

Spark writes them before it offers a batch and does not sync them. If a power cut takes them away after the batch is committed,
Spark plans the same batch anew, perhaps with more rows, which would all count as committed. So they are synced before the
manifest is written, and the manifest has their digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any, Protocol

from millrace.errors import OffsetsChanged
from millrace.runtime.checkpoints.store import local_directory
from millrace.runtime.durable import make_directory, sync_directory, write_file

METADATA_LINES = 2  # the version, and the batch's time and settings, which differ if Spark plans it again
ENTRY, ENTRY_OF_FILE = "logOffset", "batchId"  # names in the offset of a source that reads files, and in its list of files
UNFINISHED = ".millrace-"  # prefix of a file that is being rewritten; Spark ignores it


class OffsetFiles(Protocol):
    """Access to files on any file system that Spark supports."""

    def read(self, place: str) -> bytes | None:
        """The content of the file; None if it does not exist."""


class SparkOffsets:
    """The notes below `place`, a URI. They are synced if it is a directory of this host; other file systems do that."""

    def __init__(self, files: OffsetFiles, place: str) -> None:
        self._files, self.place = files, place
        self._directory = local_directory(place)
        self._synced: set[Path] = set()
        self._distrusted: set[Path] = set()  # files and directories whose sync has failed
        self._unchecked = False  # files were written anew and are not compared with the digest yet

    def make(self) -> None:
        """Make the directory, so that it survives a crash and only the user can read it."""
        if self._directory is not None:
            make_directory(self._directory)

    def digest(self, batch: int) -> str:
        """A digest of the rows that belong to the batch; empty if Spark has no notes on it."""
        notes = self._read(f"offsets/{batch}")
        if notes is None:
            return ""
        offsets = notes.decode().split("\n")[METADATA_LINES:]
        whole = hashlib.blake2b(digest_size=16)
        for source, offset in enumerate(offsets):
            whole.update(f"{offset}\n".encode())
            for line in self._files_of(source, offset):
                whole.update(f"{line}\n".encode())
        return whole.hexdigest()

    def _files_of(self, source: int, offset: str) -> list[str]:
        """The files that the source has added with this offset; empty if it does not read files."""
        entry = _value_of(offset, ENTRY)
        if entry is None:
            return []
        place = f"sources/{source}/{entry}"
        listed = self._read(place) or self._read(f"{place}.compact") or b""  # that one has the files of earlier entries too
        return sorted(line for line in listed.decode().split("\n") if _value_of(line, ENTRY_OF_FILE) == entry)

    def _read(self, name: str) -> bytes | None:
        if self._directory is None:
            return self._files.read(f"{self.place}/{name}")
        path = self._directory / name
        return path.read_bytes() if path.exists() else None

    def sync(self, batch: int, digest: str) -> None:
        """Sync all notes that were written since the last call, and their directories. `digest`: that of the batch when it
        began; `OffsetsChanged` if notes had to be written anew and no longer have it."""
        if self._directory is None or not self._directory.is_dir():
            return
        self._sync_new(self._directory)
        if self._unchecked and (found := self.digest(batch)) != digest:
            raise OffsetsChanged(f"Spark's notes on batch {batch} in {self.place} could not be written to the disk, and what "
                                    f"is left of them is not what the batch was run with (digest {found or 'missing'}, not "
                                    f"{digest}): it is not committed. Check that disk, and start with --resume to run the "
                                    "batch again")
        self._unchecked = False

    def _sync_new(self, directory: Path) -> None:
        folders = [directory, directory / "offsets", *directory.glob("sources/*")]
        for folder in folders:
            written = {Path(entry.path) for entry in os.scandir(folder) if entry.is_file()} if folder.is_dir() else set()
            new = written - self._synced
            for path in sorted(new):
                self._sync_file(path)
            if new:
                for each in (folder, *folder.parents):
                    self._sync_folder(each)
                    if each == directory:
                        break
            self._synced = {path for path in self._synced if path.parent != folder} | written

    def _sync_file(self, path: Path) -> None:
        """Sync a file. If its sync or that of its directory has failed it is written anew, which renames it into place: a
        second sync would succeed and prove nothing."""
        try:
            if path in self._distrusted or path.parent in self._distrusted:
                self._rewrite(path)
                return
            with path.open("rb") as file:
                os.fsync(file.fileno())
        except FileNotFoundError:  # Spark deletes old ones
            return
        except OSError:
            self._distrusted |= {path, path.parent}  # to write it anew syncs the directory, too
            raise
        self._distrusted.discard(path)

    def _rewrite(self, path: Path) -> None:
        self._unchecked = True
        write_file(path, _unfinished(path.parent), [path.read_bytes()])
        self._distrusted.discard(path)

    def _sync_folder(self, folder: Path) -> None:
        """Sync a directory. If its sync has failed its entries are changed first, so that all of them are written again: Spark
        uses the directories in it, which cannot be renamed."""
        try:
            if folder in self._distrusted:
                passing = _unfinished(folder)
                write_file(passing, _unfinished(folder), [])
                passing.unlink()
            sync_directory(folder)
        except OSError:
            self._distrusted.add(folder)
            raise
        self._distrusted.discard(folder)


def _unfinished(folder: Path) -> Path:
    return folder / f"{UNFINISHED}{uuid.uuid4().hex}"


def _value_of(line: str, name: str) -> Any:
    """The value of that name in a line of JSON; None if it has none."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values.get(name) if isinstance(values, dict) else None

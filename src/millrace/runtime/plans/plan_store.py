"""The plan store: a node's copy of its part of the plan. The agent writes it, the workers read it.

A directory with one file for each version of the part, named by its stamp. A version is written under another name and then
renamed, so a reader sees all of it or nothing. Nobody takes a lock: a process that is killed or stopped at any moment, even in
the middle of a write, blocks neither the readers nor the next agent. An agent that continues after another one has replaced
it writes an old stamp, which is never the newest.

    file: CRC-32 of stamp and part, 4 bytes; the part

This is a copy; the coordination store has the truth. So writes are not synced to the disk, and a damaged version is not
repaired: readers use the one before it until the agent has fetched the version again.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from pathlib import Path

from millrace.control.assignment import Stamp
from millrace.errors import MillraceError

KEPT = 8

_NAME = re.compile(r"plan-(\d{20})-(\d{20})(\.\d+)?")  # with the process id of its writer while it is being written
_SUM = struct.Struct(">I")


class PlanStore:
    """The plan store of one node. Any number of processes may use it at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, stamp: Stamp, part: bytes) -> bool:
        """Write a version. Returns False, without writing, if the store already has this stamp or a newer one."""
        try:
            newest = self._read(None)
            if newest is not None and newest[0] >= stamp:
                return False
            self._add(stamp, part)
            self._remove_old()
            return True
        except OSError as error:
            raise self._unusable(error) from error

    def newest(self) -> tuple[Stamp, bytes] | None:
        return self.newer_than(None)

    def newer_than(self, stamp: Stamp | None) -> tuple[Stamp, bytes] | None:
        """The newest version if it is newer than `stamp`; None if it is not, or if no version is intact."""
        try:
            return self._read(stamp)
        except OSError as error:
            raise self._unusable(error) from error

    def _read(self, after: Stamp | None) -> tuple[Stamp, bytes] | None:
        for stamp, name in self._versions():
            if after is not None and stamp <= after:
                return None
            part = _part(stamp, self.directory / name)
            if part is not None:
                return stamp, part
        return None

    def _add(self, stamp: Stamp, part: bytes) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"plan-{stamp.author:020d}-{stamp.revision:020d}"
        unfinished = self.directory / f"{name}.{os.getpid()}"
        try:
            with open(unfinished, "wb", opener=_private) as file:
                file.write(_SUM.pack(_checksum(stamp, part)))
                file.write(part)
            unfinished.rename(self.directory / name)
        except OSError:
            unfinished.unlink(missing_ok=True)  # a full disk needs the room
            raise

    def _remove_old(self) -> None:
        """Remove all versions but the last, and what killed agents left unfinished before them. The oldest first: a reader that
        finds one gone finds none before it, so it never goes back to an older plan."""
        *_, (oldest, _) = self._versions()[:KEPT]
        for stamp, name in sorted(self._files()):
            if stamp < oldest:
                (self.directory / name).unlink(missing_ok=True)

    def _versions(self) -> list[tuple[Stamp, str]]:
        """The stamps and names of all versions, the newest first."""
        return sorted((file for file in self._files() if "." not in file[1]), reverse=True)

    def _files(self) -> list[tuple[Stamp, str]]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return [(Stamp(int(match[1]), int(match[2])), match[0]) for match in map(_NAME.fullmatch, names) if match]

    def _unusable(self, error: OSError) -> MillraceError:
        return MillraceError(f"cannot use the plan store in {self.directory}: {error}. Is it a directory of this user, on a "
                             "disk that has room?")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _checksum(stamp: Stamp, part: bytes) -> int:
    return zlib.crc32(part, zlib.crc32(str(stamp).encode()))


def _part(stamp: Stamp, path: Path) -> bytes | None:
    """The part in a file; None if the file is damaged or has been removed."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) < _SUM.size:
        return None
    part = content[_SUM.size :]
    return part if _SUM.unpack_from(content)[0] == _checksum(stamp, part) else None

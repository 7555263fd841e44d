"""Stages output in hidden files, which a rename makes visible."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from millrace.api.component import Component
from millrace.connectors.staging import Staging, gone, staged_name
from millrace.errors import MillraceError, RowsLost
from millrace.runtime.durable import make_directory, sync_directory, write_file

_NAME = re.compile(r"(\d+)-(\d+)-(?:open|unsynced|(\d+)-([0-9a-f]+))")


class _Staged(NamedTuple):
    path: Path
    task: int
    epoch: int
    wave: int | None  # None: not prepared
    token: str | None


class StagedFiles(Staging):
    """In `<directory>/.staged-<topology>+<component>/` a file is `<task>-<epoch>-open<suffix>`, then
    `<task>-<epoch>-<wave>-<token><suffix>`, and visible as `<directory>/part-<task>-w<wave>-<epoch>-<token><suffix>`:
    sorted by name, a task's files are in order.

    `<task>-published` has the epoch and the wave published last: visible files may be moved away.

    A random token in each name keeps the files of different sinks and runs in one directory apart. A crash may tear an open
    file; a prepared one was synced before it got its name. A file whose sync has failed becomes
    `<task>-<epoch>-unsynced<suffix>`, and this epoch of the task prepares nothing more: a second sync of it would succeed, even
    though the disk does not have all of its rows. They are computed again, in the next epoch.
    """

    def __init__(self, directory: Path, suffix: str, owner: Component) -> None:
        self._visible, self._suffix, self._owner = directory, suffix, owner
        self._hidden = directory / f".staged-{staged_name(owner)}"
        make_directory(directory, 0o777)  # as visible as the user's umask allows
        make_directory(self._hidden)
        self._prepared: set[_Staged] = set()  # by this instance, which has not yet published them
        self._file: tuple[int, Path] | None = None  # descriptor and name of the open one
        self._size = 0  # of the whole chunks in it
        self._unsynced = self._path("unsynced").exists()  # an earlier instance may have left one
        self._renamed: set[_Staged] = set()  # visible, and not yet noted as published: a sync may have failed

    def add(self, data: bytes) -> None:
        """Stages one chunk, completely or not at all."""
        if not data:
            return
        self._check_synced()
        (fd, _), view = self._file or self._open(os.O_CREAT), memoryview(data)
        offset = self._size
        try:
            while view:  # a write may take only a part
                written = os.pwrite(fd, view, offset)
                view, offset = view[written:], offset + written
        except OSError:
            os.ftruncate(fd, self._size)
            raise
        self._size = offset

    def prepare(self, wave: int) -> list[str]:
        self._check_synced()
        self._prepare(wave)
        return [_described(staged, staged.path.stat().st_size) for staged in self._files()
                if (staged.task, staged.epoch) == (self._owner.task_index, self._owner.epoch) and staged.wave is not None]

    def _prepare(self, wave: int) -> None:
        try:
            fd, path = self._file or self._open(0)  # an earlier instance may have left one
        except FileNotFoundError:
            return  # nothing was staged
        os.ftruncate(fd, self._size)
        try:
            os.fsync(fd)
        except OSError as error:
            self._give_up(path)
            raise self._not_on_disk(error) from error
        token = secrets.token_hex(4)
        prepared = self._path(f"{wave}-{token}")
        try:
            path.rename(prepared)
        except FileNotFoundError:
            raise gone(self._owner, str(self._hidden)) from None
        self._file = fd, prepared  # until it is durable, so that the next wave includes it if this one fails here
        sync_directory(self._hidden)
        self._prepared.add(_Staged(prepared, self._owner.task_index, self._owner.epoch, wave, token))
        self.close()

    def publish(self, task: int, epoch: int, wave: int) -> None:
        """Raises if a file that this instance prepared is neither staged nor visible; this is unknown for other instances."""
        prepared = [staged for staged in self._files() if (staged.task, staged.epoch) == (task, epoch)
                    and staged.wave is not None and staged.wave <= wave]
        for staged in self._renamed_of(task, epoch):  # by a call that failed
            self._rename_again(staged)
        for staged in sorted(prepared, key=lambda staged: staged.wave or 0):
            self._renamed.add(staged)
            try:
                staged.path.rename(self._final(staged))
                self._prepared.discard(staged)
            except FileNotFoundError:  # another incarnation has published it, and notes that
                self._renamed.discard(staged)
        if renamed := self._renamed_of(task, epoch):
            sync_directory(self._visible)
            self._note_published(task, epoch, wave)
            self._renamed -= renamed
        if (task, epoch) == (self._owner.task_index, self._owner.epoch):
            self._account(wave)

    def _renamed_of(self, task: int, epoch: int) -> set[_Staged]:
        return {staged for staged in self._renamed if (staged.task, staged.epoch) == (task, epoch)}

    def _rename_again(self, staged: _Staged) -> None:
        """Move a visible file out and in again. If the sync of its directory has failed, another one would succeed and prove
        nothing about the first rename, and a power cut might undo it after the file was noted as published."""
        with contextlib.suppress(FileNotFoundError):  # a reader has taken it away, or the file is still staged
            self._final(staged).rename(staged.path)
            staged.path.rename(self._final(staged))

    def missing(self, task: int, epoch: int, wave: int, tokens: Sequence[str]) -> list[str]:
        if self._published(task) >= (epoch, wave):
            return []
        staged = [each for each in self._files() if (each.task, each.epoch) == (task, epoch) and each.wave is not None]
        found = {_described(each, each.path.stat().st_size) for each in staged}
        for path in self._visible.glob(f"part-{task}-w*-{epoch}-*{self._suffix}"):
            _, _, at, _, token = path.name.removesuffix(self._suffix).split("-")
            found.add(_described(_Staged(path, task, epoch, int(at[1:]), token), path.stat().st_size))
        return [token for token in tokens if token not in found]

    def _note_published(self, task: int, epoch: int, wave: int) -> None:
        if self._published(task) >= (epoch, wave):  # a worker that was overtaken may come late
            return
        note = self._hidden / f"{task}-published"
        write_file(note, note.with_name(f"{note.name}-{secrets.token_hex(4)}"), [f"{epoch} {wave}".encode()])

    def _published(self, task: int) -> tuple[int, int]:
        try:
            epoch, wave = (self._hidden / f"{task}-published").read_text().split()
        except (FileNotFoundError, ValueError):  # earlier releases did not sync it: a crash of the machine may leave it empty
            return -1, -1
        return int(epoch), int(wave)

    def discard(self, task: int, epoch: int) -> None:
        for staged in self._files():
            if (staged.task, staged.epoch) == (task, epoch):
                staged.path.unlink(missing_ok=True)

    def staged(self) -> list[tuple[int, int]]:
        return [(staged.task, staged.epoch) for staged in (*self._files(), *self._renamed)]

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file[0])
            self._file = None

    def _check_synced(self) -> None:
        if self._unsynced:
            raise self._not_on_disk()

    def _give_up(self, path: Path) -> None:
        """Note, for a later instance too, that the open file may never be prepared."""
        self._unsynced = True
        self.close()
        path.rename(self._path("unsynced"))

    def _not_on_disk(self, error: OSError | None = None) -> RowsLost:
        return RowsLost(f"{self._owner.component_name}: rows staged in {self._hidden} (task {self._owner.task_index} in epoch "
                        f"{self._owner.epoch}) could not be written to the disk{f' ({error})' if error else ''}, and the "
                        "topology must roll back to its last committed wave to compute them again. Check that disk")

    def _account(self, wave: int) -> None:
        """Checks files that this instance prepared up to the wave and did not publish: another incarnation must have."""
        self._prepared = {staged for staged in self._prepared if staged.epoch == self._owner.epoch}  # others are visible
        due = {staged for staged in self._prepared if staged.wave is not None and staged.wave <= wave}
        lost = sorted(staged for staged in due if not self._final(staged).exists())
        if lost:
            raise MillraceError(
                f"{self._owner.component_name}: wave {wave} is committed, and files of task {self._owner.task_index} prepared "
                f"for it are neither in {self._hidden} nor in {self._visible}: {', '.join(each.path.name for each in lost)}. "
                "Someone has deleted them, and their rows are missing in the output. Restore them to the latter, or start the "
                "topology under another name, to compute everything again.")
        self._prepared -= due

    def _open(self, flag: int) -> tuple[int, Path]:
        path = self._path("open")
        self._file = os.open(path, os.O_WRONLY | flag, 0o666), path
        self._size = os.fstat(self._file[0]).st_size
        return self._file

    def _path(self, name: str) -> Path:
        return self._hidden / f"{self._owner.task_index}-{self._owner.epoch}-{name}{self._suffix}"

    def _final(self, staged: _Staged) -> Path:
        return self._visible / f"part-{staged.task}-w{staged.wave:012}-{staged.epoch}-{staged.token}{self._suffix}"

    def _files(self) -> Iterator[_Staged]:
        for path in list(self._hidden.iterdir()):
            if match := _NAME.fullmatch(path.name.removesuffix(self._suffix)):
                task, epoch, wave, token = match.groups()
                yield _Staged(path, int(task), int(epoch), int(wave) if wave else None, token)


def _described(staged: _Staged, size: int) -> str:
    """The token of a prepared file: its wave, its random token and its size."""
    return f"wave {staged.wave}, {staged.token}, {size} bytes"

"""The checkpoints of one topology in a store: saves blobs, commits manifests, finds the newest usable manifest.

    <topology>/author       the driver that may commit: the one that took the topology over last

A driver takes over by writing its name there, and only then looks for the newest manifest. After it has written a manifest, a
driver checks that `author` still names it; only then do sinks publish (`CheckpointStore.write_if`). With A the earlier driver
and B the later one:

    A: write the manifest, then look at the author
    B: write the author,   then look for manifests

Either A's look comes after B's write: then A finds B and publishes nothing. Or it comes before, and A's manifest was written
earlier still: then B finds it and continues from it, which publishes what A prepared. A third driver treats both alike.
A claim, the manifest with which an epoch begins, is written in the same way: so it always continues from the newest wave of
which anything can have been published, even if its driver dies at once.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from millrace.control.wording import shown
from millrace.errors import CheckpointMissing, CorruptCheckpoint, NotTheAuthor
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.store import CheckpointStore
from millrace.state.author import Author, first_epoch
from millrace.state.checkpoint import (
    Manifest,
    PieceRef,
    epoch_of,
    garbage,
    latest_numbers,
    manifest_name,
    manifest_names,
    read_piece,
    topology_prefix,
    uncommitted,
    wave_of,
)

KEPT = 2  # the newest, and one to fall back to if it is damaged
READ_LIMIT = 64 << 20  # bytes read at once, unless a piece is larger

log = logging.getLogger(__name__)


class Checkpoints:
    """Blocking calls: use it from a thread that may wait for the store. `author`: the driver that commits; None for readers."""

    def __init__(self, store: CheckpointStore, topology: str, author: Author | None = None) -> None:
        self.store, self.topology, self.author = store, topology, author
        self._author_name = f"{topology_prefix(topology)}/author"
        self._replaced: Author | None = None  # the author before this one took over

    # -- authors -------------------------------------------------------------------------------------------------------

    def take_over(self, run: str, fresh: bool = False, least: int = 0, upto: int = 0,
                  confirm: Callable[[], None] = lambda: None) -> Author:
        """Become the author: no other driver can commit from now on. Look for the newest manifest afterwards. `run`: a name
        that no other driver has; `least`: the least epoch of this driver; `upto`: see `Author`; `confirm`: called last before
        the author is written, and raises if it must not be."""
        while True:
            before = self.current_author()  # it may have written nothing else, and its sinks may have staged rows
            epoch = first_epoch(max(self.newest()[0], before.epoch if before is not None else 0), least)
            confirm()
            if before is None or before.run != run:
                self._replaced = before
            self.author = Author(run, epoch, fresh, time.time(), f"process {os.getpid()} on {socket.gethostname()}", upto)
            self.store.write(self._author_name, [self.author.encode()])
            if self.newest()[0] < epoch:  # else the driver before has rolled back meanwhile
                return self.author

    def give_back(self) -> None:
        """Undo `take_over`, for a driver that does not start after all: the driver before is the author again, unless another
        one has taken over meanwhile, or this one has written a manifest: then the run is begun, and the next driver must find
        its author. Stores that do not compare and write in one step look first, and then write."""
        author, self.author = self.author, None
        if author is None or any(epoch_of(name) >= author.epoch for name in manifest_names(self._names())):
            return
        if self._replaced is not None:
            self.store.write_if(self._author_name, [self._replaced.encode()], self._author_name, author.encode())
        elif self.current_author() == author:
            self.store.delete([self._author_name])

    def current_author(self) -> Author | None:
        """The author in the store."""
        try:
            return Author.decode(self.store.read(self._author_name))
        except CheckpointMissing:
            return None

    def check_author(self) -> None:
        """Raise `NotTheAuthor` if another driver has taken over."""
        current = self.current_author()
        if current is not None and current != self.author:
            raise NotTheAuthor(f"another driver took over {self.topology!r}: the author in the store is {current}, so this "
                               f"one, {self.author}, can no longer commit")

    # -- writing -------------------------------------------------------------------------------------------------------

    def save(self, blob_name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Durable when this returns."""
        self.store.write(blob_name, parts)

    def commit(self, manifest: Manifest) -> None:
        """Commit a wave: it is committed if and only if this returns. The blobs are checked first, since the store may have
        been emptied after a task saved its blob. Raises `NotTheAuthor` if there is a later epoch: another master continued the
        topology."""
        self.check_blobs(manifest)
        self.check_epoch(manifest.epoch)
        self.enter(manifest)

    def check_blobs(self, manifest: Manifest) -> None:
        """Raise `CheckpointMissing` if blobs are not in the store."""
        missing = self.store.missing(manifest.blobs())
        if missing:
            raise CheckpointMissing(f"wave {manifest.wave} of {self.topology!r} cannot be committed: {len(missing)} of the "
                                    f"blobs it needs are not in the store ({shown(missing)}). Was it emptied, or restarted "
                                    "without its data? The next wave must write everything whole")

    def claim(self, manifest: Manifest) -> None:
        """Record an epoch that resumes from an older wave. Blobs are not checked: fragments may have blobs that the store
        lost."""
        self.check_epoch(manifest.epoch)
        self.enter(manifest)

    def enter(self, manifest: Manifest) -> None:
        """Write a manifest without checking its blobs. Raises `NotTheAuthor` if another driver has taken over: then nothing
        may be published, even if the manifest is in the store."""
        name, parts = manifest_name(self.topology, manifest.epoch, manifest.wave), [manifest.encode()]
        if self.author is None:
            self.store.write(name, parts)
            return
        content = self.author.encode()
        while not self.store.write_if(name, parts, self._author_name, content):
            self.check_author()
            self.check_epoch(manifest.epoch)
            self.store.write(self._author_name, [content])  # the store was emptied
            self.check_epoch(manifest.epoch)  # or another driver was replacing it: its claim may have come before this write

    # -- reading -------------------------------------------------------------------------------------------------------

    def latest(self, upto: int | None = None) -> Manifest | None:
        """The newest usable manifest; None if none was ever committed. Raises `CorruptCheckpoint` if all are damaged: starting
        without state is then for the operator to decide. `upto`: ignore later epochs."""
        return self.newest_usable(upto)[0]

    def newest_usable(self, upto: int | None = None) -> tuple[Manifest | None, bool]:
        """The result of `latest`, and True if no other manifest, usable or not, is newer."""
        names = _of_epochs(self._names(), upto)
        manifest = next(self._usable(names), None)
        committed = manifest_names(names)
        if manifest is None and committed:
            raise CorruptCheckpoint(f"the store has {len(committed)} checkpoints of {self.topology!r} and none can be used; "
                                    f"the log has the error of each ({shown(committed)}). Restore the store's files "
                                    "from a backup, or start without state with --fresh (resume=False)")
        return manifest, manifest is None or manifest_name(self.topology, manifest.epoch, manifest.wave) == committed[0]

    def last_epoch(self, author: Author) -> int | None:
        """The last epoch of the run that this author was to continue or to replace, if no wave has been committed since: later
        manifests, without a wave, are of fresh runs that rolled back before their first commit. None: all epochs count."""
        waves = [(epoch_of(name), wave_of(name.removesuffix(".manifest"))) for name in manifest_names(self._names())]
        committed = [epoch for epoch, wave in waves if wave]
        limits = (author.upto, author.epoch - 1 if author.fresh else 0)
        return next((limit for limit in limits if committed and max(committed) <= limit), None)

    def manifest(self, epoch: int, wave: int) -> Manifest:
        """The manifest of one wave. Raises `CheckpointMissing` and `CorruptCheckpoint`."""
        return self._read(manifest_name(self.topology, epoch, wave))

    def newest(self) -> tuple[int, int]:
        """The highest epoch and wave of anything in the store, usable or not, committed or abandoned; (0, 0) if it is empty.
        Numbering from there uses no name twice."""
        return latest_numbers(self._names())

    def read_chain(self, refs: Sequence[PieceRef]) -> list[bytes]:
        """Read and check pieces of any key groups, in the order of `refs`. Adjacent pieces of a blob are read together."""
        pieces: dict[int, bytes] = {}
        for run in _runs(refs):
            first, last = refs[run[0]], refs[run[-1]]
            data = self.store.read(first.blob, first.offset, last.offset + last.length - first.offset)
            for number in run:
                pieces[number] = read_piece(refs[number], data, first.offset)
        return [pieces[number] for number in range(len(refs))]

    def collect(self, keep: int = KEPT, epoch: int | None = None) -> int:
        """Delete everything that neither the newest `keep` usable manifests nor a wave in progress needs. Returns the number of
        names. `epoch` is the caller's: if there is a later one, the caller must not delete anything."""
        names = self._names()
        if epoch is not None:
            self._check_epoch(names, epoch)
        kept = list(islice(self._usable(names), keep))
        # Not the highest wave of all kept manifests: one of an earlier epoch may be ahead of the current wave.
        # An earlier epoch has nothing in progress, however far it got: a fresh run may count waves from the start.
        unused = garbage(names, kept, kept[0].wave, kept[0].epoch) if kept else []
        self.discard(unused)
        return len(unused)

    def delete_abandoned(self, epoch: int, wave: int, needed: Mapping[TaskId, Iterable[str]]) -> int:
        """Delete the blobs that abandoned waves of these tasks have left, up to `wave`; `needed` has, for each task, those that
        its next snapshot builds on. Returns the number of names. Raises `CorruptCheckpoint` and `CheckpointMissing` if a
        manifest cannot be read, because then nobody knows what it needs."""
        names = self._names()
        self._check_epoch(names, epoch)
        committed = {blob for name in manifest_names(names) for blob in self._read(name).blobs()}
        unused = sorted(uncommitted(names, self.topology, epoch, wave, needed) - committed)
        self.discard(unused)
        return len(unused)

    def discard(self, names: Sequence[str]) -> None:
        """Delete names, manifests first: if this is interrupted, no manifest is left without its blobs."""
        gone = manifest_names(names)
        self.store.delete(gone)
        self.store.delete(set(names).difference(gone))

    def check_epoch(self, epoch: int) -> None:
        """Raise `NotTheAuthor` if the store has a checkpoint of a later epoch."""
        self._check_epoch(self._names(), epoch)

    def _check_epoch(self, names: Iterable[str], epoch: int) -> None:
        later = max((epoch_of(name) for name in manifest_names(names)), default=0)
        if later > epoch:
            raise NotTheAuthor(f"another driver took over {self.topology!r}: the store has a checkpoint of epoch "
                               f"{later}, and this is epoch {epoch}. This one can no longer commit")

    def _names(self) -> list[str]:
        return self.store.names(f"{topology_prefix(self.topology)}/")

    def _usable(self, names: Iterable[str]) -> Iterator[Manifest]:
        """Usable manifests, the newest first. Logs why others are skipped."""
        stored = set(names)
        for name in manifest_names(stored):
            try:
                manifest = self._read(name)
            except (CorruptCheckpoint, CheckpointMissing) as error:
                log.warning("checkpoint %s is skipped: %s", name, error)
                continue
            missing = manifest.blobs() - stored
            if missing:
                log.warning("checkpoint %s is skipped: %d of its blobs are not in the store (%s)", name, len(missing),
                            shown(missing))
                continue
            yield manifest

    def _read(self, name: str) -> Manifest:
        manifest = Manifest.decode(self.store.read(name))
        if manifest_name(manifest.topology, manifest.epoch, manifest.wave) != name:
            raise CorruptCheckpoint(f"{name} holds the manifest of wave {manifest.wave} of epoch {manifest.epoch} of "
                                    f"{manifest.topology!r}: it was copied or renamed")
        return manifest


def _of_epochs(names: list[str], upto: int | None) -> list[str]:
    return names if upto is None else [name for name in names if epoch_of(name) <= upto]


def _runs(refs: Sequence[PieceRef]) -> Iterator[list[int]]:
    """Group adjacent pieces, by number, that are read together."""
    run: list[int] = []
    for number in sorted(range(len(refs)), key=lambda number: (refs[number].blob, refs[number].offset)):
        ref = refs[number]
        if run:
            first, last = refs[run[0]], refs[run[-1]]
            end = last.offset + last.length
            if ref.blob != last.blob or ref.offset != end or ref.offset + ref.length - first.offset > READ_LIMIT:
                yield run
                run = []
        run.append(number)
    if run:
        yield run

"""The checkpoints of one topology in a store: blobs saved, manifests committed, the newest good one found again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from millrace.errors import CheckpointMissing, CorruptCheckpoint, NotTheAuthor
from millrace.runtime.checkpoints.store import CheckpointStore
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
)

KEPT = 2  # the newest, and one to go back to should it turn out damaged
READ_LIMIT = 64 << 20  # bytes that are read at once, unless a piece is larger
SHOWN = 5  # names in a message

log = logging.getLogger(__name__)


class Checkpoints:
    """Plain blocking calls: use it from a thread that may wait for the store."""

    def __init__(self, store: CheckpointStore, topology: str) -> None:
        self.store, self.topology = store, topology
        self.author = f"{topology_prefix(topology)}/author"  # whose batches are taken; see microbatch.batch_checkpoints

    def save(self, blob_name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Durable when this returns."""
        self.store.write(blob_name, parts)

    def commit(self, manifest: Manifest) -> None:
        """The wave is committed when, and only when, this returns. It asks for the blobs first: a store that was emptied
        since a task was told that its blob is safe must not be trusted. `NotTheAuthor` if a later epoch is there: another
        master has gone on with the topology."""
        self.check_blobs(manifest)
        self.check_epoch(manifest.epoch)
        self.enter(manifest)

    def check_blobs(self, manifest: Manifest) -> None:
        """CheckpointMissing if some are not in the store."""
        missing = self.store.missing(manifest.blobs())
        if missing:
            raise CheckpointMissing(f"wave {manifest.wave} of {self.topology!r} cannot be committed: {len(missing)} of the "
                                    f"blobs it needs are not in the store ({shown(missing)}). Was it emptied, or started "
                                    "again without its data? The next wave must write everything whole")

    def claim(self, manifest: Manifest) -> None:
        """Enters an epoch that goes on from an older wave. Its blobs are not asked for: fragments may have what the store has
        lost."""
        self.check_epoch(manifest.epoch)
        if not self.store.missing([self.author]):  # batches may still be run by another, who looks only there
            self.store.write(self.author, [f"epoch {manifest.epoch}".encode()])
        self.enter(manifest)

    def enter(self, manifest: Manifest) -> None:
        """For one who knows that nobody else has gone on with the topology."""
        self.store.write(manifest_name(self.topology, manifest.epoch, manifest.wave), [manifest.encode()])

    def latest(self) -> Manifest | None:
        """The newest that can be used; None if none was ever committed. CorruptCheckpoint if there are some and all are
        damaged: to start from nothing then is for people to decide."""
        names = self._names()
        found = next(self._usable(names), None)
        committed = manifest_names(names)
        if found is None and committed:
            raise CorruptCheckpoint(f"the store has {len(committed)} checkpoints of {self.topology!r} and none can be used; "
                                    f"the log says what is wrong with each ({shown(committed)}). Bring back the store's files "
                                    "from a backup, or begin anew with --fresh (resume=False), without state")
        return found

    def is_newest(self, manifest: Manifest) -> bool:
        """Whether none was committed after it, good or not."""
        return manifest_names(self._names())[0] == manifest_name(self.topology, manifest.epoch, manifest.wave)

    def manifest(self, epoch: int, wave: int) -> Manifest:
        """That of one wave. CheckpointMissing, CorruptCheckpoint."""
        return self._read(manifest_name(self.topology, epoch, wave))

    def newest(self) -> tuple[int, int]:
        """The highest epoch and the highest wave that the store has anything of, good or not, committed or given up; (0, 0) if
        it has nothing. Whoever numbers on from these uses no name twice."""
        return latest_numbers(self._names())

    def read_chain(self, refs: Sequence[PieceRef]) -> list[bytes]:
        """The pieces in the order given, each checked; they may be of any number of key groups. What lies side by side in a
        blob is read together."""
        found: dict[int, bytes] = {}
        for run in _runs(refs):
            first, last = refs[run[0]], refs[run[-1]]
            data = self.store.read(first.blob, first.offset, last.offset + last.length - first.offset)
            for number in run:
                found[number] = read_piece(refs[number], data, first.offset)
        return [found[number] for number in range(len(refs))]

    def collect(self, keep: int = KEPT, epoch: int | None = None) -> int:
        """Deletes what the newest `keep` usable manifests do not need and no wave under way can. Returns how many names.
        `epoch` is the caller's, if he has one: where a later one is, nothing is his to delete."""
        names = self._names()
        if epoch is not None:
            self._check_epoch(names, epoch)
        kept = list(islice(self._usable(names), keep))
        # Not the highest wave of all that are kept: one of an earlier epoch may be ahead of what is under way now.
        # An earlier epoch has nothing under way, however far it had come: a run that begins anew may count from the start.
        unused = garbage(names, kept, kept[0].wave, kept[0].epoch) if kept else []
        self.discard(unused)
        return len(unused)

    def discard(self, names: Sequence[str]) -> None:
        """Manifests first: should this end half-way, none is left whose blobs are gone."""
        gone = manifest_names(names)
        self.store.delete(gone)
        self.store.delete(set(names).difference(gone))

    def check_epoch(self, epoch: int) -> None:
        """`NotTheAuthor` if the store has a checkpoint of a later one."""
        self._check_epoch(self._names(), epoch)

    def _check_epoch(self, names: Iterable[str], epoch: int) -> None:
        later = max((epoch_of(name) for name in manifest_names(names)), default=0)
        if later > epoch:
            raise NotTheAuthor(f"another master has gone on with {self.topology!r}: the store has a checkpoint of epoch "
                               f"{later}, and this is epoch {epoch}. Nothing of it may be committed any more")

    def _names(self) -> list[str]:
        return self.store.names(f"{topology_prefix(self.topology)}/")

    def _usable(self, names: Iterable[str]) -> Iterator[Manifest]:
        """The newest first; says of each one that is left out why."""
        there = set(names)
        for name in manifest_names(there):
            try:
                manifest = self._read(name)
            except (CorruptCheckpoint, CheckpointMissing) as error:
                log.warning("checkpoint %s is left out: %s", name, error)
                continue
            missing = manifest.blobs() - there
            if missing:
                log.warning("checkpoint %s is left out: %d of its blobs are not in the store (%s)", name, len(missing),
                            shown(missing))
                continue
            yield manifest

    def _read(self, name: str) -> Manifest:
        manifest = Manifest.decode(self.store.read(name))
        if manifest_name(manifest.topology, manifest.epoch, manifest.wave) != name:
            raise CorruptCheckpoint(f"{name} holds the manifest of wave {manifest.wave} of epoch {manifest.epoch} of "
                                    f"{manifest.topology!r}: it was copied or renamed")
        return manifest


def _runs(refs: Sequence[PieceRef]) -> Iterator[list[int]]:
    """Which of them (by number) to read at once: each begins where the one before it ends."""
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


def shown(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:SHOWN]) + (f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else "")

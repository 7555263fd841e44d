"""The checkpoints of a topology that runs in batches. Several are committed in a second, so none of them may cost a list of the
store's names, which on object stores is slow and paid for.

    <topology>/author       whose batches the store takes: those of the run that began last
"""

from __future__ import annotations

from collections import deque

from millrace.errors import CheckpointMissing, NotTheAuthor
from millrace.runtime.checkpoints.checkpoints import KEPT, Checkpoints
from millrace.state.checkpoint import Manifest, manifest_name

LISTED = 100  # batches after which the names are listed: what writers that died have left behind is nowhere else


class BatchCheckpoints:
    """Of one run, which `name` tells from all others."""

    def __init__(self, checkpoints: Checkpoints, name: str) -> None:
        self.checkpoints, self._name = checkpoints, name.encode()
        self._committed: deque[Manifest] = deque(maxlen=KEPT)
        self._count = 0

    def begin(self, committed: Manifest | None) -> None:
        """Whoever else runs the topology can commit nothing from now on."""
        if committed is not None:
            self.checkpoints.claim(committed)
        self.checkpoints.store.write(self.checkpoints.author, [self._name])

    def lost(self, manifest: Manifest) -> set[str]:
        """Blobs that it needs and the store has no longer."""
        return self.checkpoints.store.missing(manifest.blobs())

    def commit(self, manifest: Manifest) -> None:
        """The batch is committed when, and only when, this returns. `CheckpointMissing`, `NotTheAuthor`."""
        self.checkpoints.check_blobs(manifest)
        self.enter(manifest)

    def enter(self, manifest: Manifest) -> None:
        """Without asking for its blobs."""
        try:
            author = self.checkpoints.store.read(self.checkpoints.author)
        except CheckpointMissing:  # the store was emptied
            self.checkpoints.check_epoch(manifest.epoch)
            self.checkpoints.store.write(self.checkpoints.author, [self._name])
        else:
            if author != self._name:
                raise NotTheAuthor(f"another run has gone on with {self.checkpoints.topology!r}: the store takes the batches "
                                   f"of {author.decode(errors='replace')}, and this is {self._name.decode()}. Nothing of it "
                                   "may be committed any more")
        self.checkpoints.enter(manifest)

    def superseded(self, manifest: Manifest, certain: bool) -> list[str] | None:
        """What nobody needs any more now that this one is committed. None: that takes a look at all names, since writers may
        have left something that is in no manifest: an earlier run, or, if it is not `certain`, this batch."""
        oldest = self._committed[0] if len(self._committed) == KEPT else None
        self._committed.append(manifest)
        self._count += 1
        if oldest is None or not certain or self._count % LISTED == 0:
            return None
        needed = set().union(*(kept.blobs() for kept in self._committed))
        name = manifest_name(oldest.topology, oldest.epoch, oldest.wave)
        return [name, *sorted(oldest.blobs() - needed)]

"""The checkpoints of a topology that runs in batches.

Several batches are committed per second, so a commit must not list the store's names, which is slow and billed on object
stores. The run that may commit is named in the store instead:

    <topology>/author       the run that began last; only it may commit
"""

from __future__ import annotations

from millrace.errors import CheckpointMissing, NotTheAuthor
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import Manifest


class BatchCheckpoints:
    """Checkpoints of one run; `name` distinguishes it from all others."""

    def __init__(self, checkpoints: Checkpoints, name: str) -> None:
        self.checkpoints, self._name = checkpoints, name.encode()

    def begin(self, committed: Manifest | None) -> None:
        """Become the author: no other run of the topology can commit from now on."""
        if committed is not None:
            self.checkpoints.claim(committed)
        self.checkpoints.store.write(self.checkpoints.author, [self._name])

    def lost(self, manifest: Manifest) -> set[str]:
        """Blobs that the manifest needs and the store no longer has."""
        return self.checkpoints.store.missing(manifest.blobs())

    def commit(self, manifest: Manifest) -> None:
        """The batch is committed when, and only when, this returns. Raises CheckpointMissing or NotTheAuthor."""
        self.checkpoints.check_blobs(manifest)
        self.enter(manifest)

    def enter(self, manifest: Manifest) -> None:
        """Write the manifest without checking its blobs."""
        try:
            author = self.checkpoints.store.read(self.checkpoints.author)
        except CheckpointMissing:  # the store was emptied
            self.checkpoints.check_epoch(manifest.epoch)
            self.checkpoints.store.write(self.checkpoints.author, [self._name])
        else:
            if author != self._name:
                raise NotTheAuthor(f"another run has taken over {self.checkpoints.topology!r}: the author in the store "
                                   f"is {author.decode(errors='replace')}, so this run ({self._name.decode()}) can no longer "
                                   "commit")
        self.checkpoints.enter(manifest)

"""The checkpoints of a topology that runs in batches.

Several batches are committed per second, so a commit must not list the store's names, which is slow and billed on object
stores: it only looks at the author.
"""

from __future__ import annotations

from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import Manifest


class BatchCheckpoints:
    """Checkpoints of one run, which has taken the topology over."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints

    def begin(self, committed: Manifest | None) -> None:
        """Record the checkpoint that the run continues from."""
        if committed is not None:
            self.checkpoints.claim(committed)

    def lost(self, manifest: Manifest) -> set[str]:
        """Blobs that the manifest needs and the store no longer has."""
        return self.checkpoints.store.missing(manifest.blobs())

    def commit(self, manifest: Manifest) -> None:
        """The batch is committed when, and only when, this returns. Raises CheckpointMissing or NotTheAuthor."""
        self.checkpoints.check_blobs(manifest)
        self.checkpoints.enter(manifest)

    def enter(self, manifest: Manifest) -> None:
        """Write the manifest without checking its blobs."""
        self.checkpoints.enter(manifest)

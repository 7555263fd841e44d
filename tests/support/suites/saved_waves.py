"""Test data for checkpoint stores: two contents, and waves of a small topology as its workers and master save them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millrace.runtime.checkpoints.store import CheckpointStore
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import Manifest, TaskRecord, blob_name, pack

Open = Callable[[], CheckpointStore]  # another process's view of the same store
OLD, NEW = b"old" * 30, b"the new content" * 8


def save_wave(checkpoints: Checkpoints, wave: int, groups: Sequence[int] = (0, 1, 2),
              before: Manifest | None = None) -> Manifest:
    """A wave that writes these groups in full and keeps the chains of the others."""
    blob = blob_name("t", "count", 0, 1, wave)
    parts, refs = pack({group: (True, f"{wave}:{group}".encode()) for group in groups}, blob)
    checkpoints.save(blob, parts)
    chains = {**(before.chains("count") if before else {}), **{group: [ref] for group, ref in refs.items()}}
    return Manifest("t", wave, 1, 8, {"count": 1}, [TaskRecord("count", 0, chains)], float(wave))


def commit_waves(checkpoints: Checkpoints, *waves: int) -> list[Manifest]:
    manifests = [save_wave(checkpoints, wave) for wave in waves]
    for manifest in manifests:
        checkpoints.commit(manifest)
    return manifests

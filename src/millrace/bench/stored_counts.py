"""Counts of words read from a checkpoint, without the engine that wrote it."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from millrace.api.grouping import stable_hash
from millrace.config import CHECKPOINTS
from millrace.errors import MillraceError
from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import Manifest
from millrace.state.task_state import open_states
from millrace.workloads.audit import TallyNumbered


def store_of(settings: dict[str, Any]) -> CheckpointStore:
    return open_store(str(CHECKPOINTS.of(settings)))


def newest_manifest(store: CheckpointStore, topology: str) -> Manifest:
    manifest = Checkpoints(store, topology).latest()
    if manifest is None:
        raise MillraceError(f"there is no checkpoint of {topology!r} to check its counts by")
    return manifest


def stored_counts(store: CheckpointStore, topology: str, component: str = "count") -> Counter[str]:
    """The counts in the newest checkpoint. `component` keeps them in a keyed state named `counts`."""
    checkpoints, manifest = Checkpoints(store, topology), newest_manifest(store, topology)
    reader = TallyNumbered()  # it declares that state
    state = open_states(reader, stable_hash, range(manifest.key_groups), manifest.key_groups, "audit", time.time)
    assert state is not None
    for group, chain in manifest.chains(component).items():
        state.restore(group, checkpoints.read_chain(chain))
    return Counter(dict(reader.counts.items()))


def stored_positions(store: CheckpointStore, topology: str, component: str) -> list[int]:
    """The positions of a spout's tasks in the newest checkpoint, in the order of the tasks."""
    records = [record for record in newest_manifest(store, topology).records if record.component == component]
    return [record.position or 0 for record in sorted(records, key=lambda record: record.index)]

"""Reads the last checkpoint of a topology without an engine."""

from __future__ import annotations

import time
from typing import Any

from millrace.api.grouping import stable_hash
from millrace.model.graph import TopologyGraph, resolve
from millrace.runtime.checkpoints.store import CheckpointStore
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import Manifest
from millrace.state.packing import unpack_value
from millrace.state.task_state import open_states


def state_of(store: CheckpointStore, graph: TopologyGraph) -> dict[str, dict[str, dict[Any, Any]]]:
    """Component -> state -> key -> value, of every component whose tasks own key groups."""
    checkpoints, manifest = Checkpoints(store, graph.name), _latest(store, graph)
    states = {}
    for component in graph.components:
        if component.keyed:
            state = open_states(resolve(component.code)(), stable_hash, range(manifest.key_groups), manifest.key_groups,
                                component.name, time.time)
            assert state is not None
            chains = manifest.chains(component.name)
            state.restore_all({group: checkpoints.read_chain(chain) for group, chain in chains.items()})
            states[component.name] = {name: dict(entries.items()) for name, entries in state.states.items()}
    return states


def own_of(store: CheckpointStore, graph: TopologyGraph) -> dict[str, list[Any]]:
    """Component -> the values that `snapshot` of its tasks returned, without None."""
    checkpoints, snapshots = Checkpoints(store, graph.name), dict[str, list[Any]]()
    for record in sorted(_latest(store, graph).records, key=lambda record: record.task):
        if record.own is not None:
            snapshots.setdefault(record.component, []).append(unpack_value(checkpoints.read_chain([record.own])[0]))
    return snapshots


def positions_of(store: CheckpointStore, graph: TopologyGraph) -> dict[Any, int]:
    return _latest(store, graph).positions()


def _latest(store: CheckpointStore, graph: TopologyGraph) -> Manifest:
    manifest = Checkpoints(store, graph.name).latest()
    assert manifest is not None, f"there is no checkpoint of {graph.name!r}"
    return manifest

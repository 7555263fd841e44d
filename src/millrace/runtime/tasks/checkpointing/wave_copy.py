"""Copies of key groups as of a committed wave, read from the checkpoint store while their owner works on.

A copy of a later wave reads only the pieces that have been added to a chain since, or all of it if it has become whole. Usually
nobody waits for a copy, so it is read in small parts and from the store: fragments would take time from the workers that hold
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from millrace.state.checkpoint import Blocks, PieceRef
from millrace.state.task_state import Decoded, TaskState

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task

SLICE_BYTES = 1 << 19  # of state, read and decoded at once beside running tasks: a thread that decodes holds the interpreter


class WaveCopy(NamedTuple):
    """The difference of a wave to an earlier one. `chains`, `blocks`: those of the wave. `whole`: the content of groups to
    replace; `deltas`: pieces to add to groups."""

    chains: dict[int, list[PieceRef]]
    blocks: dict[str, Blocks]
    whole: dict[int, Decoded]
    deltas: dict[int, list[bytes]]
    bytes: int


class CopiedGroups:
    """Key groups of another task, copied and kept aside until this task owns them."""

    def __init__(self) -> None:
        self.chains: dict[int, list[PieceRef]] = {}
        self.blocks: dict[str, Blocks] = {}
        self.decoded: dict[int, Decoded] = {}

    def add(self, state: TaskState, copy: WaveCopy) -> None:
        self.decoded |= copy.whole
        for group, deltas in copy.deltas.items():
            state.extend_decoded(group, self.decoded[group], deltas)
        self.chains, self.blocks = copy.chains, copy.blocks


def copy_wave(task: Task, state: TaskState, base: tuple[int, int, int], groups: Collection[int],
              known: Mapping[int, Sequence[PieceRef]], awaited: bool = False) -> WaveCopy:
    """Read what the wave `base` has beyond the chains that are `known`. Blocks: runs on a store thread. `awaited`: a task
    stands still until it is read, so it is read at full speed and from fragments where enough are held."""
    wave, _, manifest_epoch = base
    topology, checkpoints = task.topology.graph.name, task.worker.checkpoints
    manifest = checkpoints.manifest(topology, manifest_epoch, wave)
    chains = {group: chain for group, chain in manifest.chains(task.name.component).items() if group in groups}
    blocks = manifest.blocks(task.name.component)
    added = {group: chain[_common(known.get(group, ()), chain):] for group, chain in chains.items()}
    whole: dict[int, Decoded] = {group: ({}, None) for group in groups if not chains.get(group)}
    deltas: dict[int, list[bytes]] = {}
    size = 0
    changed = {group: refs for group, refs in added.items() if refs}
    parts = [list(changed)] if awaited else list(_slices(changed))
    for part in parts:
        with nullcontext() if awaited else checkpoints.pace.turn(len(parts)):
            pieces = checkpoints.fetch(topology, [ref for group in part for ref in added[group]], blocks if awaited else None)
            size += sum(map(len, pieces.values()))
            of_part = {group: [pieces[ref] for ref in added[group]] for group in part}
            whole |= state.decoded({group: read for group, read in of_part.items() if added[group] == chains[group]})
            deltas |= {group: read for group, read in of_part.items() if group not in whole}
    return WaveCopy(chains, blocks, whole, deltas, size)


def _common(known: Sequence[PieceRef], chain: Sequence[PieceRef]) -> int:
    """The number of pieces of the chain that are known; 0 if the known chain is not its beginning."""
    return len(known) if list(known) == chain[:len(known)] else 0


def _slices(chains: Mapping[int, Sequence[PieceRef]]) -> Iterator[list[int]]:
    """The key groups in parts, each of which can be decoded in a short time."""
    part: list[int] = []
    size = 0
    for group, chain in chains.items():
        part.append(group)
        size += sum(ref.length for ref in chain)
        if size >= SLICE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part

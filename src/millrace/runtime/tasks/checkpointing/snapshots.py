"""Snapshots of a task: its keyed state, its own state and its position, written at a wave and restored from a checkpoint.

Both engines use this. A snapshot is taken between two chunks, where the task runs. The resident engine writes and reads on a
store thread and answers the master; the microbatch engine does both in line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.api.bolt import Bolt
from millrace.api.component import Component
from millrace.api.grouping import stable_hash
from millrace.api.spout import ReplayableSpout
from millrace.control.assignment import SplitStart
from millrace.control.waves import INIT
from millrace.errors import EncodingError, OutputMissing
from millrace.runtime.flow.channel import Delivery
from millrace.runtime.flow.overtaken import unpacked
from millrace.runtime.tasks.checkpointing.snapshot import STORE_THREADS, Pieces, Snapshot, groups_of
from millrace.runtime.tasks.checkpointing.wave_answers import WaveAnswers
from millrace.runtime.tasks.checkpointing.wave_copy import CopiedGroups, copy_wave
from millrace.runtime.tasks.splits import Splits, place_of
from millrace.runtime.wire.messages import WaveMark
from millrace.state.checkpoint import (
    IN_FLIGHT,
    OWN,
    Blocks,
    InFlightStream,
    PieceRef,
    SplitRecord,
    TaskRecord,
    blob_name,
    pack,
)
from millrace.state.packing import pack_value, unpack_value
from millrace.state.task_state import TaskState, open_states

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task


class Snapshots:
    """The snapshots of one task: written at waves, restored from them, and handed over to another incarnation."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._thread = STORE_THREADS[task.number % len(STORE_THREADS)]
        self.state: TaskState | None = None
        self._forget()
        self.answers = WaveAnswers(task)

    def _forget(self) -> None:
        self._chains: dict[int, list[PieceRef]] = {}  # by key group: the pieces that its state amounts to
        self._own: PieceRef | None = None
        self._in_flight: PieceRef | None = None  # input that the last wave has overtaken,
        self._streams: list[InFlightStream] = []  # and where it came from
        self._changed: set[int] = set()  # groups whose chains differ from the last committed manifest
        self._blocks: dict[str, Blocks] = {}  # by blob: the slots that its fragments were sent to
        self._needed: dict[str, Blocks] = {}  # those that holders were told to keep
        self._holders: set[int] = set()  # slots that may hold blocks which are no longer needed
        self._lost: set[int] = set()  # groups whose last piece was not written
        self.saving: int | None = None  # the wave whose snapshot is being written: one at a time
        self._restored: tuple[Any, int | None] | None = None
        self._splits: dict[int, SplitRecord] = {}  # of the component, at the wave to restore
        self._promised: list[TaskRecord] = []  # of the component, at the wave to restore
        self._put_back: list[Delivery] = []  # input that this wave had overtaken

    # -- keyed state -------------------------------------------------------------------------------------------------

    def attach(self, component: Component, empty_state: bool) -> None:
        """Give the component its state; `empty_state`: a new one, otherwise that of the component before it."""
        if not empty_state:
            if self.state is not None:
                vars(component).update(self.state.states)
            return
        self._forget()
        definition = self.task.definition
        owners = self.task.topology.key_groups.get(definition.name, ()) if definition.keyed else ()
        if owners and isinstance(component, Bolt):
            self.state = open_states(component, stable_hash, self.owned_groups(), len(owners), str(self.task.name),
                                     self.task.worker.clock.wall, self._owner_of,
                                     partial(self.task.report_error, tup=None))
        else:
            self.state = None

    def _owner_of(self, group: int) -> int:
        return self.task.topology.key_groups[self.task.name.component][group]

    def owned_groups(self) -> frozenset[int]:
        """The key groups of the task by the current plan."""
        owners = self.task.topology.key_groups.get(self.task.name.component, ())
        return frozenset(group for group, owner in enumerate(owners) if owner == self.task.name.index)

    def replaced(self) -> list[str]:
        """States that the component has replaced by other attributes of the same name."""
        if self.state is None:
            return []
        attributes = vars(self.task.component)
        return [name for name, state in self.state.states.items() if attributes.get(name) is not state]

    # -- waves: PREPARE ----------------------------------------------------------------------------------------------

    def spoiled(self) -> set[int]:
        """Return and clear the groups whose last piece was lost: the next snapshot writes them whole. Runs on the loop."""
        spoiled, self._lost = self._lost, set()
        return spoiled

    def snapshot(self, mark: WaveMark, spoiled: set[int]) -> Snapshot:
        """Take a snapshot, where the task runs and between two chunks. Keyed state comes last: once asked for its changes it
        considers them written, so nothing may fail after it."""
        component = self.task.component
        own = component.snapshot()
        pieces: Pieces = {} if own is None else {OWN: (True, self._encoded(own))}
        position, splits = place_of(component)
        prepared = list(component.prepare(mark.wave) or ()) if self.task.commits else []
        if self.state is not None:
            self.state.spoil(spoiled)
            pieces.update(self.state.snapshot(mark.whole))
        return Snapshot(pieces, position, prepared, splits=splits)

    def _encoded(self, own: Any) -> bytes:
        try:
            return pack_value(own)
        except EncodingError as error:
            raise EncodingError(f"the result of snapshot() of {self.task.name} cannot be saved: {error}") from None

    def failed(self, mark: WaveMark, spoiled: set[int], error: str) -> None:
        """Answer that the snapshot could not be taken. Runs on the loop."""
        self._lost |= spoiled
        self.answers.give(mark, error=error)

    def lost(self, snapshot: Snapshot) -> None:
        """Record that a snapshot will not be written: the next one has its key groups whole. Runs on the loop."""
        self._lost |= groups_of(snapshot.pieces)

    def save(self, mark: WaveMark, snapshot: Snapshot) -> None:
        """Write the snapshot on the store thread, then answer the master. Runs on the loop."""
        pieces, self._streams = snapshot.pieces, snapshot.streams
        self._replace_whole(pieces)
        if not pieces:
            self._prepared(mark, snapshot)
            return
        blob, parts, refs = self._packed(mark.wave, pieces)
        groups = groups_of(refs)
        self.saving = mark.wave
        self._changed |= groups
        worker, topology, errors = self.task.worker, self.task.topology.graph.name, list[str]()

        def write() -> None:
            try:
                worker.checkpoints.save(topology, blob, parts)
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")

        def written() -> None:
            if self.task.ended:
                return
            self.saving = None
            if errors:
                self._lost |= groups
                self.answers.give(mark, error=errors[0])
                return
            self._extend(refs)
            self._prepared(mark, snapshot)

        worker.threads.run(self._thread, write, written)
        self._send_fragments(blob, parts)

    def write(self, wave: int, snapshot: Snapshot) -> TaskRecord:
        """Write the snapshot at once; returns the record of all state of the task."""
        self._replace_whole(snapshot.pieces)
        self._write_pieces(wave, snapshot.pieces)
        return self.record(snapshot.position, prepared=snapshot.prepared, splits=snapshot.splits)

    def rewrite(self, wave: int, record: TaskRecord, lost: Collection[str]) -> TaskRecord | None:
        """Write again, whole, the key groups of the record that need a lost blob. None if the task's own snapshot is lost: it
        must not be taken twice."""
        if self.state is None or (record.own is not None and record.own.blob in lost):
            return None
        groups = {group for group, chain in record.chains.items() if any(ref.blob in lost for ref in chain)}
        self._write_pieces(wave, self.state.snapshot(groups))
        return self.record(record.position, prepared=record.prepared, splits=record.splits)

    def _write_pieces(self, wave: int, pieces: Pieces) -> None:
        blob, parts, refs = self._packed(wave, pieces)
        if parts:
            self.task.worker.checkpoints.save(self.task.topology.graph.name, blob, parts)
            self._send_fragments(blob, parts, release=True)
        self._extend(refs)

    def _replace_whole(self, pieces: Pieces) -> None:
        """Forget what a new snapshot does not continue but replace."""
        if OWN not in pieces:
            self._own = None
        if IN_FLIGHT not in pieces:
            self._in_flight = None

    def _packed(self, wave: int, pieces: Pieces) -> tuple[str, list[bytes], dict[int, PieceRef]]:
        blob = blob_name(self.task.topology.graph.name, *self.task.name, self.task.topology.epoch, wave)
        return blob, *pack(pieces, blob)

    def _extend(self, refs: Mapping[int, PieceRef]) -> None:
        for group, ref in refs.items():
            if group == OWN:
                self._own = ref
            elif group == IN_FLIGHT:
                self._in_flight = ref
            elif ref.whole:
                self._chains[group] = [ref]
            else:
                self._chains[group] = [*self._chains.get(group, ()), ref]

    def _prepared(self, mark: WaveMark, snapshot: Snapshot) -> None:
        """Answer with the chains that changed; the master has the others."""
        self.answers.give(mark, self.record(snapshot.position, self._changed, snapshot.prepared, snapshot.splits))

    def record(self, position: int | None, groups: Collection[int] | None = None, prepared: Sequence[str] = (),
               splits: Mapping[int, SplitRecord] | None = None) -> TaskRecord:
        """The record to restore the task from: the chains of these key groups, or of all, its own snapshot, its position."""
        needed = self.blobs()
        self._blocks = {blob: blocks for blob, blocks in self._blocks.items() if blob in needed}
        chains = {group: chain for group, chain in self._chains.items() if groups is None or group in groups}
        return TaskRecord(*self.task.name, chains, self._own, position, dict(self._blocks), list(prepared),
                          self._in_flight, self._streams, dict(splits or {}))

    def blobs(self) -> set[str]:
        """The blobs that the task's state is in."""
        blobs = {ref.blob for chain in self._chains.values() for ref in chain}
        return blobs | {ref.blob for ref in (self._own, self._in_flight) if ref is not None}

    # -- fragments -----------------------------------------------------------------------------------------------------

    def _send_fragments(self, blob: str, parts: list[bytes], release: bool = False) -> None:
        """Send blocks of the blob to other processes, which does not wait. `release`: they drop older blobs first."""
        run = self.task.topology
        slots = run.holders.get(self.task.name, [])
        if slots:
            self._blocks[blob] = Blocks(*run.blocks, slots)
            if release:
                self._release_fragments()
            self.task.worker.checkpoints.back_up(blob, parts, self._blocks[blob])

    def _release_fragments(self) -> None:
        """Tell holders which blobs are still needed."""
        self._tell_holders(self._blocks)

    def _tell_holders(self, needed: Mapping[str, Blocks]) -> None:
        slots = {slot for blocks in needed.values() for slot in blocks.slots}
        if slots or self._holders:
            self.task.worker.checkpoints.keep(self.task.topology.graph.name, self.task.name, needed, slots | self._holders)
        self._holders, self._needed = slots, dict(needed)

    # -- COMMIT --------------------------------------------------------------------------------------------------------

    def committed(self, mark: WaveMark) -> None:
        """Release fragments and local copies that the committed wave no longer needs, and answer the master. Runs on the
        loop."""
        self._changed.clear()
        self._release_fragments()
        self.task.worker.checkpoints.keep_copies(self.task.topology.graph.name, self.task.name, self.blobs(), mark.wave)
        self.answers.give(mark)

    # -- ROLLBACK ------------------------------------------------------------------------------------------------------

    def rolled_back(self, mark: WaveMark, preparing: bool) -> None:
        """Answer with the blobs that the next snapshot builds on, unless some are still being written, or will be because the
        task is `preparing` a wave: the others can be deleted. Runs on the loop."""
        self.answers.give(mark, None if preparing or self.saving is not None else self.record(None, self._changed))

    # -- INIT ----------------------------------------------------------------------------------------------------------

    def load(self, done: Callable[[BaseException | None], None]) -> None:
        """Restore the task as of the wave that the plan names, on the store thread. The task has not started, so nothing else
        uses its state. Runs on the loop."""
        wave, _, manifest_epoch = self.task.topology.restore
        errors: list[BaseException] = []

        def read() -> None:
            try:
                if wave:
                    manifest = self.task.worker.checkpoints.manifest(self.task.topology.graph.name, manifest_epoch, wave)
                    self.restore(manifest.records, self._owned())
            except Exception as error:
                errors.append(error)

        self.task.worker.threads.run(self._thread, read, lambda: done(errors[0] if errors else None))

    def restore(self, records: Iterable[TaskRecord], owned: Collection[int], with_own: bool = True) -> int:
        """Restore the owned key groups to the records of a manifest, reading only the chains that differ from the local ones.
        `with_own`: also read the task's own snapshot and position, for `restore_component`. Returns the bytes of key groups
        that had to be read."""
        name, checkpoints = self.task.name, self.task.worker.checkpoints
        component = [record for record in records if record.component == name.component]
        blocks = {blob: held for record in component for blob, held in record.blocks.items()}
        stale = self._stale({group: chain for record in component for group, chain in record.chains.items()}, owned)
        record = next((record for record in component if record.task == name), None) if with_own else None
        wanted = [ref for chain in stale.values() for ref in chain]
        own = [record.own] if record is not None and record.own is not None else []
        in_flight = [record.in_flight] if record is not None and record.in_flight is not None else []
        pieces = checkpoints.fetch(self.task.topology.graph.name, [*wanted, *own, *in_flight], blocks)
        if self.state is not None and stale:
            self.state.restore_all({group: [pieces[ref] for ref in chain] for group, chain in stale.items()})
            self._chains = {group: chain for group, chain in {**self._chains, **stale}.items() if chain}
        if with_own:
            self._promised = component
            self._splits = {split: place for record in component for split, place in record.splits.items()}
            self._own = own[0] if own else None
            self._in_flight = in_flight[0] if in_flight else None
            self._put_back = unpacked(pieces[in_flight[0]], self.task.topology.graph, name) if in_flight else []
            self._restored = unpack_value(pieces[own[0]]) if own else None, record.position if record is not None else None
        needed = self.blobs()
        self._blocks = {blob: held for blob, held in {**self._blocks, **blocks}.items() if blob in needed}
        if with_own:
            self._holders = checkpoints.slots()  # an earlier incarnation may have sent blocks to any of them
        return sum(ref.length for ref in wanted)

    def _owned(self) -> Collection[int]:
        return self.state.owned if self.state is not None else ()

    def _stale(self, chains: Mapping[int, list[PieceRef]], owned: Collection[int]) -> dict[int, list[PieceRef]]:
        """The chains of owned key groups that differ from the local state. Groups of other tasks are dropped."""
        state = self.state
        if state is None:
            return {}
        for group in state.owned - set(owned):
            state.drop(group)
            self._chains.pop(group, None)
        return {group: chains.get(group, []) for group in sorted(owned)
                if group not in state.owned or self._chains.get(group, []) != chains.get(group, [])}

    def restore_component(self) -> None:
        """Give the component its own snapshot and its position. Called where the task runs, after `initialize`."""
        component = self.task.component
        own, position = self._restored or (None, None)
        if own is not None:
            component.restore(own)
        if self.task.splits is not None:
            self.task.splits.restore_from(self._splits)
        if self.task.name in self.task.topology.positions:  # at most once: the component is there already
            position = None
        if position is not None and isinstance(component, ReplayableSpout):
            component._next_position = position
            component.seek(position)
        if self.task.commits:
            self.check_prepared(self._promised)
            component.recover(*self.task.topology.recovers)

    def take_in_flight(self) -> list[Delivery]:
        """The input to process first, because the restored wave had overtaken it."""
        put_back, self._put_back = self._put_back, []
        return put_back

    def check_prepared(self, records: Iterable[TaskRecord]) -> None:
        """Raise `OutputMissing` if the sink finds less than it had prepared for the wave to restore. Task 0 also answers
        for tasks that no longer exist."""
        (name, component), (wave, epoch, _) = (self.task.name, self.task.component), self.task.topology.restore
        for record in records:
            mine = record.index == name.index or (name.index == 0 and record.index >= component.parallelism)
            if not mine or record.component != name.component or not record.prepared:
                continue
            missing = component.missing(record.index, wave, epoch, record.prepared)
            if missing:
                raise OutputMissing(f"wave {wave} is committed, and {len(missing)} of {len(record.prepared)} parts of the "
                                    f"output that {record.task} had prepared for it are neither staged nor published: "
                                    f"{'; '.join(missing[:5])}. Someone has deleted them, or the sink writes to another place "
                                    "now. Bring them back, resume with the settings that the sink had, or start over with "
                                    "--fresh")

    def initialized(self, error: str = "") -> None:
        wave, epoch, _ = self.task.topology.restore
        self.answers.give(WaveMark(INIT, wave, epoch), error=error)

    # -- hand-over -----------------------------------------------------------------------------------------------------

    def unsettled(self) -> tuple[set[int], set[int]]:
        """The key groups whose pieces since the last committed wave may not be known to others: those that have some, and those
        whose last piece was lost. Runs on the loop."""
        return set(self._changed), set(self._lost)

    def hand_over(self, changed: set[int] | bool, lost: set[int]) -> Snapshot:
        """Everything that the next incarnation lacks, which has the last committed wave, or nothing if `changed` is True. Runs
        where the task does, as the last thing that this incarnation does."""
        component = self.task.component
        own = component.snapshot()
        pieces: Pieces = {} if own is None else {OWN: (True, self._encoded(own))}
        position, splits = place_of(component)
        staged = self._left()
        if self.state is not None:
            self.state.spoil(lost)
            pieces.update(self.state.last_pieces(changed))
        return Snapshot(pieces, position, staged=staged, splits=splits)

    def _left(self) -> bytes:
        """The result of the component's `hand_over()`: a sink always has one, a spout perhaps."""
        component = self.task.component
        if self.task.commits:
            return pack_value(component.hand_over())
        left = component.hand_over() if isinstance(component, ReplayableSpout | Splits) else None
        return b"" if left is None else pack_value(left)

    def empty(self) -> None:
        """Drop entries that the component has set while it was initialized: the incarnation before it had set them, too, and
        may have deleted them since. Runs where the task does."""
        if self.state is not None:
            self.state.load({group: ({}, None) for group in self.state.owned})

    def copy(self, base: tuple[int, int, int], done: Callable[[int, BaseException | None], None],
             awaited: bool = False) -> None:
        """Copy the key groups of a committed wave, on the store thread; if an earlier one was copied, only what has changed.
        Runs on the loop; `done` gets the number of bytes, and the error if it failed. `awaited`: as in `copy_wave`."""
        state = self.state

        def read() -> int:
            self._holders = self.task.worker.checkpoints.slots()
            if state is None:
                return 0
            copy = copy_wave(self.task, state, base, state.owned, self._chains, awaited)
            state.load(copy.whole)
            state.extend(copy.deltas)
            self._chains, needed = copy.chains, {ref.blob for chain in copy.chains.values() for ref in chain}
            self._blocks = {blob: held for blob, held in copy.blocks.items() if blob in needed}
            return copy.bytes

        self._copying(read, done)

    def _copying(self, read: Callable[[], int], done: Callable[[int, BaseException | None], None]) -> None:
        copied, errors = [0], list[BaseException]()

        def guarded() -> None:
            try:
                copied[0] = read()
            except Exception as error:
                errors.append(error)

        self.task.worker.threads.run(self._thread, guarded, lambda: done(copied[0], errors[0] if errors else None))

    def hand_over_groups(self, groups: Collection[int], changed: set[int] | bool, lost: set[int]) -> Pieces:
        """Remove key groups, and return what their next owner lacks, which has the last committed wave, or nothing if `changed`
        is True. Runs where the task does."""
        if self.state is None:
            return {}
        self.state.spoil(lost & set(groups))
        return self.state.extract(groups, changed)

    def forget_groups(self, groups: Iterable[int]) -> None:
        """Forget the chains of key groups that another task has. Runs on the loop."""
        for group in groups:
            self._chains.pop(group, None)
            self._changed.discard(group)
            self._lost.discard(group)

    def read_groups(self, base: tuple[int, int, int], groups: Collection[int], known: CopiedGroups,
                    done: Callable[[int, BaseException | None], None]) -> None:
        """Copy key groups of another task as of a committed wave into `known`, on the store thread; if an earlier one was
        copied, only what has changed. Runs on the loop; `done` gets the number of bytes, and the error if it failed."""
        state = self.state

        def read() -> int:
            if state is None:
                return 0
            copy = copy_wave(self.task, state, base, groups, known.chains)
            known.add(state, copy)
            return copy.bytes

        self._copying(read, done)

    def take_groups(self, groups: Iterable[int], known: CopiedGroups, delta: Iterable[tuple[int, bytes]]) -> None:
        """Add key groups: their state as of a committed wave, and their changes since. Runs on the loop, while the task's code
        does not."""
        if self.state is None:
            return
        self.state.load({group: known.decoded.get(group, ({}, None)) for group in groups})
        for group, piece in delta:
            self.state.adopt(group, piece)
        self._chains |= {group: chain for group, chain in known.chains.items() if chain}
        needed = self.blobs()
        self._blocks |= {blob: held for blob, held in known.blocks.items() if blob in needed}
        self._tell_holders(self._needed | self._blocks)  # before the old owner says that it no longer needs them

    def adopt(self, group: int, piece: bytes) -> None:
        """Take the changes of a key group since the wave that was copied. The next wave has them. Runs on the loop."""
        if self.state is not None:
            self.state.adopt(group, piece)

    def take_over(self, own: bytes | None, position: int | None, staged: bytes,
                  splits: Mapping[int, tuple[int, bytes, int]]) -> None:
        """Give the component the own state of the incarnation before it. Called where the task runs, after `initialize`."""
        component = self.task.component
        if own is not None:
            component.restore(unpack_value(own))
        if self.task.splits is not None:
            self.task.splits.take({split: SplitStart(start, state) for split, (start, state, _) in splits.items()})
        if position is not None and isinstance(component, ReplayableSpout):
            component._next_position = position
            component.seek(position)
        if staged:
            component.take_over(unpack_value(staged))

"""What a task keeps beyond its own life: its keyed state and its own snapshot, and its answers to waves.

Snapshots are taken between two chunks, where the task runs. Writing and reading is done on a thread beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.api.bolt import Bolt
from millrace.api.component import Component
from millrace.api.grouping import stable_hash
from millrace.api.spout import ReplayableSpout
from millrace.control.waves import INIT
from millrace.errors import EncodingError
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.messages import WaveMark
from millrace.state.checkpoint import OWN, Blocks, Manifest, PieceRef, TaskRecord, blob_name, pack
from millrace.state.packing import pack_value, unpack_value
from millrace.state.task_state import TaskState, open_states

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task

Pieces = dict[int, tuple[bool, bytes]]


class Snapshot(NamedTuple):
    """What a task had at a wave. `position`: that of a replayable spout."""

    pieces: Pieces
    position: int | None


class StoreThread:
    """Names a thread that writes and reads for the keepers of a worker."""

    def __init__(self, number: int) -> None:
        self.name = f"store {number}"


STORE_THREADS = tuple(map(StoreThread, range(4)))  # shared by all tasks: a thread for each of hundreds would be idle


class Keeper:
    """One for each task. `answer` sends its word to the master; a wave that is asked again is answered again."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._thread = STORE_THREADS[task.number % len(STORE_THREADS)]
        self.state: TaskState | None = None
        self._forget()
        self._under_way: set[tuple[str, int]] = set()  # asked for and begun, not answered yet
        self._answers: dict[str, wire.Waved] = {}  # the last one to each kind of wave

    def _forget(self) -> None:
        self._chains: dict[int, list[PieceRef]] = {}
        self._own: PieceRef | None = None
        self._changed: set[int] = set()  # groups whose chains the last committed manifest does not have as they are
        self._blocks: dict[str, Blocks] = {}  # blob -> who was sent its blocks
        self._told: set[int] = set()  # slots that may have blocks which are not needed any more
        self._lost: set[int] = set()  # groups whose last piece was not written
        self._saving: dict[int, set[int]] = {}  # by wave: groups of a snapshot that is being written
        self._restored: tuple[Any, int | None] | None = None

    # -- keyed state -------------------------------------------------------------------------------------------------

    def attach(self, component: Component, anew: bool) -> None:
        """Give the component its state; `anew`: an empty one, otherwise the one that its forerunner had."""
        if not anew:
            if self.state is not None:
                vars(component).update(self.state.states)
            return
        self._forget()
        run, definition = self.task.topology, self.task.definition
        owners = run.key_groups.get(definition.name, ()) if definition.keyed else ()
        owned = frozenset(group for group, owner in enumerate(owners) if owner == self.task.name.index)
        if owners and isinstance(component, Bolt):
            self.state = open_states(component, stable_hash, owned, len(owners), str(self.task.name),
                                     self.task.worker.clock.wall, owners.__getitem__)
        else:
            self.state = None

    def replaced(self) -> list[str]:
        """States in whose place the component has put something of its own."""
        if self.state is None:
            return []
        own = vars(self.task.component)
        return [name for name, state in self.state.states.items() if own.get(name) is not state]

    # -- waves: PREPARE ----------------------------------------------------------------------------------------------

    def spoiled(self) -> set[int]:
        """On the loop: groups whose last piece got lost, or of which nobody knows yet whether it is written. They begin
        anew with the next snapshot."""
        spoiled = self._lost.union(*self._saving.values())
        self._lost = set()
        return spoiled

    def snapshot(self, mark: WaveMark, spoiled: set[int]) -> Snapshot:
        """Where the task runs, between two chunks. The keyed state comes last: once it has been asked what changed, it takes
        that for written, so nothing may fail after it."""
        component = self.task.component
        own = component.snapshot()
        pieces: Pieces = {} if own is None else {OWN: (True, self._encoded(own))}
        position = component.position() if isinstance(component, ReplayableSpout) else None
        if self.task.commits:
            component.prepare(mark.wave)
        if self.state is not None:
            self.state.spoil(spoiled)
            pieces.update(self.state.snapshot(mark.whole))
        return Snapshot(pieces, position)

    def _encoded(self, own: Any) -> bytes:
        try:
            return pack_value(own)
        except EncodingError as error:
            raise EncodingError(f"what snapshot() of {self.task.name} returned cannot be kept: {error}") from None

    def failed(self, mark: WaveMark, spoiled: set[int], error: str) -> None:
        """On the loop: there is no snapshot."""
        self._lost |= spoiled
        self.answer(mark, error=error)

    def save(self, mark: WaveMark, snapshot: Snapshot) -> None:
        """On the loop: write the snapshot, then say so."""
        pieces = snapshot.pieces
        if OWN not in pieces:
            self._own = None
        if not pieces:
            self._prepared(mark, snapshot.position)
            return
        run, name = self.task.topology, self.task.name
        blob = blob_name(run.graph.name, name.component, name.index, run.epoch, mark.wave)
        parts, refs = pack(pieces, blob)
        groups = self._saving[mark.wave] = {group for group in refs if group != OWN}
        self._changed |= groups
        worker, failed = self.task.worker, []

        def write() -> None:
            try:
                worker.checkpoints.save(run.graph.name, blob, parts)
            except Exception as error:
                failed.append(f"{type(error).__name__}: {error}")

        def written() -> None:
            if self.task.ended:
                return
            self._saving.pop(mark.wave, None)
            if failed:
                self._lost |= groups
                self.answer(mark, error=failed[0])
                return
            self._extend(refs)
            self._prepared(mark, snapshot.position)

        worker.threads.run(self._thread, write, written)
        slots = run.holders.get(name, [])
        if slots:
            blocks = self._blocks[blob] = Blocks(*run.blocks, slots)
            worker.checkpoints.back_up(blob, parts, blocks)

    def _extend(self, refs: dict[int, PieceRef]) -> None:
        for group, ref in refs.items():
            if group == OWN:
                self._own = ref
            elif ref.whole:
                self._chains[group] = [ref]
            else:
                self._chains[group] = [*self._chains.get(group, ()), ref]

    def _prepared(self, mark: WaveMark, position: int | None) -> None:
        needed = self.blobs()
        self._blocks = {blob: blocks for blob, blocks in self._blocks.items() if blob in needed}
        self.answer(mark, TaskRecord(
            self.task.name.component, self.task.name.index, {group: self._chains[group] for group in self._changed
                                                             if group in self._chains},
            self._own, position, self._blocks))

    def blobs(self) -> set[str]:
        """Those that the task's state is in."""
        found = {ref.blob for chain in self._chains.values() for ref in chain}
        return found | {self._own.blob} if self._own is not None else found

    # -- COMMIT --------------------------------------------------------------------------------------------------------

    def committed(self, mark: WaveMark) -> None:
        """On the loop."""
        if not self._saving:
            self._changed.clear()
        slots = {slot for blocks in self._blocks.values() for slot in blocks.slots}
        if slots or self._told:
            self.task.worker.checkpoints.keep(self.task.topology.graph.name, self.task.name, self._blocks, slots | self._told)
        self._told = slots
        self.answer(mark)

    # -- INIT ----------------------------------------------------------------------------------------------------------

    def load(self, done: Callable[[BaseException | None], None]) -> None:
        """On the loop: bring back what the task had at the wave that the plan names."""
        wave, _, manifest_epoch = self.task.topology.restore
        failed: list[BaseException] = []

        def read() -> None:
            try:
                if wave:
                    self._read(self.task.worker.checkpoints.manifest(self.task.topology.graph.name, manifest_epoch, wave))
            except Exception as error:
                failed.append(error)

        self.task.worker.threads.run(self._thread, read, lambda: done(failed[0] if failed else None))

    def _read(self, manifest: Manifest) -> None:
        """On the keeper's thread; the task has not started, so nobody else uses its state."""
        name = self.task.name
        chains = manifest.chains(name.component)
        held = manifest.blocks(name.component)
        record = next((record for record in manifest.records if record.task == name), None)
        mine = {group: chains[group] for group in sorted(self.state.owned) if group in chains} if self.state is not None else {}
        wanted = [ref for chain in mine.values() for ref in chain]
        if record is not None and record.own is not None:
            wanted.append(record.own)
        pieces = self.task.worker.checkpoints.fetch(self.task.topology.graph.name, wanted, held)
        if self.state is not None:
            self.state.restore_all({group: [pieces[ref] for ref in chain] for group, chain in mine.items()})
        needed = {ref.blob for ref in wanted}
        self._chains, self._blocks = mine, {blob: blocks for blob, blocks in held.items() if blob in needed}
        self._told = self.task.worker.checkpoints.slots()  # a forerunner may have sent blocks to anyone
        if record is not None:
            self._own = record.own
            own = unpack_value(pieces[record.own]) if record.own is not None else None
            self._restored = own, record.position

    def take_up(self) -> None:
        """Where the task runs, after `initialize`: tell the component what was brought back."""
        component, (wave, epoch, _) = self.task.component, self.task.topology.restore
        own, position = self._restored or (None, None)
        if own is not None:
            component.restore(own)
        if self.task.name in self.task.topology.positions:  # at most once: it is there already
            position = None
        if position is not None and isinstance(component, ReplayableSpout):
            component._next_position = position
            component.seek(position)
        if self.task.commits:
            component.recover(wave, epoch)

    def initialized(self, error: str = "") -> None:
        wave, epoch, _ = self.task.topology.restore
        self.answer(WaveMark(INIT, wave, epoch), error=error)

    # -- answers -------------------------------------------------------------------------------------------------------

    def answer(self, mark: WaveMark, record: TaskRecord | None = None, error: str = "") -> None:
        task = self.task
        answer = wire.Waved(task.worker.slot, task.worker.generation, task.topology.number, task.topology.epoch, mark.kind,
                            mark.wave, task.number, task.incarnation, record, error)
        self._under_way.discard((mark.kind, mark.wave))
        if not error:
            self._answers[mark.kind] = answer
        task.worker.tell_master(answer)

    def begins(self, mark: WaveMark) -> bool:
        """Whether it is the first time: the master asks again while an answer takes its time."""
        if (mark.kind, mark.wave) in self._under_way:
            return False
        self._under_way.add((mark.kind, mark.wave))
        return True

    def answers_again(self, mark: WaveMark) -> bool:
        """Whether this has been done before: then the master did not hear of it."""
        known = self._answers.get(mark.kind)
        if known is None or known.wave != mark.wave:
            return False
        self.task.worker.tell_master(known)
        return True

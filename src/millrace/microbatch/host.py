"""What a Python process of a Spark executor keeps of a topology from one batch to the next, and how it runs a partition.

A task that ended the last batch here goes on as it is. Any other takes up what the checkpoint says: Spark may run a partition
in any process, so nothing depends on where it runs but the time that this takes.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import getrandbits

import msgspec
import psutil
import pyarrow as pa

from millrace.api.spout import ReplayableSpout
from millrace.config import CHECKPOINTS
from millrace.control.batch_stages import Stages
from millrace.control.waves import PREPARE
from millrace.microbatch import records as frames
from millrace.microbatch.fragment_holder import Holding
from millrace.microbatch.work import BatchWork, PartitionReport, TaskReport, record_of
from millrace.microbatch.worker import BatchWorker
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.access import Vault
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.clock import SystemClock
from millrace.runtime.meters import Meters
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.outbox import Group
from millrace.runtime.tasks.snapshots import Pieces
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.tasks.task import Task
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.process import WorkerSetup
from millrace.runtime.worker.topology_run import TopologyRun
from millrace.state.checkpoint import OWN, Blocks, PieceRef, TaskRecord, blob_name, pack
from millrace.state.packing import unpack_value

log = logging.getLogger("millrace.worker")
SEED = b"."  # what a partition is given that begins by itself
Out = Iterator[tuple[int, bytes]]  # partition of the next stage, and what goes there


@dataclass(slots=True)
class Kept:
    """A task in this process. `stamp`: the attempt at whose end it is as it should be; 0 while it runs, or if it broke off."""

    task: Task
    stamp: int = 0
    version: int = 0  # of the plan by which it was last run
    refs: dict[int, list[PieceRef]] = field(default_factory=dict)  # by key group: the pieces that its state amounts to
    blocks: dict[str, Blocks] = field(default_factory=dict)  # by blob: where fragments of it were sent
    fell_due: dict[str, float] = field(default_factory=dict)  # when its tick and its timer last did


class Hosted:
    """One topology in this process, which keeps fragments of others' if there is a `holding`."""

    def __init__(self, work: BatchWork, slot: int, holding: Holding | None = None) -> None:
        settings, self.holding = work.setup.settings, holding
        self.vault = Vault(partial(open_store, CHECKPOINTS.of(settings)), self.holding.exchange if self.holding else None)
        self.vault.reach(work.workers)
        self.worker = BatchWorker(slot, SystemClock(), settings, self.vault)
        self.run = TopologyRun(self.worker, work.given)
        self.worker.topologies[self.run.number] = self.run
        self.kept: dict[int, Kept] = {}
        self.work = work

    def take_up(self, work: BatchWork) -> None:
        if work is not self.work:
            if work.given.version != self.work.given.version:
                self._let_go(work)
            self.work = work
            self.run.replan(work.given)
            self.vault.reach(work.workers)

    def _let_go(self, work: BatchWork) -> None:
        """Of tasks that are no more, or have their place elsewhere by the new plan: their state is another's to keep."""
        here = {work.given.graph.number(task) for task, place in work.given.places if place.slot == self.worker.slot}
        for number in self.kept.keys() - here:
            self._close(self.kept.pop(number).task)
            self.run.tasks.pop(number, None)
            self.worker.let_go(number)

    # -- a partition ---------------------------------------------------------------------------------------------------

    def run_partition(self, stages: Stages, stage: int, partition: int, given: Iterable[bytes]) -> Out:
        """Everything that its tasks do in the batch. `given`: frames of the stage before; of a DataFrame, Arrow batches."""
        started, ran, heard = time.monotonic(), getrandbits(63), dict[int, int]()
        names = stages.partitions[stage][partition]
        counters: Counter[str] = Counter()
        kept = [self._kept(name) for name in names]
        self.worker.enter(stages, stage, [each.task for each in kept])
        self.worker.counters.clear()
        for each in kept:
            self._take_up(each, counters)
        if stage == 0:
            yield from self._fill(kept[0].task, given)
        else:
            yield from self._work_off(stages, stage, given, heard)
        for each in kept:
            self._run_due(each)
        reports = []
        for each in kept:
            each.task.before_wave()
            each.task.send_waiting()
            self.worker.run_dry()
            yield from self._sent()
        for each in kept:
            record = self._snapshot(each)
            reports.append(self._report(each.task, record))
            each.stamp = self.work.given.epoch
        after = len(stages.partitions[stage + 1]) if stage + 1 < stages.count else 0
        yield from ((number, frames.pack_mark(partition, ran)) for number in range(after))
        report = self._partition_report(names[0], reports, counters, time.monotonic() - started)
        report.stage, report.partition, report.ran, report.heard = stage, partition, ran, heard
        yield partition % after if after else 0, frames.pack_report(wire.encode(report))

    def _fill(self, task: Task, given: Iterable[bytes]) -> Out:
        assert isinstance(task, SpoutTask)
        if task.definition.dataframe:
            yield from self._read_frame(task, given)
            return
        work, clock = self.work, self.worker.clock
        until = clock.now() + work.most_seconds
        task.set_active(True)
        while task.meters.emitted < work.most_tuples and clock.now() < until:
            before, task.wake_at = task.meters.emitted, 0.0
            task.step(clock.now())
            self.worker.run_dry()
            yield from self._sent()
            if task.meters.emitted == before:
                break

    def _read_frame(self, task: SpoutTask, given: Iterable[bytes]) -> Out:
        schema = pa.ipc.read_schema(pa.py_buffer(self.work.schemas[task.name.component]))
        output = task.outbox.outputs[0]
        for data in given:
            if data == SEED:
                continue  # there is nothing to read in this batch
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
            task.outbox.groups.append(Group(output, output.batch(batch), None, None, [None]))
            task.send_waiting()
            self.worker.run_dry()
            yield from self._sent()

    def _work_off(self, stages: Stages, stage: int, given: Iterable[bytes], heard: dict[int, int]) -> Out:
        mine = []
        for frame in map(frames.unpack, given):
            if frame.kind == frames.MARK:
                source, ran = frames.unpack_mark(frame)
                heard[source] = ran if heard.get(source, ran) == ran else -1
            elif frame.kind == frames.REPORT:
                yield 0, frame.whole
            elif frame.kind == frames.CHUNK:
                if frame.target in self.worker.here:
                    mine.append(frame)
                else:
                    yield stages.next_hop(self.run.graph.task(frame.target), stage), frame.whole
        for _ in self.worker.deliver(mine):
            yield from self._sent()

    def _sent(self) -> Out:
        outbox = self.worker.outbox
        yield from outbox
        outbox.clear()

    def _run_due(self, kept: Kept) -> None:
        """Ticks and timers: once in a batch, if their time has come."""
        task, now = kept.task, self.worker.clock.now()
        if not isinstance(task, BoltTask):
            return
        for name, seconds, fall_due in (("tick", task.tick_seconds(), task.tick),
                                        ("timer", task.component._timer_seconds(), task.on_timer)):
            if seconds and now - kept.fell_due.setdefault(name, now) >= seconds:
                kept.fell_due[name] = now
                fall_due()
        self.worker.run_dry()

    # -- taking up -----------------------------------------------------------------------------------------------------

    def _kept(self, name: TaskId) -> Kept:
        """The task, or another one if it broke off in the midst of a batch."""
        number = self.run.graph.number(name)
        kept = self.kept.get(number)
        if kept is None or not kept.stamp:
            kept = self.kept[number] = Kept(self._new_task(name))
        kept.task.meters = Meters()
        kept.task.definition = self.run.graph.component(name.component)
        return kept

    def _take_up(self, kept: Kept, counters: Counter[str]) -> None:
        """Make the task what it was at the wave that the batch goes on from."""
        task, given = kept.task, self.work.given
        if task.definition.dataframe:
            return
        is_same = (kept.stamp != 0 and kept.stamp == given.restore[1] and not self._lacks_state(kept)
                   and not self._knows_old_targets(kept))
        if not is_same and not self._is_only_behind(kept):
            self._build(kept, anew=not kept.stamp or self._lacks_state(kept))
        kept.stamp = 0
        fetched = self._sync_groups(kept)
        task.component.epoch, task.component.parallelism = given.epoch, task.definition.par
        if kept.version != given.version:
            task.component.context, kept.version = self.run.context(task.name), given.version
        if not is_same:
            self._restore(task)
        elif task.commits and self.work.again:
            task.component.recover(*given.restore[:2])  # what the failed attempt has staged is thrown away
        if task.definition.stateful:
            counters["resident" if is_same and not fetched else "restored"] += 1

    def _knows_old_targets(self, kept: Kept) -> bool:
        """Who names the tasks that it sends to has learnt their numbers in `initialize`."""
        return (kept.version != self.work.given.version
                and any(stream.direct for stream in kept.task.definition.outputs))

    def _is_only_behind(self, kept: Kept) -> bool:
        """It was right at the end of an earlier batch, and others have run here or there since. Then the component need not be
        made anew if all that it keeps is in key groups, or is a position."""
        definition = kept.task.definition
        return (kept.stamp in self.work.good and not definition.own_state and not definition.commits
                and not self._lacks_state(kept) and not self._knows_old_targets(kept))

    def _new_task(self, name: TaskId) -> Task:
        number = self.run.graph.number(name)
        old = self.run.tasks.pop(number, None)
        if old is not None:
            self._close(old)
        task = self.worker.make_task(self.run, name, 0)
        task.started = True
        return task

    def _build(self, kept: Kept, anew: bool) -> None:
        task = kept.task
        if task.component is not None:
            self._close(task)
        if anew:
            kept.refs.clear()
        task.component = task._make(anew)
        task.initialize()
        task.on_start()

    def _lacks_state(self, kept: Kept) -> bool:
        """It owned no key group when its state was opened, and does now."""
        return kept.task.keeper.state is None and kept.task.definition.stateful and bool(self._owned(kept.task.name))

    def _owned(self, name: TaskId) -> set[int]:
        owners = self.run.key_groups.get(name.component, ())
        return {group for group, owner in enumerate(owners) if owner == name.index}

    def _sync_groups(self, kept: Kept) -> bool:
        """Let go of the key groups that are another task's now, and bring those that are not as the checkpoint says to where
        it says. Whether anything had to be read."""
        state, name = kept.task.keeper.state, kept.task.name
        if state is None:
            return False
        owned = self._owned(name)
        for group in state.owned - owned:
            state.drop(group)
            kept.refs.pop(group, None)
        kept_by = {group: chain for record in self.work.records if record.component == name.component
                   for group, chain in record.chains.items()}
        wanted = {group: kept_by.get(group, []) for group in owned}
        stale = {group: chain for group, chain in wanted.items()
                 if group not in state.owned or kept.refs.get(group, []) != chain}
        if not stale:
            return False
        blocks = {blob: found for record in self.work.records if record.component == name.component
                  for blob, found in record.blocks.items()}
        pieces = self.vault.fetch(self.run.graph.name, [ref for chain in stale.values() for ref in chain], blocks)
        state.restore_all({group: [pieces[ref] for ref in chain] for group, chain in stale.items()})
        kept.refs.update(stale)
        kept.blocks = blocks
        return bool(pieces)

    def _restore(self, task: Task) -> None:
        """What belongs to the task itself, for a component that was just made."""
        component, record = task.component, record_of(self.work, task.name)
        wave, epoch, _ = self.work.given.restore
        if record is not None and record.own is not None:
            own = self.vault.fetch(self.run.graph.name, [record.own], record.blocks)
            component.restore(unpack_value(own[record.own]))
        if record is not None and record.position is not None and isinstance(component, ReplayableSpout):
            component._next_position = record.position
            component.seek(record.position)
        if task.commits:
            component.recover(wave, epoch)

    def _close(self, task: Task) -> None:
        if task.component is not None:
            task.close()

    # -- at the end of a batch -----------------------------------------------------------------------------------------

    def _snapshot(self, kept: Kept) -> TaskRecord:
        task, work = kept.task, self.work
        if task.definition.dataframe:
            return TaskRecord(*task.name)
        mark = wire.WaveMark(PREPARE, work.wave, work.given.epoch, work.whole)
        snapshot = task.keeper.snapshot(mark, set())
        own = self._write(kept, snapshot.pieces)
        return self._record(kept, own, snapshot.position)

    def rewrite(self, record: TaskRecord, lost: Collection[str]) -> TaskRecord | None:
        """What the task ended the batch with, without the blobs that are lost. None if that was not in this process; or if its
        `snapshot()` is lost, which may not be asked for twice."""
        kept, state = self.kept.get(self.run.graph.number(record.task)), None
        if kept is not None and kept.stamp == self.work.given.restore[1]:
            state = kept.task.keeper.state
        if kept is None or state is None or (record.own is not None and record.own.blob in lost):
            return None
        self._write(kept, state.snapshot({group for group, chain in record.chains.items()
                                          if any(ref.blob in lost for ref in chain)}))
        return self._record(kept, record.own, record.position)

    def _write(self, kept: Kept, pieces: Pieces) -> PieceRef | None:
        """Where its own snapshot is then, if there is one among the pieces."""
        task, work = kept.task, self.work
        blob = blob_name(self.run.graph.name, *task.name, work.given.epoch, work.wave)
        parts, refs = pack(pieces, blob)
        if parts:
            self.vault.save(self.run.graph.name, blob, parts)
            self._back_up(kept, blob, parts)
        own = refs.pop(OWN, None)
        for group, ref in refs.items():
            kept.refs[group] = [ref] if ref.whole else [*kept.refs[group], ref]
        return own

    def _record(self, kept: Kept, own: PieceRef | None, position: int | None) -> TaskRecord:
        chains = {group: chain for group, chain in kept.refs.items() if chain}
        record = TaskRecord(*kept.task.name, chains, own, position)
        needed = {piece.blob for piece in record.pieces()}
        kept.blocks = {blob: blocks for blob, blocks in kept.blocks.items() if blob in needed}
        return msgspec.structs.replace(record, blocks=kept.blocks)

    def _back_up(self, kept: Kept, blob: str, parts: list[bytes]) -> None:
        """Into the memory of other processes, beside what follows; of the task's older blobs they keep what is still needed."""
        name, slots = kept.task.name, self.run.holders.get(kept.task.name, [])
        if not slots:
            return
        before = {slot for blocks in kept.blocks.values() for slot in blocks.slots}
        self.vault.keep(self.run.graph.name, name, [*kept.blocks, blob], before.union(slots))
        kept.blocks[blob] = Blocks(*self.run.blocks, slots)
        self.vault.back_up(blob, parts, kept.blocks[blob])

    def _report(self, task: Task, record: TaskRecord) -> TaskReport:
        traffic = {number: channel.tuples for number, channel in task.channels.items() if channel.tuples}
        groups = {component: counts.tolist() for (number, component), counts in self.worker.group_counts.items()
                  if number == task.number}
        return TaskReport(task.number, task.meters.report(), traffic, groups, record)

    def _partition_report(self, head: TaskId, reports: list[TaskReport], counters: Counter[str],
                          seconds: float) -> PartitionReport:
        worker = self.worker
        counters += worker.counters
        counters += self.vault.counters
        self.vault.counters.clear()
        return PartitionReport(worker.slot, self.run.places[head].slot, os.getpid(), reports, worker.errors.take(),
                               dict(counters), time.process_time(), psutil.Process().memory_info().rss / 2**20, seconds,
                               0, 0, 0, {}, self.holding.address(worker.slot) if self.holding is not None else None)

    # -- sinks ---------------------------------------------------------------------------------------------------------

    def commit(self, name: TaskId) -> None:
        """Make visible what the task prepared. Another process may have prepared it, or an earlier run."""
        wave, epoch, _ = self.work.given.restore
        kept = self.kept.get(self.run.graph.number(name))
        if kept is not None and kept.stamp == epoch:
            kept.task.component.commit(wave)
            return
        task = self._new_task(name)
        self.kept.pop(task.number, None)
        task.component = task._make(anew=True)
        task.initialize()
        task.component.recover(wave, epoch)
        self._close(task)
        del self.run.tasks[task.number]

    def close(self) -> None:
        for kept in self.kept.values():
            self._close(kept.task)
        self.vault.close()


_hosted: dict[str, Hosted] = {}  # by run
_holdings: dict[str, Holding] = {}  # by cluster


def _holding(setup: WorkerSetup) -> Holding:
    if setup.cluster not in _holdings:
        _holdings[setup.cluster] = Holding(setup)
    return _holdings[setup.cluster]


def host(work: BatchWork, slot: int) -> Hosted:
    """The topology, in this process."""
    found = _hosted.get(work.run)
    if found is None:
        _set_up(work.setup.path)
        found = _hosted[work.run] = Hosted(work, slot, _holding(work.setup) if work.holds else None)
        for ended in _hosted.keys() - set(work.alive):
            _hosted.pop(ended).close()
    found.worker.slot = slot
    found.take_up(work)
    return found


def _set_up(path: Sequence[str]) -> None:
    for directory in reversed(path):
        if directory not in sys.path:
            sys.path.insert(0, directory)
    # As in a resident worker: tuples come and go by the thousand and hardly ever form cycles.
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)

"""Hosts a topology in a Python process of a Spark executor: keeps its tasks from batch to batch and runs their partitions.

A task that ended the last batch here continues as it is. Any other is restored from the checkpoint: Spark may run a partition
in any process; the choice affects only the time it takes.
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

import psutil
import pyarrow as pa

from millrace.config import CHECKPOINTS
from millrace.control.batches.stages import Stages
from millrace.control.waves import PREPARE
from millrace.microbatch import records
from millrace.microbatch.fragment_holder import FragmentHolder
from millrace.microbatch.work import BatchWork, PartitionReport, TaskReport
from millrace.microbatch.worker import BatchWorker
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.access import CheckpointAccess
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.clock import SystemClock
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.splits import Splits
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.tasks.task import Task
from millrace.runtime.tasks.user_errors import as_exceptions
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.process import WorkerSetup, ignore_interrupts
from millrace.runtime.worker.topology_run import TopologyRun
from millrace.state.checkpoint import TaskRecord

log = logging.getLogger("millrace.worker")
SEED_BYTES = b"."  # the only input of a partition that reads neither a DataFrame nor the shuffle
Out = Iterator[tuple[int, bytes]]  # (partition of the next stage, record)


@dataclass(slots=True)
class KeptTask:
    """A task in this process. `stamp`: epoch of the last attempt that left it in a valid state; 0 while it runs and after an
    abort."""

    task: Task
    stamp: int = 0
    version: int = 0  # of the plan under which it last ran
    fell_due: dict[str, float] = field(default_factory=dict)  # when its tick and its timer last fell due


class TopologyHost:
    """One topology in this process. `holding`: the process holds fragments of others."""

    def __init__(self, work: BatchWork, slot: int, holding: FragmentHolder | None = None) -> None:
        settings, self.holding = work.setup.settings, holding
        self.checkpoints = CheckpointAccess(partial(open_store, CHECKPOINTS.of(settings)),
                                            self.holding.exchange if self.holding else None)
        self.checkpoints.reach(work.workers)
        self.worker = BatchWorker(slot, SystemClock(), settings, self.checkpoints)
        self.run = TopologyRun(self.worker, work.assignment)
        self.worker.topologies[self.run.number] = self.run
        self.kept: dict[int, KeptTask] = {}
        self.work = work

    def set_work(self, work: BatchWork) -> None:
        """Use this work from now on."""
        if work is not self.work:
            if work.assignment.version != self.work.assignment.version:
                self._close_moved_tasks(work)
            self.work = work
            self.run.replan(work.assignment)
            self.checkpoints.reach(work.workers)

    def _close_moved_tasks(self, work: BatchWork) -> None:
        """Close tasks that ended or moved under the new plan."""
        plan = work.assignment
        here = {plan.graph.number(task) for task, place in plan.places if place.slot == self.worker.slot}
        for number in self.kept.keys() - here:
            self._close(self.kept.pop(number).task)
            self.run.tasks.pop(number, None)
            self.worker.forget_task(number)

    # -- a partition ---------------------------------------------------------------------------------------------------

    def run_partition(self, stages: Stages, stage: int, partition: int, arrived: Iterable[bytes]) -> Out:
        """Run the tasks of the partition for the batch. `arrived`: records of the previous stage, or Arrow batches of a
        DataFrame."""
        started, ran, marks = time.monotonic(), getrandbits(63), dict[int, int]()
        names = stages.partitions[stage][partition]
        counters: Counter[str] = Counter()
        kept = [self._kept(name) for name in names]
        self.worker.enter(stages, stage, [each.task for each in kept])
        self.worker.counters.clear()
        with as_exceptions():
            for each in kept:
                self._restore(each, counters)
        if stage == 0:
            yield from self._run_spout(kept[0].task, arrived)
        else:
            yield from self._process(stages, stage, arrived, marks)
        for each in kept:
            self._run_due(each)
        for each in kept:
            each.task.before_wave()
            each.task.send_waiting()
            self.worker.run_dry()
            yield from self._sent()
        reports = []
        for each in kept:
            with as_exceptions():
                reports.append(self._report(each.task, self._snapshot(each)))
            each.stamp = self.work.assignment.epoch
        after = len(stages.partitions[stage + 1]) if stage + 1 < stages.count else 0
        yield from ((number, records.pack_mark(partition, ran)) for number in range(after))
        counters += self.worker.counters + self.checkpoints.counters
        self.checkpoints.counters.clear()
        report = PartitionReport(
            slot=self.worker.slot, planned=self.run.places[names[0]].slot, pid=os.getpid(), tasks=reports,
            errors=self.worker.errors.take(), counters=dict(counters), cpu_seconds=time.process_time(),
            memory_mb=psutil.Process().memory_info().rss / 2**20, seconds=time.monotonic() - started, stage=stage,
            partition=partition, ran=ran, marks=marks,
            address=self.holding.address(self.worker.slot) if self.holding is not None else None)
        yield partition % after if after else 0, records.pack_report(wire.encode(report))

    def _run_spout(self, task: Task, arrived: Iterable[bytes]) -> Out:
        assert isinstance(task, SpoutTask)
        if task.definition.dataframe:
            yield from self._read_dataframe(task, arrived)
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

    def _read_dataframe(self, task: SpoutTask, arrived: Iterable[bytes]) -> Out:
        schema = pa.ipc.read_schema(pa.py_buffer(self.work.schemas[task.name.component]))
        output = task.outbox.outputs[0]
        for data in arrived:
            if data == SEED_BYTES:
                continue  # the batch has no rows for this partition
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
            task.outbox.emit_arrow(batch, None, output.name, None, None)
            task.send_waiting()
            self.worker.run_dry()
            yield from self._sent()

    def _process(self, stages: Stages, stage: int, arrived: Iterable[bytes], marks: dict[int, int]) -> Out:
        """Pass on the records that are for later stages, then process the rest."""
        local = []
        for record in map(records.unpack, arrived):
            if record.kind == records.MARK:
                source, ran = records.unpack_mark(record)
                marks[source] = ran if marks.get(source, ran) == ran else -1
            elif record.kind == records.REPORT:
                yield 0, record.whole
            elif record.kind == records.CHUNK:
                if record.target in self.worker.here:
                    local.append(record)
                else:
                    yield stages.next_hop(self.run.graph.task(record.target), stage), record.whole
        for _ in self.worker.deliver(local):
            yield from self._sent()

    def _sent(self) -> Out:
        outbox = self.worker.outbox
        yield from outbox
        outbox.clear()

    def _run_due(self, kept: KeptTask) -> None:
        """Run ticks and timers that have fallen due, once per batch."""
        task, now = kept.task, self.worker.clock.now()
        if not isinstance(task, BoltTask):
            return
        for name, seconds, fall_due in (("tick", task.due.tick_seconds(), task.due.tick),
                                        ("timer", task.component._timer_seconds(), task.due.timer)):
            if seconds and now - kept.fell_due.setdefault(name, now) >= seconds:
                kept.fell_due[name] = now
                fall_due()
        self.worker.run_dry()

    # -- restoring -----------------------------------------------------------------------------------------------------

    def _kept(self, name: TaskId) -> KeptTask:
        """The task; a new one if there is none, or if it was aborted in the middle of a batch."""
        number = self.run.graph.number(name)
        kept = self.kept.get(number)
        if kept is None or not kept.stamp:
            kept = self.kept[number] = KeptTask(self._new_task(name))
        kept.task.begin_batch(self.run.graph.component(name.component))
        return kept

    def _restore(self, kept: KeptTask, counters: Counter[str]) -> None:
        """Restore the task to the wave that the batch continues from."""
        task, plan = kept.task, self.work.assignment
        if task.definition.dataframe:
            return
        is_same = (kept.stamp != 0 and kept.stamp == plan.restore[1] and not self._lacks_state(kept)
                   and not self._knows_old_targets(kept) and not self._has_other_splits(kept))
        if not is_same and not self._is_only_behind(kept):
            self._build(kept, empty_state=not kept.stamp or self._lacks_state(kept))
        kept.stamp = 0
        has_read = task.snapshots.restore(self.work.records, task.snapshots.owned_groups(), with_own=not is_same)
        task.component.epoch, task.component.parallelism = plan.epoch, task.definition.par
        if kept.version != plan.version:
            task.component.context, kept.version = self.run.context(task.name), plan.version
        if not is_same:
            task.snapshots.restore_component()
        elif task.commits and self.work.again:
            task.component.recover(*plan.recovers)  # discards the staged output of the failed attempt
        if task.definition.stateful:
            counters["resident" if is_same and not has_read else "restored"] += 1

    def _knows_old_targets(self, kept: KeptTask) -> bool:
        """True if the plan is new and the task emits directly: direct emitters cache task numbers in `initialize`."""
        return (kept.version != self.work.assignment.version
                and any(stream.direct for stream in kept.task.definition.outputs))

    def _has_other_splits(self, kept: KeptTask) -> bool:
        """True if the task is to read other splits than those that it has."""
        component = kept.task.component
        return isinstance(component, Splits) and component.parts.keys() != kept.task.snapshots.owned_groups()

    def _is_only_behind(self, kept: KeptTask) -> bool:
        """True if the task was valid after an earlier batch and later batches ran elsewhere, and its component keeps nothing
        but key groups or a position: then it need not be recreated."""
        definition = kept.task.definition
        return (kept.stamp in self.work.good and not definition.own_state and not definition.commits
                and not self._lacks_state(kept) and not self._knows_old_targets(kept))

    def _new_task(self, name: TaskId) -> Task:
        number = self.run.graph.number(name)
        old = self.run.tasks.pop(number, None)
        if old is not None:
            self._close(old)
        task = self.worker.make_task(self.run, name, 0)
        self.run.tasks[task.number] = task
        task.started = True
        return task

    def _build(self, kept: KeptTask, empty_state: bool) -> None:
        task = kept.task
        if task.component is not None:
            self._close(task)
        task.life.build(empty_state)
        task.on_start({})

    def _lacks_state(self, kept: KeptTask) -> bool:
        """True if the task owns key groups now but owned none when its state was opened."""
        snapshots = kept.task.snapshots
        return snapshots.state is None and kept.task.definition.stateful and bool(snapshots.owned_groups())

    def _close(self, task: Task) -> None:
        if task.component is not None:
            task.close()

    # -- at the end of a batch -----------------------------------------------------------------------------------------

    def _snapshot(self, kept: KeptTask) -> TaskRecord:
        task, work = kept.task, self.work
        if task.definition.dataframe:
            return TaskRecord(*task.name)
        mark = wire.WaveMark(PREPARE, work.wave, work.assignment.epoch, work.whole)
        return task.snapshots.write(work.wave, task.snapshots.snapshot(mark, set()))

    def rewrite(self, record: TaskRecord, lost: Collection[str]) -> TaskRecord | None:
        """Rewrite the state with which the task ended the batch, without the lost blobs. None if this process does not have it,
        or if it cannot be rewritten."""
        kept = self.kept.get(self.run.graph.number(record.task))
        if kept is None or kept.stamp != self.work.assignment.restore[1]:
            return None
        return kept.task.snapshots.rewrite(self.work.wave, record, lost)

    def _report(self, task: Task, record: TaskRecord) -> TaskReport:
        traffic = {number: channel.tuples for number, channel in task.channels.items() if channel.tuples}
        sizes = {number: task.channels[number].bytes for number in traffic}
        groups = {component: counts.tolist() for (number, component), counts in self.worker.group_counts.items()
                  if number == task.number}
        return TaskReport(task.number, task.meters.report(), traffic, groups, record, sizes)

    # -- sinks ---------------------------------------------------------------------------------------------------------

    def commit(self, name: TaskId) -> None:
        """Publish the output that the task prepared, here, in another process or in an earlier run."""
        wave, epoch, _ = self.work.assignment.restore
        kept = self.kept.get(self.run.graph.number(name))
        if kept is not None and kept.stamp == epoch:
            with as_exceptions():
                kept.task.component.commit(wave)
            return
        task = self._new_task(name)
        self.kept.pop(task.number, None)
        with as_exceptions():
            task.life.build(empty_state=True)
            task.snapshots.check_prepared(self.work.records)
            task.component.recover(wave, epoch)
        self._close(task)
        del self.run.tasks[task.number]

    def close(self) -> None:
        for kept in self.kept.values():
            self._close(kept.task)
        self.checkpoints.close()


_hosted: dict[str, TopologyHost] = {}  # by run
_holdings: dict[str, FragmentHolder] = {}  # by cluster


def _holding(setup: WorkerSetup) -> FragmentHolder:
    if setup.cluster not in _holdings:
        _holdings[setup.cluster] = FragmentHolder(setup)
    return _holdings[setup.cluster]


def host(work: BatchWork, slot: int) -> TopologyHost:
    """The topology in this process; runs that have ended are closed when another begins."""
    hosted = _hosted.get(work.run)
    if hosted is None:
        _set_up(work.setup.path)
        hosted = _hosted[work.run] = TopologyHost(work, slot, _holding(work.setup) if work.holds else None)
        for ended in _hosted.keys() - set(work.alive):
            _hosted.pop(ended).close()
    hosted.worker.slot = slot
    hosted.set_work(work)
    return hosted


def _set_up(path: Sequence[str]) -> None:
    ignore_interrupts()
    for directory in reversed(path):
        if directory not in sys.path:
            sys.path.insert(0, directory)
    # As in a resident worker: tuples are many and short-lived, and rarely form cycles.
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)

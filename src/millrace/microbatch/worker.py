"""A worker that runs the tasks of one partition at a time: their tuples come from Spark's shuffle and leave by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.api.grouping import Grouping
from millrace.control.batches.actions import BatchFailed
from millrace.control.batches.stages import Stages
from millrace.microbatch.records import Record, pack_chunk
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.access import CheckpointAccess
from millrace.runtime.clock import Clock
from millrace.runtime.flow.channel import Channel, Delivery, Inlet, Lineage, Link
from millrace.runtime.flow.links import Nowhere
from millrace.runtime.flow.routing import ByFields, ByGroups
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.output import Output
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.tasks.task import Task
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import decode_batch
from millrace.runtime.worker.wiring import Wiring, connect_local, inlet_of
from millrace.runtime.worker.worker import Worker

UNLIMITED = 1 << 62  # a window: a batch is bounded already
SentToGroups = dict[tuple[int, str], np.ndarray]  # by task and component: the tuples sent to each key group
KnownKeys = dict[tuple[int, str, tuple[int, ...]], dict[Any, int]]  # by task and subscription: the groups of some keys
MERGED_ROWS = 1 << 17  # Arrow chunks of a stream are merged up to this many rows, to call user code less often


class ToShuffle:
    """Link to a task that runs in a later stage."""

    def __init__(self, outbox: list[tuple[int, bytes]], partition: int, target: int) -> None:
        self._outbox, self._partition, self._target = outbox, partition, target

    def send(self, parts: list[Any]) -> None:
        self._outbox.append((self._partition, pack_chunk(self._target, *parts)))


class ShuffleWiring(Wiring):
    """Connects the tasks of one partition: those that are `here` to each other, and all to the shuffle."""

    def __init__(self, stages: Stages, stage: int, here: set[int], outbox: list[tuple[int, bytes]],
                 group_counts: SentToGroups, known_keys: KnownKeys) -> None:
        self._stages, self._stage, self._here, self._outbox = stages, stage, here, outbox
        self._group_counts, self._known_keys = group_counts, known_keys

    def channel(self, task: Task, target: TaskId, number: int) -> Channel:
        channel = Channel(task, number, 0, target, UNLIMITED)
        if number in self._here:
            connect_local(channel, task, number)
        elif self._stages.places[target][0] > self._stage:  # else it is fused with another task, which alone sends to it
            channel.link = ToShuffle(self._outbox, self._stages.next_hop(target, self._stage), number)
        return channel

    def counted(self, task: Task, output: Output, grouping: Grouping, component: str, route: ByFields) -> ByFields:
        counts = self._group_counts.setdefault((task.number, component), np.zeros(len(route.owners), np.int64))
        return ByGroups(route, counts, self._known_keys.setdefault((task.number, component, route.positions), {}))


class _NoPeers:
    """Stands for links to other workers, of which there are none: everything goes through Spark."""

    def link(self, address: Any) -> Link:
        return Nowhere()

    def forget(self, slot: int) -> None: ...


class _InLine:
    """Runs blocking user code in line: it delays only its own partition."""

    def run(self, key: Any, work: Callable[[], None], done: Callable[[], None]) -> None:
        work()
        done()

    def end(self, key: Any) -> None: ...


class BatchWorker(Worker):
    """The worker of the tasks of a partition. `enter` sets the tasks that are here; `outbox` has the records to send."""

    def __init__(self, slot: int, clock: Clock, settings: dict[str, Any], checkpoints: CheckpointAccess) -> None:
        super().__init__(slot, 0, clock, _NoPeers(), _InLine(), settings, checkpoints=checkpoints)
        self.outbox: list[tuple[int, bytes]] = []
        self.here: set[int] = set()
        self.group_counts: SentToGroups = {}
        self._known_keys: KnownKeys = {}

    def enter(self, stages: Stages, stage: int, tasks: Iterable[Task]) -> None:
        """Begin a partition: connect its tasks to each other and to the shuffle."""
        tasks = list(tasks)
        self.here = {task.number for task in tasks}
        self.outbox.clear()
        self.group_counts.clear()
        wiring = ShuffleWiring(stages, stage, self.here, self.outbox, self.group_counts, self._known_keys)
        for task in tasks:
            task.channels = {}
            wiring.wire(task)

    def forget_task(self, number: int) -> None:
        """Forget the keys that a task has sent; it has ended or moved."""
        self._known_keys = {sent: known for sent, known in self._known_keys.items() if sent[0] != number}

    def ready(self, task: Task) -> None:
        """Queue bolts only: the host steps spouts, up to the size of the batch."""
        if not isinstance(task, SpoutTask):
            super().ready(task)

    def ready_at(self, task: Task, at: float) -> None: ...

    def start_timers(self, task: BoltTask, due: Mapping[str, float]) -> None:
        """Do nothing: the host runs due ticks and timers once per batch."""

    def consumed(self, task: BoltTask, inlet: Inlet) -> None:
        """Do nothing: channels are unlimited, so there is no credit to return."""

    def broken(self, task: Task, reason: str) -> None:
        raise BatchFailed(reason)

    def deliver(self, records: Sequence[Record]) -> Iterable[None]:
        """Deliver chunks to the tasks, in the order of each channel, and let the tasks work after each chunk."""
        chunks = [record for record in records if record.header is not None]
        chunks.sort(key=_order)
        for (target, _, _), channel in groupby(chunks, key=_stream):
            task = next(iter(self.topologies.values())).tasks[target]
            assert isinstance(task, BoltTask)
            for delivery in self._deliveries(task, list(channel)):
                task.deliver(delivery)
                self.run_dry()
                yield

    def _deliveries(self, task: BoltTask, records: list[Record]) -> Iterable[Delivery]:
        for merges, run in groupby(records, key=partial(_merges, task.definition.mode)):
            if merges:
                for batch, header in _merged(list(run)):
                    yield self._delivery(task, header, batch, batch.num_rows, True)
            else:
                for record in run:
                    assert record.header is not None
                    yield self._delivery(task, record.header, record.body, record.header.count, False)

    def _delivery(self, task: BoltTask, header: wire.Chunk, body: Any, count: int, local: bool) -> Delivery:
        inlet = inlet_of(task, header.source, 0, self.slot, None)
        return Delivery(inlet, header.stream, body, count, header.form, local, 0, Lineage((), 0, self.clock.now()))

    def run_dry(self) -> None:
        """Run tasks until none has anything left to do."""
        while self._ready:
            task = self._ready.popleft()
            task.queued = False
            task.step(self.clock.now())


def _order(record: Record) -> tuple[int, int, int]:
    assert record.header is not None
    return record.target, record.header.source, record.header.seq


def _stream(record: Record) -> tuple[int, int, int]:
    """The key of a chunk: chunks with the same key may be merged, in their order."""
    assert record.header is not None
    return record.target, record.header.source >> 16, record.header.stream


def _merges(mode: str, record: Record) -> bool:
    assert record.header is not None
    return mode == "process_arrow" and record.header.form == wire.ARROW


def _merged(records: list[Record]) -> Iterable[tuple[pa.RecordBatch, wire.Chunk]]:
    waiting: list[pa.RecordBatch] = []
    header: wire.Chunk | None = None
    for record in records:
        batch = decode_batch(record.body)
        if waiting and (waiting[0].schema != batch.schema or sum(each.num_rows for each in waiting) >= MERGED_ROWS):
            assert header is not None
            yield _joined(waiting), header
            waiting = []
        header = header if waiting else record.header
        waiting.append(batch)
    if waiting:
        assert header is not None
        yield _joined(waiting), header


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

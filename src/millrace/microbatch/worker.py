"""A worker that runs the tasks of one partition at a time: their tuples come from Spark's shuffle and leave by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.control.batch_stages import Stages
from millrace.errors import MillraceError
from millrace.microbatch.records import Frame, pack_chunk
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.access import CheckpointAccess
from millrace.runtime.clock import Clock
from millrace.runtime.flow.channel import Channel, Delivery, Inlet, Lineage, Link
from millrace.runtime.flow.links import Nowhere
from millrace.runtime.flow.routing import ByFields, ByGroups
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.tasks.task import Task
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.wiring import Wiring, connect_local, inlet_of
from millrace.runtime.worker.worker import Worker

UNLIMITED = 1 << 62  # a window: what a batch brings is bounded already
MERGED_ROWS = 1 << 17  # Arrow chunks of a stream are put together up to so many rows, so that a call of user code is worth it


class BatchFailed(MillraceError):
    """This attempt cannot be finished; the batch is run again as a whole."""


class ToShuffle:
    """The way to a task that runs in a later stage."""

    def __init__(self, outbox: list[tuple[int, bytes]], partition: int, target: int) -> None:
        self._outbox, self._partition, self._target = outbox, partition, target

    def send(self, frames: list[Any]) -> None:
        self._outbox.append((self._partition, pack_chunk(self._target, *frames)))


class ShuffleWiring(Wiring):
    """Joins the tasks of one partition: those that are `here` to each other, and all to the shuffle."""

    def __init__(self, stages: Stages, stage: int, here: set[int], outbox: list[tuple[int, bytes]]) -> None:
        self._stages, self._stage, self._here, self._outbox = stages, stage, here, outbox

    def channel(self, task: Task, target: TaskId, number: int) -> Channel:
        channel = Channel(task, number, 0, target, UNLIMITED)
        if number in self._here:
            connect_local(channel, task, number)
        elif self._stages.places[target][0] > self._stage:  # else it is fused with another task: nothing goes there from here
            channel.link = ToShuffle(self._outbox, self._stages.next_hop(target, self._stage), number)
        return channel


class _NoPeers:
    """Nothing is sent past Spark."""

    def link(self, address: Any) -> Link:
        return Nowhere()

    def forget(self, slot: int) -> None: ...


class _InLine:
    """User code that blocks holds up its own partition only: it needs no thread."""

    def run(self, key: Any, work: Callable[[], None], done: Callable[[], None]) -> None:
        work()
        done()

    def end(self, key: Any) -> None: ...


class BatchWorker(Worker):
    """What tasks take for their worker. `enter` says which of them are here; `outbox` has what is to leave."""

    def __init__(self, slot: int, clock: Clock, settings: dict[str, Any], checkpoints: CheckpointAccess) -> None:
        super().__init__(slot, 0, clock, _NoPeers(), _InLine(), settings, checkpoints=checkpoints)
        self.outbox: list[tuple[int, bytes]] = []
        self.here: set[int] = set()
        self.group_counts: dict[tuple[int, str], np.ndarray] = {}
        self._known_keys: dict[Any, dict[Any, int]] = {}  # by task and subscription: the groups of some keys

    def enter(self, stages: Stages, stage: int, tasks: Iterable[Task]) -> None:
        """A partition begins: its tasks are wired to each other, and to the shuffle."""
        tasks = list(tasks)
        self.here = {task.number for task in tasks}
        self.outbox.clear()
        self.group_counts.clear()
        wiring = ShuffleWiring(stages, stage, self.here, self.outbox)
        for task in tasks:
            task.channels = {}
            wiring.wire(task)
            self._count_groups(task)

    def _count_groups(self, task: Task) -> None:
        for component, given in task.topology.graph.downstream(task.name.component):
            output = next(output for output in task.outbox.outputs if output.name == given.stream)
            for number, route in enumerate(output.routes):
                if isinstance(route, ByFields) and route.channels[0].target_name.component == component.name:
                    counts = self.group_counts.setdefault((task.number, component.name), np.zeros(len(route.owners), np.int64))
                    known = self._known_keys.setdefault((task.number, component.name, route.positions), {})
                    output.routes[number] = ByGroups(route, counts, known)

    def let_go(self, number: int) -> None:
        """The task has its place elsewhere: what is remembered of the keys that it sent goes."""
        self._known_keys = {sent: known for sent, known in self._known_keys.items() if sent[0] != number}

    def ready(self, task: Task) -> None:
        """A spout is asked for more by whoever knows how much the batch may have."""
        if not isinstance(task, SpoutTask):
            super().ready(task)

    def ready_at(self, task: Task, at: float) -> None: ...

    def start_timers(self, task: BoltTask) -> None:
        """What has fallen due is looked for once in each batch."""

    def consumed(self, task: BoltTask, inlet: Inlet) -> None:
        """Nobody waits for it."""

    def broken(self, task: Task, reason: str) -> None:
        raise BatchFailed(reason)

    def deliver(self, frames: Sequence[Frame]) -> Iterable[None]:
        """Give the tasks what has come for them, each channel's in its order, and let them work after each chunk."""
        chunks = [frame for frame in frames if frame.header is not None]
        chunks.sort(key=_order)
        for (target, _, _), channel in groupby(chunks, key=_stream):
            task = next(iter(self.topologies.values())).tasks[target]
            assert isinstance(task, BoltTask)
            for delivery in self._deliveries(task, list(channel)):
                task.deliver(delivery)
                self.run_dry()
                yield

    def _deliveries(self, task: BoltTask, frames: list[Frame]) -> Iterable[Delivery]:
        for merges, run in groupby(frames, key=partial(_merges, task.definition.mode)):
            if merges:
                for batch, header in _merged(list(run)):
                    yield self._delivery(task, header, batch, batch.num_rows, True)
            else:
                for frame in run:
                    assert frame.header is not None
                    yield self._delivery(task, frame.header, frame.body, frame.header.count, False)

    def _delivery(self, task: BoltTask, header: wire.Chunk, body: Any, count: int, local: bool) -> Delivery:
        inlet = inlet_of(task, header.source, 0, self.slot, None)
        return Delivery(inlet, header.stream, body, count, header.form, local, 0, Lineage((), 0, self.clock.now()))

    def run_dry(self) -> None:
        """Until no task has anything left to do."""
        while self._ready:
            task = self._ready.popleft()
            task.queued = False
            task.step(self.clock.now())


def _order(frame: Frame) -> tuple[int, int, int]:
    assert frame.header is not None
    return frame.target, frame.header.source, frame.header.seq


def _stream(frame: Frame) -> tuple[int, int, int]:
    """What may be put together, in a sequence that is in order."""
    assert frame.header is not None
    return frame.target, frame.header.source >> 16, frame.header.stream


def _merges(mode: str, frame: Frame) -> bool:
    assert frame.header is not None
    return mode == "process_arrow" and frame.header.form == wire.ARROW


def _merged(frames: list[Frame]) -> Iterable[tuple[pa.RecordBatch, wire.Chunk]]:
    waiting: list[pa.RecordBatch] = []
    header: wire.Chunk | None = None
    for frame in frames:
        batch = wire.decode_batch(frame.body)
        if waiting and (waiting[0].schema != batch.schema or sum(one.num_rows for one in waiting) >= MERGED_ROWS):
            assert header is not None
            yield _joined(waiting), header
            waiting = []
        header = header if waiting else frame.header
        waiting.append(batch)
    if waiting:
        assert header is not None
        yield _joined(waiting), header


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

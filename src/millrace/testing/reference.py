"""Runs a topology to its end in the simplest way: one process, one queue, one tuple at a time.

The engines are compared with it, so it shares no code with them: no channel, chunk, route or task. It uses only the
declaration, the components and the keyed state of Millrace.

    >>> from millrace.workloads.wordcount import WordCount
    >>> run_reference(WordCount, config={"limit": 100}).states["count"]["counts"]
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import time
from collections import Counter, deque, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from millrace.api.bolt import Bolt
from millrace.api.component import Component
from millrace.api.grouping import stable_hash
from millrace.api.spout import ReplayableSpout, Spout
from millrace.api.topology import Topology
from millrace.api.tuple import DEAD_LETTERS, DEFAULT_STREAM, Tuple
from millrace.errors import EmitError, EncodingError, TopologyError, is_interrupt
from millrace.hotpath.plain import Row
from millrace.model.graph import ComponentDef, Input, StreamDef, TaskId, TopologyGraph, graph_of, resolve
from millrace.state.task_state import TaskState, open_states

USER_ERRORS = BaseException  # as in the engines, user code may raise anything
FRUITLESS = 100  # consecutive calls in which a spout may raise without emitting before it counts as finished

States = dict[str, dict[str, dict[Any, Any]]]


@dataclass
class Reference:
    """The result of a run."""

    states: States = field(default_factory=dict)  # component with keyed state -> state -> key -> value
    own: dict[str, list[Any]] = field(default_factory=dict)  # component -> results of `snapshot` of its tasks, if any
    emitted: dict[str, dict[str, list[Row]]] = field(default_factory=dict)  # component -> stream -> rows
    received: dict[str, dict[tuple[str, str], list[Row]]] = field(default_factory=dict)  # component -> (source, stream) -> rows
    dead_letters: list[Row] = field(default_factory=list)
    positions: dict[TaskId, int] = field(default_factory=dict)  # of replayable spouts
    errors: list[BaseException] = field(default_factory=list)  # raised or reported by components

    def reached(self, component: str) -> Counter[Row]:
        """The number of times each row reached a component, on any stream. The values must be hashable."""
        return Counter(itertools.chain.from_iterable(self.received[component].values()))


def run_reference(topology: type[Topology] | TopologyGraph, name: str | None = None, config: dict[str, Any] | None = None,
                  par: dict[str, int] | None = None) -> Reference:
    """Runs the topology until its spouts end: a spout ends when a call of `next_tuple` emits nothing, so give it a `limit` and
    no `rate`. There are no ticks; batching bolts process their batches at the end. Sinks write immediately. A tuple that makes
    a bolt raise becomes a dead letter at once."""
    graph = topology if isinstance(topology, TopologyGraph) else graph_of(topology, name, config, par)
    fed = [spout.name for spout in graph.spouts if spout.dataframe]
    if fed:
        raise TopologyError(f"{', '.join(fed)} of {graph.name!r} is fed by Spark, which a reference run does not have: replace "
                            "it by a spout that emits the DataFrame's rows itself")
    return _Run(graph).run()


class _Run:
    """The tasks, and the queue of tuples for them."""

    def __init__(self, graph: TopologyGraph) -> None:
        graph = graph.with_par(graph.splits)  # each split is a task of its own
        self.graph, self.result = graph, Reference()
        self.queue: deque[tuple[_Task, _Message]] = deque()
        self.tasks = {component.name: [_Task(self, component, index) for index in range(component.par)]
                      for component in graph.components}
        self.numbers = {task.number: task for tasks in self.tasks.values() for task in tasks}
        for component in graph.components:
            self.result.emitted[component.name] = {stream.name: [] for stream in component.outputs}
            self.result.received[component.name] = {(read.source, read.stream): [] for read in component.inputs}

    def run(self) -> Reference:
        for task in self.each_task():
            task.component.initialize(task.component.storm_conf, task.component.context)
            self.process_queue()
        spouts = [task for task in self.each_task() if task.definition.kind == "spout"]
        while spouts:
            spouts = [task for task in spouts if task.next_tuples()]
        for task in self.each_task():  # upstream first: a task further down may batch the tuples released here
            task.release_batches()
            self.process_queue()
        self.collect_states()
        for task in self.each_task():
            task.component.close()
        return self.result

    def each_task(self) -> list[_Task]:
        """All tasks in topological order."""
        return [task for component in self.graph.components for task in self.tasks[component.name]]

    def process_queue(self) -> None:
        while self.queue:
            task, message = self.queue.popleft()
            task.process(message)

    def collect_states(self) -> None:
        for task in self.each_task():
            component, name = task.component, task.definition.name
            if task.state is not None:
                states = self.result.states.setdefault(name, {})
                for state, entries in task.state.states.items():
                    states.setdefault(state, {}).update(entries.items())
            snapshot = component.snapshot()
            if snapshot is not None:
                self.result.own.setdefault(name, []).append(snapshot)
            if isinstance(component, ReplayableSpout):
                self.result.positions[TaskId(name, task.index)] = component.position()


@dataclass
class _Message:
    """One tuple in the queue. `batch`: the tuple as an Arrow batch of one row, if it was emitted as Arrow."""

    id: str
    source: _Task
    stream: StreamDef
    row: Row
    batch: pa.RecordBatch | None


class _Task:
    """One task, which is also the handle of its component."""

    chunk_tuples = sys.maxsize

    def __init__(self, run: _Run, definition: ComponentDef, index: int) -> None:
        self.run, self.definition, self.index = run, definition, index
        self.number = run.graph.number(TaskId(definition.name, index))
        self.state: TaskState | None = None
        self.turns: Counter[tuple[str, str]] = Counter()  # (target, stream) -> tuples sent by a shuffle so far
        self.sent = 0
        self.pending_ids: list[Any] = []  # ids that the spout emitted in this call
        self.unacked: dict[str, Tuple] = {}  # tuples by id, while the bolt may still fail them
        self.component = self.make()
        if definition.keyed:
            groups = run.graph.key_groups
            owned = [group for group in range(groups) if self._owner(group, definition.par) == index]
            self.state = open_states(self.component, stable_hash, owned, groups, definition.name, time.time)

    def make(self) -> Any:
        graph, definition = self.run.graph, self.definition
        component: Component = resolve(definition.code)()
        component.topology_name, component.component_name = graph.name, definition.name
        component.task_id, component.task_index, component.parallelism = self.number, self.index, definition.par
        component.storm_conf = {"topology.name": graph.name, **graph.config, **definition.config}
        component.context = {"taskid": self.number, "componentid": definition.name,
                             "task->component": {str(graph.number(task)): task.component for task in graph.tasks()}}
        component.logger = logging.getLogger(f"millrace.reference.{definition.name}")
        component._handle = self
        if self.state is not None:
            vars(component).update(self.state.states)
        return component

    # -- spouts ------------------------------------------------------------------------------------------------------------

    def next_tuples(self) -> bool:
        """Calls `next_tuple` once and processes everything that follows; False if the spout has ended."""
        for _ in range(FRUITLESS):
            before, raised = self.sent, False
            try:
                self.component.next_tuple()
            except USER_ERRORS as error:
                if is_interrupt(error):
                    raise
                self.run.result.errors.append(error)
                raised = True
            self.run.process_queue()
            ids, self.pending_ids = self.pending_ids, []
            for tup_id in ids:
                self.component.ack(tup_id)
            if self.sent > before or not raised:
                return self.sent > before
        return False

    # -- bolts -------------------------------------------------------------------------------------------------------------

    def process(self, message: _Message) -> None:
        source = message.source.definition.name
        self.run.result.received[self.definition.name][source, message.stream.name].append(message.row)
        values = message.row
        if self.component.named_rows:
            values = _row_type(message.stream.fields)(*values)
        tup = Tuple.of(message.id, source, message.stream.name, message.source.number, values)
        self.unacked[tup.id] = tup
        try:
            self._call(message, tup)
        except USER_ERRORS as error:
            if is_interrupt(error):
                raise
            self.run.result.errors.append(error)
            if self.component.auto_fail:
                self._reject(tup, f"{type(error).__name__}: {error}")
            if self.component.exit_on_exception:
                self.component = self.make()
                self.component.initialize(self.component.storm_conf, self.component.context)
        if self.component.auto_ack and not self.component.acks_itself:
            self.ack(tup)

    def _call(self, message: _Message, tup: Tuple) -> None:
        if self.definition.mode == "process":
            self.component.process(tup)
        elif self.definition.mode == "process_rows":
            self.component.process_rows([tup.values])
        elif message.batch is not None:
            self.component.process_arrow(message.batch)
        else:
            columns = [pa.array([value]) for value in message.row]
            self.component.process_arrow(pa.record_batch(columns, names=list(message.stream.fields)))

    def release_batches(self) -> None:
        """Makes the component process its held-back tuples."""
        try:
            self.component._before_wave()
        except USER_ERRORS as error:
            if is_interrupt(error):
                raise
            self.run.result.errors.append(error)

    def _reject(self, tup: Tuple, why: str) -> None:
        self.unacked.pop(tup.id, None)
        self._dead_letter(tup.stream, tup.values, why)

    def _dead_letter(self, stream: str, values: Sequence[Any], why: str) -> None:
        letter = (self.definition.name, self.index, stream, list(values), why)
        self.run.result.dead_letters.append(letter)
        self._send(self.definition.stream(DEAD_LETTERS), letter, None, None)

    # -- called by the component (TaskHandle) ------------------------------------------------------------------------------

    def emit(self, values: Sequence[Any], tup_id: Any, stream: str | None, anchors: Any, direct_task: int | None,
             need_task_ids: bool) -> list[int] | None:
        definition = self._stream(stream, direct_task)
        if not isinstance(values, list | tuple):
            raise TypeError(f"{self.definition.name} emitted {values!r}: emit takes a list or tuple of values")
        if len(values) != len(definition.fields):
            raise EmitError(f"{self.definition.name} emitted {len(values)} values on {definition.name!r}, which has "
                            f"{len(definition.fields)} fields")
        targets = self._send(definition, _copied(values), None, direct_task)
        self._note(tup_id)
        return targets if need_task_ids else None

    def emit_rows(self, rows: Sequence[Sequence[Any]], stream: str | None) -> None:
        for row in rows:
            self.emit(row, None, stream, None, None, False)

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any, stream: str | None, anchors: Any,
                   direct_task: int | None) -> None:
        definition = self._stream(stream, direct_task)
        if tuple(batch.schema.names) != definition.fields:
            raise EmitError(f"{self.definition.name} emitted a batch with columns {batch.schema.names} on "
                            f"{definition.name!r}, whose fields are {list(definition.fields)}")
        columns = [column.to_pylist(maps_as_pydicts="strict") for column in batch.columns]
        for number, row in enumerate(zip(*columns, strict=True)):
            self._send(definition, row, batch.slice(number, 1), direct_task)
        self._note(tup_id)

    def ack(self, tup: Tuple | str) -> None:
        self.unacked.pop(tup if isinstance(tup, str) else tup.id, None)

    def fail(self, tup: Tuple | str) -> None:
        known = self.unacked.get(tup if isinstance(tup, str) else tup.id)
        if known is not None:
            self._reject(known, "failed by the bolt")

    def report_metric(self, name: str, value: Any) -> None:
        """Does nothing."""

    def report_error(self, error: BaseException, tup: Tuple | None) -> None:
        self.run.result.errors.append(error)

    def _stream(self, name: str | None, direct_task: int | None) -> StreamDef:
        declared = {stream.name: stream for stream in self.definition.outputs}
        stream = declared.get(name or DEFAULT_STREAM)
        if stream is None:
            raise EmitError(f"{self.definition.name} emitted on {name or DEFAULT_STREAM!r}; it has {', '.join(declared)}")
        if stream.direct != (direct_task is not None):
            raise EmitError(f"{self.definition.name}, stream {stream.name!r}: direct_task is {direct_task} and direct is "
                            f"{stream.direct}")
        if direct_task is not None and not any(self.run.graph.task(direct_task).component == component.name
                                               for component, _ in self._readers(stream)):
            raise EmitError(f"{self.definition.name} emitted to task {direct_task}, which does not read {stream.name!r}")
        return stream

    def _note(self, tup_id: Any) -> None:
        if isinstance(self.component, Spout) and tup_id is not None:
            self.pending_ids.append(tup_id)

    # -- groupings ---------------------------------------------------------------------------------------------------------

    def _readers(self, stream: StreamDef) -> list[tuple[ComponentDef, Input]]:
        return [(component, read) for component, read in self.run.graph.downstream(self.definition.name)
                if read.stream == stream.name]

    def _send(self, stream: StreamDef, row: Row, batch: pa.RecordBatch | None, direct_task: int | None) -> list[int]:
        """Queues a copy of the row for every receiving task; returns their numbers."""
        try:
            targets = [self.run.numbers[direct_task]] if direct_task is not None else [
                self.run.tasks[component.name][index] for component, read in self._readers(stream)
                for index in self._chosen(component, read, stream, row)]
        except USER_ERRORS as error:  # raised by a custom grouping
            if is_interrupt(error):
                raise
            self.run.result.errors.append(error)
            if isinstance(self.component, Bolt):
                self._dead_letter(stream.name, row, f"{type(error).__name__}: {error}")
            return []
        self.sent += 1
        self.run.result.emitted[self.definition.name][stream.name].append(row)
        message_id = f"{self.number}:{self.sent}"
        for target in targets:
            copied = row if batch is not None else _copied(row)
            self.run.queue.append((target, _Message(message_id, self, stream, copied, batch)))
        return [target.number for target in targets]

    def _chosen(self, target: ComponentDef, read: Input, stream: StreamDef, row: Row) -> list[int]:
        """The indexes of the target's tasks that receive this row."""
        kind = read.grouping.kind
        if kind == "all":
            return list(range(target.par))
        if kind == "global":
            return [0]
        if kind == "fields":
            key = tuple(row[stream.fields.index(name)] for name in read.grouping.names)
            group = stable_hash(key[0] if len(key) == 1 else key) % self.run.graph.key_groups
            return [self._owner(group, target.par)]
        if kind == "custom":
            chosen = list(resolve(read.grouping.code)(row, target.par))
            if not all(0 <= index < target.par for index in chosen):
                raise EmitError(f"custom grouping {read.grouping.code} chose tasks {chosen} of {target.par}")
            return chosen
        turn = self.turns[target.name, stream.name]
        self.turns[target.name, stream.name] += 1
        return [(self.index + turn) % target.par]

    def _owner(self, group: int, par: int) -> int:
        """The owner of a key group. Any rule would do: results are compared by key, not by task."""
        return group % par


@functools.cache
def _row_type(fields: tuple[str, ...]) -> Any:
    return namedtuple("Row", fields)


def _copied(values: Sequence[Any]) -> Row:
    """The values as another process would decode them, without shared objects."""
    return tuple(map(_copy, values))


def _copy(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    if isinstance(value, list | tuple):
        return list(map(_copy, value))
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if type(value) is datetime and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, Decimal | date | time_of_day | timedelta):
        return value
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    except TypeError as error:
        raise EncodingError(f"{value!r} cannot be encoded ({error})") from None

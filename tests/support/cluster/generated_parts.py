"""Components of generated topologies. A row has its key and number, the components that it passed, the task that sent it, and a
stamp that rises with every row that any task emits: so the order in which rows were emitted can be compared with the order in
which they arrive."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from millrace.api.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from millrace.api.keyed.declared import CounterState, ListState, State
from millrace.api.sink import TwoPhaseSink
from millrace.api.topology import Stream
from millrace.api.tuple import Tuple
from millrace.connectors.generator import ArrowGeneratorSpout, GeneratorSpout

KEYS = 13
FIELDS = ["key", "number", "path", "sender", "stamp"]
CHOSEN = "chosen"  # the direct stream
Row = Sequence[Any]  # as FIELDS


class Received(NamedTuple):
    """A row that a task has received."""

    component: str
    index: int
    row: Row

    @property
    def source(self) -> str:
        return str(self.row[3].partition("[")[0])


RECEIVED: list[Received] = []
VISIBLE: list[Received] = []  # rows of two-phase sinks that are committed, in the order of the commits
STAGED: dict[tuple[str, int, int, int, int], list[Row]] = {}  # (sink, task, epoch, wave or -1, order) -> rows not visible yet
_numbers = itertools.count()


def forget() -> None:
    RECEIVED.clear()
    VISIBLE.clear()
    STAGED.clear()


def key_of(number: int) -> str:
    return f"k{number % KEYS}"


def by_number(values: Sequence[Any], tasks: int) -> list[int]:
    """A custom grouping."""
    return [values[1] % tasks]


def to_neighbours(values: Sequence[Any], tasks: int) -> list[int]:
    """A custom grouping that sends a row to two tasks, if there are two."""
    return sorted({values[1] % tasks, (values[1] + 1) % tasks})


class Sending:
    """Emits rows on the default stream and, to a task that the number chooses, for each component in the setting `direct`."""

    outputs: ClassVar[list[Any]] = [*FIELDS, Stream(FIELDS, CHOSEN, direct=True)]
    component_name: str
    task_index: int
    storm_conf: dict[str, Any]
    context: dict[str, Any]

    @cached_property
    def chosen(self) -> dict[str, list[int]]:
        """The numbers of the tasks of each component that reads the direct stream."""
        tasks = sorted((int(number), name) for number, name in self.context["task->component"].items())
        return {name: [number for number, component in tasks if component == name]
                for name in self.storm_conf.get("direct", ())}

    def stamped(self, key: str, number: int, path: str) -> Row:
        return key, number, path, f"{self.component_name}[{self.task_index}]", next(_numbers)


class Passing(Sending):
    """Notes the rows that arrive, and passes them on."""

    emit: Any
    emit_rows: Any

    def arrive(self, row: Row) -> tuple[str, int, str]:
        """Note the row; returns what to emit for it. A path names the task, too, if that does not depend on chance."""
        RECEIVED.append(received := Received(self.component_name, self.task_index, tuple(row)))
        task = f".{self.task_index}" if received.source in self.storm_conf["numbered"] else ""
        return row[0], row[1], f"{row[2]}>{self.component_name}{task}"

    def pass_on(self, outgoing: tuple[str, int, str], **anchors: Any) -> None:
        self.emit(self.stamped(*outgoing), **anchors)
        for numbers in self.chosen.values():
            self.emit(self.stamped(*outgoing), stream=CHOSEN, direct_task=numbers[outgoing[1] % len(numbers)], **anchors)


class ByRow(Passing, Bolt):
    def process(self, tup: Tuple) -> None:
        self.pass_on(self.arrive(tup.values))


class ByRowBlocking(ByRow):
    blocking = True


class ByRows(Passing, Bolt):
    named_rows: ClassVar[bool] = False

    def process_rows(self, rows: list[Row]) -> None:
        outgoing = [self.arrive(row) for row in rows]
        self.emit_rows([self.stamped(*row) for row in outgoing])
        for numbers in self.chosen.values():
            for row in outgoing:
                self.emit(self.stamped(*row), stream=CHOSEN, direct_task=numbers[row[1] % len(numbers)])


class ByArrow(Passing, Bolt):
    def process_arrow(self, batch: pa.RecordBatch) -> None:
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        outgoing = [self.arrive(row) for row in rows]
        self.emit_arrow(arrow_of(self.stamped(*row) for row in outgoing))
        for numbers in self.chosen.values():
            for row in outgoing:
                self.emit(self.stamped(*row), stream=CHOSEN, direct_task=numbers[row[1] % len(numbers)])


class ByArrowBlocking(ByArrow):
    blocking = True


class Batching(Passing, BatchingBolt):
    """Collects rows of every third number; batches run every second tick."""

    def group_key(self, tup: Tuple) -> int:
        return int(tup.values.number) % 3

    def process(self, tup: Tuple) -> None:
        self.arrive(tup.values)
        super().process(tup)

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        for tup in tups:
            task = f".{self.task_index}" if tup.component in self.storm_conf["numbered"] else ""
            self.pass_on((tup.values.key, tup.values.number, f"{tup.values.path}>{self.component_name}{task}"))


class BatchingByTimer(Batching, TicklessBatchingBolt):
    secs_between_batches: ClassVar[float] = 0.03

    def process_tick(self, tup: Tuple) -> None: ...


class AckingByHand(Passing, Bolt):
    auto_ack = False

    def process(self, tup: Tuple) -> None:
        self.pass_on(self.arrive(tup.values), anchors=[tup])
        self.ack(tup)


class Holding(Passing, Bolt):
    """Keeps rows, and acks and emits them at the next tick. Those that it has are in its snapshot."""

    auto_ack = False

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[tuple[str, int, str], Tuple | None]] = []

    def process(self, tup: Tuple) -> None:
        self.held.append((self.arrive(tup.values), tup))

    def process_tick(self, tup: Tuple) -> None:
        held, self.held = self.held, []
        for outgoing, anchor in held:
            self.pass_on(outgoing, anchors=[anchor] if anchor is not None else [])
            if anchor is not None:
                self.ack(anchor)

    def snapshot(self) -> Any:
        return {"held": [outgoing for outgoing, _ in self.held]}

    def restore(self, snapshot: Any) -> None:
        self.held = [(tuple(outgoing), None) for outgoing in snapshot["held"]]


class Remembering(Passing, Bolt):
    """Counts its rows, and its ticks, in its snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.ticks = 0

    def process(self, tup: Tuple) -> None:
        self.seen += 1
        self.pass_on(self.arrive(tup.values))

    def process_tick(self, tup: Tuple) -> None:
        self.ticks += 1

    def snapshot(self) -> Any:
        return {"seen": self.seen, "ticks": self.ticks}

    def restore(self, snapshot: Any) -> None:
        self.seen, self.ticks = snapshot["seen"], snapshot["ticks"]


class Keyed(Passing, Bolt):
    """Keeps all kinds of state by key, and passes rows on. Entries of every fifth number are deleted again."""

    counts = CounterState()
    recent = ListState()
    expiring = State(ttl=1000.0)

    def keep(self, row: Row) -> tuple[str, int, str]:
        key, number = row[0], row[1]
        self.counts[key] += 1
        self.recent[key].append(number)
        self.expiring[key] = number
        self.state[key] = {"last": number}
        if number % 5 == 0:
            del self.state[key]
            self.expiring.pop(key, None)
        return self.arrive(row)


class KeyedByRow(Keyed):
    def process(self, tup: Tuple) -> None:
        self.pass_on(self.keep(tup.values))


class KeyedBlocking(KeyedByRow):
    blocking = True


class KeyedByRows(Keyed):
    named_rows: ClassVar[bool] = False

    def process_rows(self, rows: list[Row]) -> None:
        for row in rows:
            self.pass_on(self.keep(row))


class KeyedByArrow(Keyed):
    def process_arrow(self, batch: pa.RecordBatch) -> None:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            self.pass_on(self.keep(row))


class KeyedRemembering(KeyedByRow):
    """Has state by key and of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def keep(self, row: Row) -> tuple[str, int, str]:
        self.seen += 1
        return super().keep(row)

    def snapshot(self) -> Any:
        return {"seen": self.seen}

    def restore(self, snapshot: Any) -> None:
        self.seen = snapshot["seen"]


class KeyedBatching(Passing, BatchingBolt):
    """Counts the rows of its batches by key."""

    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        self.arrive(tup.values)
        super().process(tup)

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        for tup in tups:
            self.counts[tup.values.key] += 1
            self.pass_on((tup.values.key, tup.values.number, f"{tup.values.path}>{self.component_name}"))


class Source(Sending, GeneratorSpout):
    def generate(self, position: int) -> Row:
        number = self.ordinal(position)
        return self.stamped(key_of(number), number, self.component_name)


class SourceBlocking(Source):
    blocking = True


class SourceArrow(Sending, ArrowGeneratorSpout):
    def generate_arrow(self, first: int, count: int) -> pa.RecordBatch:
        return arrow_of(self.stamped(key_of(number), number, self.component_name) for number in range(first, first + count))


def arrow_of(rows: Iterable[Row]) -> pa.RecordBatch:
    types = [pa.string(), pa.int64(), pa.string(), pa.string(), pa.int64()]
    columns = zip(*rows, strict=True)
    return pa.record_batch([pa.array(column, kind) for column, kind in zip(columns, types, strict=True)], names=FIELDS)


class Collecting(TwoPhaseSink):
    """Stages rows outside the task, as a file would. Without two phases they are among the arrivals only."""

    named_rows: ClassVar[bool] = False

    def process_rows(self, rows: list[Row]) -> None:
        RECEIVED.extend(Received(self.component_name, self.task_index, tuple(row)) for row in rows)
        if self.exactly_once:
            STAGED[self.component_name, self.task_index, self.epoch, -1, next(_numbers)] = [tuple(row) for row in rows]

    def _staged(self, epoch: int) -> list[tuple[str, int, int, int, int]]:
        return sorted(key for key in STAGED if key[:3] == (self.component_name, self.task_index, epoch))

    def prepare(self, wave: int) -> None:
        for key in self._staged(self.epoch):
            if key[3] == -1:
                STAGED[*key[:3], wave, key[4]] = STAGED.pop(key)

    def commit(self, wave: int) -> None:
        self._publish(wave, self.epoch)

    def take_over(self, staged: Any) -> None: ...

    def recover(self, wave: int, epoch: int) -> None:
        self._publish(wave, epoch)
        for key in [key for key in STAGED if key[:2] == (self.component_name, self.task_index) and key[2] < self.epoch]:
            del STAGED[key]

    def _publish(self, wave: int, epoch: int) -> None:
        for key in self._staged(epoch):
            if 0 <= key[3] <= wave:
                VISIBLE.extend(Received(self.component_name, self.task_index, row) for row in STAGED.pop(key))


class CollectingBlocking(Collecting):
    blocking = True

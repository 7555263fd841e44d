"""Small topologies on which engines are likely to differ. Workers import this module by name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.api.bolt import BatchingBolt, Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState, ListState, State, Typed
from millrace.api.topology import Stream, Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import ArrowGeneratorSpout, GeneratorSpout
from millrace.connectors.sinks import JsonLinesSink
from millrace.workloads.topn import MergeRanks, RollingCount
from millrace.workloads.wordcount import Lines, Split


class Out(JsonLinesSink):
    """JSON lines in one directory per component, below `path`."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize({**storm_conf, "path": f"{storm_conf['path']}/{self.component_name}"}, context)


class Numbers(GeneratorSpout):
    """0, 1, 2 … `limit` - 1, whatever its parallelism."""

    outputs = ["n"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return (self.ordinal(position),)


class NumbersArrow(ArrowGeneratorSpout):
    outputs = ["n"]

    def generate_arrow(self, first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array(range(first, first + count), pa.int64())], names=["n"])


# ---- streams and groupings ----


class EvenOdd(Bolt):
    """Evens on the default stream, odds on another, every tenth also on a third."""

    outputs = ["n", Stream(["n", "text"], "odd"), Stream(["n"], "tenth")]

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        if n % 2 == 0:
            self.emit([n])
        else:
            self.emit([n, str(n)], stream="odd")
        if n % 10 == 0:
            self.emit([n], "tenth")


class Origins(Bolt):
    """Emits each tuple's origin with its values."""

    outputs = ["component", "stream", "fields", "values"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.component, tup.stream, list(tup.values._fields), list(tup.values)])


class Streams(Topology):
    numbers = Numbers.spec(par=2)
    parted = EvenOdd.spec(inputs=[numbers], par=3)
    origins = Origins.spec(inputs={parted: Grouping.SHUFFLE, parted["odd"]: Grouping.fields("text"),
                                   parted["tenth"]: Grouping.SHUFFLE, numbers: Grouping.SHUFFLE}, par=2)
    tens = Out.spec(inputs={parted["tenth"]: Grouping.GLOBAL})
    out = Out.spec(inputs=[origins], par=2)


class ToChosen(Bolt):
    """Sends n to task n mod the number of tasks of `named`, and emits it on the default stream too."""

    outputs = [Stream(["n"], "chosen", direct=True), "n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.targets = sorted(int(task) for task, name in context["task->component"].items() if name == "named")

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        self.emit([n], stream="chosen", direct_task=self.targets[n % len(self.targets)])
        self.emit([n])


class Stamp(Bolt):
    """Emits the task that received each tuple."""

    outputs = ["component", "task", "n"]

    def process(self, tup: Tuple) -> None:
        self.emit([self.component_name, self.task_index, tup.values.n])


def to_both_ends(values: Any, tasks: int) -> list[int]:
    """The first and the last task; every seventh tuple goes to none."""
    return [] if values[0] % 7 == 0 else sorted({0, tasks - 1})


class Groupings(Topology):
    """Every grouping that determines the task."""

    numbers = Numbers.spec(par=2)
    choose = ToChosen.spec(inputs=[numbers], par=2)
    named = Stamp.spec(inputs={choose["chosen"]: Grouping.DIRECT}, par=3)
    everyone = Stamp.spec(inputs={choose: Grouping.ALL}, par=3)
    first = Stamp.spec(inputs={choose: Grouping.GLOBAL}, par=2)
    ends = Stamp.spec(inputs={numbers: Grouping.custom(to_both_ends)}, par=4)
    out = Out.spec(inputs=[named, everyone, first, ends], par=2)


# ---- rows that cannot be processed ----


class Picky(Bolt):
    """Raises at every tenth tuple after emitting, emits rows that do not fit at others, and fails some explicitly."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        if n % 10 == 0:
            self.emit([-n])
            raise ValueError(f"{n} is refused")
        if n % 10 == 1:
            self.emit([n, n])
        if n % 10 == 2:
            self.emit([n], stream="nowhere")
        if n % 10 == 3:
            self.emit([object()])
        if n % 10 == 4:
            self.fail(tup)
        self.emit([n])


class Fragile(Bolt):
    """Counts by key; is rebuilt after it raised, and keeps its state."""

    outputs = ["n", "count"]
    exit_on_exception = True
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        self.counts[n] += 1
        if n % 50 == 6:
            raise RuntimeError("not again")
        self.emit([n, self.counts[n]])


def divides(values: Any, tasks: int) -> list[int]:
    """Raises for 7."""
    return [1 // (values[0] - 7) % tasks]


class Letters(Topology):
    numbers = Numbers.spec(par=2)
    picky = Picky.spec(inputs=[numbers], par=2)
    fragile = Fragile.spec(inputs={picky: Grouping.fields("n")}, par=2)
    divided = Out.spec(inputs={fragile: Grouping.custom(divides)}, par=2)
    letters = Out.spec(inputs=[picky["dead-letters"], fragile["dead-letters"]])


# ---- batches ----


class Sums(BatchingBolt):
    """The sum of each batch by remainder; raises for remainder 3."""

    outputs = ["rest", "total", "count"]

    def group_key(self, tup: Tuple) -> int:
        return int(tup.values.n % 5)

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        if key == 3:
            raise ValueError("not these")
        self.emit([key, sum(tup.values.n for tup in tups), len(tups)])


class AddUp(BatchingBolt):
    """Batches behind batches: the last output of the first bolt must pass through this one too."""

    outputs = ["rest", "total", "count"]
    totals = CounterState()

    def group_key(self, tup: Tuple) -> int:
        return int(tup.values.rest)

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        self.totals[key] += sum(tup.values.total for tup in tups)
        self.emit([key, sum(tup.values.total for tup in tups), sum(tup.values.count for tup in tups)])


class Batches(Topology):
    numbers = Numbers.spec(par=2)
    sums = Sums.spec(inputs=[numbers], par=2)
    add_up = AddUp.spec(inputs={sums: Grouping.fields("rest")}, par=2)
    out = Out.spec(inputs=[add_up])
    letters = Out.spec(inputs=[sums["dead-letters"]])


# ---- state ----


@dataclass
class Visit:
    n: int
    note: str | None


class Visits(Bolt):
    """Lists of dataclasses, a set for each key, entries that are deleted and return."""

    outputs = ["guest", "hour", "count"]
    visits = ListState(codec=Typed(list[Visit]))
    rests = State(default=set)
    last = State()

    def process(self, tup: Tuple) -> None:
        guest, hour, n = tup.values
        key = (guest, hour)
        self.visits.append(key, Visit(n, None if n % 3 else f"ü{n}"))
        self.rests[key].add(n % 11)
        if n % 4 == 0:
            self.last.pop(key, None)
        else:
            self.last[key] = [n, {"half": n / 2}, (n, None)]
        self.emit([guest, hour, len(self.visits[key])])


class Guests(GeneratorSpout):
    outputs = ["guest", "hour", "n"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return f"guest {position % 13}", float(position % 3), position


class GuestBook(Topology):
    """One spout task and no shuffle, so that the order in each list is determined. Keys of two fields, with whole floats."""

    guests = Guests.spec()
    visits = Visits.spec(inputs={guests: Grouping.fields("guest", "hour")}, par=3)
    out = Out.spec(inputs=[visits], par=2)


class Half(Bolt):
    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n // 2])


class ByNumber(Bolt):
    """Counts every number, weighs it by its sender, and emits both."""

    outputs = ["source", "n"]
    counts = CounterState()
    weights = CounterState()

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        self.counts.add(n)
        self.weights[n] += 1 if tup.component == "half" else 1000
        self.emit([tup.component, n])


class Diamond(Topology):
    """Two spouts, and an edge that skips a component: numbers → half → by_number, and numbers → by_number."""

    numbers = Numbers.spec(par=2)
    others = NumbersArrow.spec(par=2, config={"batch": 37})
    half = Half.spec(inputs=[numbers, others], par=3)
    by_number = ByNumber.spec(inputs={numbers: Grouping.fields("n"), half: Grouping.fields("n"), others: Grouping.fields("n")},
                          par=3)
    out = Out.spec(inputs=[by_number], par=2)


# ---- values and modes ----


class Odd(GeneratorSpout):
    """Values of every kind that JSON can show."""

    outputs = ["n", "value"]
    VALUES = ([1, [2, {"k": None}]], {"a": {"b": [1.5, True]}}, (1, (2, 3)), "ß", 2**63, None, "", 0.0, -1, [], {},
              Decimal("1.50"), date(2026, 1, 2), datetime(2026, 1, 2, 3), timedelta(1), [Decimal("0.1"), time(4)])

    def generate(self, position: int) -> tuple[Any, ...]:
        n = self.ordinal(position)
        return n, self.VALUES[n % len(self.VALUES)]


class Grabby(Bolt):
    """Changes the nested values it receives; no other task may see the change."""

    outputs = ["n", "value", "grabbed"]

    def process(self, tup: Tuple) -> None:
        n, value = tup.values
        if isinstance(value, list):
            value.append("grabbed")
        self.emit([n, value, isinstance(value, list)])


class RowsOn(Bolt):
    """Processes whole chunks and calls `emit_rows`."""

    outputs = ["n", "kind"]

    def process_rows(self, rows: list[Any]) -> None:
        self.emit_rows([(row.n, type(row.value).__name__) for row in rows])


class PlainRows(Bolt):
    """Processes rows without names on its own thread."""

    outputs = ["n", "kind"]
    named_rows = False
    blocking = True

    def process_rows(self, rows: list[Any]) -> None:
        for n, kind in rows:
            self.emit((n, kind))


class Doubled(Bolt):
    """Arrow in, Arrow out."""

    outputs = ["n", "kind"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        self.emit_arrow(pa.record_batch([pc.multiply(batch.column(0), 2), batch.column(1)], names=["n", "kind"]))


class TallyKinds(Bolt):
    """State of the task beside keyed state."""

    outputs = ["kind", "count"]
    counts = CounterState()

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.seen = 0

    def snapshot(self) -> Any:
        return {"seen": self.seen}

    def restore(self, snapshot: Any) -> None:
        self.seen = snapshot["seen"]

    def process(self, tup: Tuple) -> None:
        self.seen += 1
        self.emit([tup.values.kind, self.counts.add(tup.values.kind)])


class Values(Topology):
    odd = Odd.spec(par=2)
    grabby = Grabby.spec(inputs={odd: Grouping.ALL}, par=3)  # at least two of them share a worker
    rows_on = RowsOn.spec(inputs=[odd], par=2)
    plain = PlainRows.spec(inputs=[rows_on], par=2)
    doubled = Doubled.spec(inputs=[rows_on, plain], par=2)
    tally = TallyKinds.spec(inputs={doubled: Grouping.fields("kind")}, par=2)
    grabbed = Out.spec(inputs=[grabby])
    kinds = Out.spec(inputs=[tally, plain])


# ---- ticks ----


class RankedWords(Topology):
    """Top-N with its rankings written to files."""

    config = {"zipf": 1.0, "topology.tick.tuple.freq.secs": 0.1}
    read = Lines.spec()
    split = Split.spec(inputs=[read], par=2)
    count = RollingCount.spec(inputs={split: Grouping.fields("word")}, par=2)
    merge = MergeRanks.spec(inputs={count: Grouping.GLOBAL})
    out = Out.spec(inputs=[merge])

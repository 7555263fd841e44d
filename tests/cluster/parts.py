"""Components for the cluster tests. They live in a module of their own because workers import them by name.

What they see is kept here: all workers of a LocalCluster are one process.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.api.component import (
    BatchingBolt,
    Bolt,
    ReliableSpout,
    Spout,
    TicklessBatchingBolt,
    Tuple,
)
from millrace.api.topology import Stream
from millrace.connectors.generator import ArrowGeneratorSpout, GeneratorSpout
from millrace.testing.local_cluster import LocalCluster

SEEN: defaultdict[str, list[Any]] = defaultdict(list)  # component → the values it got, in order
TOLD: list[tuple[Any, ...]] = []  # what spouts were told of their tuples, and what else happened to components
QUEUE: deque[int] = deque()  # what FromQueue takes its numbers from
REFUSED: Counter[Any] = Counter()  # how often a value has been refused by a bolt that raises


def forget() -> None:
    SEEN.clear()
    TOLD.clear()
    REFUSED.clear()
    QUEUE.clear()


def run_through(topology: Any, workers: int = 2, seconds: float = 1.0, **config: Any) -> LocalCluster:
    """Runs a topology whose spouts come to an end, until everything is through and it has ended."""
    cluster = LocalCluster(workers)
    graph = cluster.submit(topology, config=config)
    cluster.run(seconds)
    drain(cluster, graph.name)
    return cluster


def drain(cluster: LocalCluster, name: str, seconds: float = 60.0) -> None:
    """Ends a topology as `millrace kill` does; an error if it does not get done by itself."""
    cluster.stop(name, wait=10 * seconds)
    cluster.run_until(lambda: name not in cluster.master.topologies, seconds)


def spouts_done(cluster: LocalCluster, spouts: int = 2) -> bool:
    """All tasks of `numbers` are there, have sent everything, and have been told that it is done."""
    tasks = [task.component for task in cluster.tasks("numbers")]
    return len(tasks) == spouts and all(spout and spout.exhausted and not spout.unacked_tuples
                                        for spout in tasks)


class Late(LocalCluster):
    """The slots in `late` do not hear of new assignments until `hear`."""

    late: tuple[int, ...] = ()

    def tell(self, event: Any) -> None:
        deaf = {slot: self.workers.pop(slot) for slot in set(self.late) & set(self.workers)}
        super().tell(event)
        for slot, worker in deaf.items():
            self.workers.setdefault(slot, worker)  # unless it has just been started anew

    def hear(self) -> None:
        late, self.late = self.late, ()
        for slot in set(late) & set(self.workers) & set(self.master.workers):
            if self.workers[slot].generation == self.master.workers[slot].address.generation:
                self.workers[slot].assign(self.master.distribution().parts[self.node(slot).name])


def meter(cluster: LocalCluster, component: str, name: str) -> int:
    return sum(getattr(task.meters, name) for task in cluster.tasks(component))


def counter(cluster: LocalCluster, name: str) -> int:
    return sum(worker.counters[name] for worker in cluster.workers.values())


def errors(cluster: LocalCluster) -> list[str]:
    return [error["error"] for worker in cluster.workers.values() for error in worker.errors]


# ---- spouts ----


class Numbers(GeneratorSpout):
    """0, 1, 2 … `limit` - 1, whatever its parallelism. Survives the loss of its worker."""

    outputs = ["n"]

    def generate(self, position: int) -> tuple[int]:
        return (self.ordinal(position),)


class NumbersArrow(ArrowGeneratorSpout):
    outputs = ["n"]

    def generate_arrow(self, first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array(range(first, first + count), pa.int64())], names=["n"])


class Counting(Spout):
    """0 … `limit` - 1 with the id `#n`; writes down what it is told and sends nothing again."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next, self.limit = 0, storm_conf.get("limit", 10)

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1], tup_id=f"#{self.next - 1}")

    def ack(self, tup_id: Any) -> None:
        TOLD.append(("ack", tup_id))

    def fail(self, tup_id: Any) -> None:
        TOLD.append((self.fail_cause, tup_id))


class WithoutIds(Counting):
    """The odd numbers are not tracked."""

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1], tup_id=None if self.next % 2 == 0 else self.next - 1)


class Reliable(ReliableSpout):
    """0 … `limit` - 1, sent again when they fail; writes down what it is told."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next, self.limit = 0, storm_conf.get("limit", 10)

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1], tup_id=self.next - 1)

    def ack(self, tup_id: Any) -> None:
        TOLD.append(("ack", tup_id))
        super().ack(tup_id)

    def fail(self, tup_id: Any) -> None:
        TOLD.append((self.fail_cause, tup_id))
        super().fail(tup_id)


class FromQueue(ReliableSpout):
    """Takes numbers from QUEUE, which others take from too: what it took and has not seen through is its own alone."""

    outputs = ["n"]

    def next_tuple(self) -> None:
        if QUEUE:
            number = QUEUE.popleft()
            self.emit([number], tup_id=number)


# ---- bolts that pass on ----


class Pass(Bolt):
    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n])


class PassBlocking(Pass):
    blocking = True


class PassRows(Bolt):
    outputs = ["n"]

    def process_rows(self, rows: list[Any]) -> None:
        for row in rows:
            self.emit((row.n,))


class PassArrow(Bolt):
    outputs = ["n"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        self.emit_arrow(batch)


# ---- bolts at the end ----


class Sink(Bolt):
    """Keeps what it gets under its own name; a tuple of one value as that value."""

    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append(tup.values[0] if len(tup.values) == 1 else tuple(tup.values))


class SinkRows(Bolt):
    def process_rows(self, rows: list[Any]) -> None:
        SEEN[self.component_name] += [row.n for row in rows]


class SinkArrow(Bolt):
    def process_arrow(self, batch: pa.RecordBatch) -> None:
        SEEN[self.component_name] += batch.column("n").to_pylist()


class SinkBlocking(Sink):
    blocking = True


class SinkByTask(Bolt):
    """Keeps (task index, value or values)."""

    def process(self, tup: Tuple) -> None:
        values = tup.values[0] if len(tup.values) == 1 else tuple(tup.values)
        SEEN[self.component_name].append((self.task_index, values))


class Never(Bolt):
    """Never acks."""

    auto_ack = False

    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append(tup.values.n)


# ---- bolts that raise ----


class Refusal(Exception):
    pass


def refuse(bolt: Bolt, n: int) -> None:
    """Raise for the numbers in the setting `poison`, as often as `refusals` says (absent: always)."""
    if n in bolt.storm_conf.get("poison", ()) and REFUSED[n] < bolt.storm_conf.get("refusals", 1_000_000):
        REFUSED[n] += 1
        raise Refusal(f"not {n}")


class Picky(Bolt):
    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        refuse(self, tup.values.n)
        self.emit([tup.values.n])


class PickyBlocking(Picky):
    blocking = True


class PickyRows(Bolt):
    outputs = ["n"]

    def process_rows(self, rows: list[Any]) -> None:
        for row in rows:
            refuse(self, row.n)
        for row in rows:
            self.emit([row.n])


class PickyArrow(Bolt):
    outputs = ["n"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        for n in batch.column("n").to_pylist():
            refuse(self, n)
        self.emit_arrow(batch)


class Lenient(Picky):
    """An exception does not fail the tuple: it is neither acked nor failed."""

    auto_fail = False


# ---- batches ----


class Sums(BatchingBolt):
    """The sum of each batch, by parity; refuses batches that hold poison."""

    outputs = ["parity", "total"]
    ticks_between_batches = 1

    def group_key(self, tup: Tuple) -> int:
        return tup.values.n % 2

    def process_batch(self, key: int, tups: list[Tuple]) -> None:
        for tup in tups:
            refuse(self, tup.values.n)
        TOLD.append(("batch", key, len(tups)))
        self.emit([key, sum(tup.values.n for tup in tups)])


class TicklessSums(TicklessBatchingBolt):
    outputs = ["parity", "total"]
    secs_between_batches = 0.3

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        TOLD.append(("batch", len(tups)))
        self.emit([0, sum(tup.values.n for tup in tups)])


class Doubled(Bolt):
    """Arrow in, Arrow out, by a computation."""

    outputs = ["n"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        self.emit_arrow(pa.record_batch([pc.multiply(batch.column(0), 2)], names=["n"]))


# ---- streams ----


class EvenOdd(Bolt):
    """Evens on the default stream, odds on another, every tenth on a third that nobody has to read."""

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
    """Where each tuple came from: component, stream, field names, values."""

    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append((tup.component, tup.stream, tup.values._fields, tuple(tup.values)))


class ToChosen(Bolt):
    """Sends n to task n mod 3 of `direct_sink`, and says so on its default stream."""

    outputs = [Stream(["n"], "chosen", direct=True), "n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.targets = sorted(int(task) for task, name in context["task->component"].items() if name == "direct_sink")

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        self.emit([n], stream="chosen", direct_task=self.targets[n % len(self.targets)])
        self.emit([n])


class NeedsIds(Bolt):
    """Asks where its tuples go."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        went = self.emit([tup.values.n], need_task_ids=True)
        TOLD.append((tup.values.n, went))


class TaskIdSink(Bolt):
    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append((tup.values.n, self.task_id))


class Marker(Bolt):
    """Emits tuples that have no fields at all."""

    outputs = [Stream([], "mark")]

    def process(self, tup: Tuple) -> None:
        self.emit([], stream="mark")


class Nested(Spout):
    """One tuple with values of every kind."""

    outputs = ["n", "value"]
    VALUES = [[1, [2, {"k": None}]], {"a": {"b": [b"x", 1.5, True, 2**70]}}, (1, (2, 3)), "ß", -(2**70), None, b"", 0.0]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next = 0

    def next_tuple(self) -> None:
        if self.next < len(self.VALUES):
            self.emit([self.next, self.VALUES[self.next]], tup_id=self.next)
            self.next += 1


class Grabby(Bolt):
    """Changes the nested values it gets."""

    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append(repr(tup.values.value))
        if isinstance(tup.values.value, list):
            tup.values.value.append("grabbed")


def to_both_ends(values: Any, tasks: int) -> list[int]:
    return sorted({0, tasks - 1})


def by_remainder(values: Any, tasks: int) -> list[int]:
    return [values[0] % tasks]


# ---- acks and anchors ----


class ByHand(Bolt):
    """Acks what it has at each tick, by tuple or, with the setting `by_id`, by id. Fails the poison."""

    auto_ack = False
    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.waiting: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        self.waiting.append(tup)

    def process_tick(self, tup: Tuple) -> None:
        waiting, self.waiting = self.waiting, []
        for old in waiting:
            which = old.id if self.storm_conf.get("by_id") else old
            try:
                refuse(self, old.values.n)
            except Refusal:
                self.fail(which)
            else:
                self.emit([old.values.n], anchors=[which])
                self.ack(which)


class Anchored(Bolt):
    """Emits with the anchors that the setting `anchors` asks for."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        how = self.storm_conf["anchors"]
        if how == "default":
            self.emit([tup.values.n])
        else:
            self.emit([tup.values.n], anchors={"tuple": [tup], "id": [tup.id], "none": []}[how])


class Unanchored(Bolt):
    auto_anchor = False
    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n])


class AcksTwice(Bolt):
    """Acks by itself though it need not."""

    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append(tup.values.n)
        self.ack(tup)
        self.ack(tup.id)


class FailsItself(Bolt):
    """Fails the poison by a call of fail and not by an exception."""

    def process(self, tup: Tuple) -> None:
        try:
            refuse(self, tup.values.n)
        except Refusal:
            self.fail(tup)
        else:
            SEEN[self.component_name].append(tup.values.n)


class Pairs(Bolt):
    """Emits the sum of each two tuples, anchored to both."""

    auto_ack = False
    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.first: Tuple | None = None

    def process(self, tup: Tuple) -> None:
        if self.first is None:
            self.first = tup
            return
        first, self.first = self.first, None
        self.emit([first.values.n + tup.values.n], anchors=[first, tup])
        self.ack(first)
        self.ack(tup)


class GrabbyRows(Bolt):
    """Empties the list of rows it gets."""

    named_rows = False

    def process_rows(self, rows: list[Any]) -> None:
        SEEN[self.component_name] += [row[0] for row in rows]
        rows.clear()


# ---- components that misbehave ----


class RaisesAfterEmit(Spout):
    """Raises after every fifth tuple, until `limit`."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next, self.limit = 0, storm_conf["limit"]

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1], tup_id=self.next - 1)
            if self.next % 5 == 0:
                raise Refusal("tired")


class RaisesWhenTold(Reliable):
    """Raises for every tenth tuple that it is told of, the first time."""

    def ack(self, tup_id: Any) -> None:
        super().ack(tup_id)
        if tup_id % 10 == 0:
            raise Refusal("do not tell me")

    def fail(self, tup_id: Any) -> None:
        super().fail(tup_id)
        if tup_id % 10 == 0:
            raise Refusal("do not tell me")


class ReusesItsList(ReliableSpout):
    """Emits the same list again and again, with other values in it."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.row, self.next, self.limit = [0], 0, storm_conf["limit"]

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.row[0] = self.next
            self.emit(self.row, tup_id=self.next)
            self.next += 1


class ListIds(Counting):
    """Its ids are lists, as those of a JSON source may be."""

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1], tup_id=["id", self.next - 1])

    def fail(self, tup_id: Any) -> None:
        super().fail(tup_id)
        self.emit([tup_id[1]], tup_id=tup_id)


class Texts(Counting):
    """Numbers as text; number 5 is half of a surrogate pair, which no UTF-8 has."""

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit(["\ud800" if self.next == 6 else str(self.next - 1)], tup_id=self.next - 1)


class MakesBadText(Bolt):
    """Number 5 becomes half of a surrogate pair."""

    outputs = ["text"]

    def process(self, tup: Tuple) -> None:
        self.emit(["\ud800" if tup.values.n == 5 else str(tup.values.n)])


class RefusesBadText(Bolt):
    outputs = ["text"]

    def process(self, tup: Tuple) -> None:
        if tup.values[0] == "\ud800":
            raise Refusal("what is this?")
        self.emit([tup.values[0]])


class CannotStart(Bolt):
    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        raise Refusal("no start")

    def process(self, tup: Tuple) -> None:
        TOLD.append(("processed without initialize", tup.values.n))


class CannotBeMade(CannotStart):
    def __init__(self) -> None:
        raise Refusal("no instance")


class Reborn(Bolt):
    """A new instance after each exception; each knows its number."""

    exit_on_exception = True
    outputs = ["instance", "n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        REFUSED["instances"] += 1
        self.instance = REFUSED["instances"]
        if self.instance > storm_conf.get("instances", 1_000_000):
            raise Refusal("no more of me")

    def process(self, tup: Tuple) -> None:
        refuse(self, tup.values.n)
        self.emit([self.instance, tup.values.n])


class RebornBlocking(Reborn):
    blocking = True


class RebornRows(Reborn):
    process = None  # type: ignore[assignment]

    def process_rows(self, rows: list[Any]) -> None:
        for row in rows:
            refuse(self, row.n)
        for row in rows:
            self.emit([self.instance, row.n])


class Intruder(Bolt):
    """Sends directly to a task of `sink`, which does not read the direct stream."""

    outputs = ["n", Stream(["n"], "chosen", direct=True)]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.sink = next(int(task) for task, name in context["task->component"].items() if name == "sink")

    def process(self, tup: Tuple) -> None:
        if tup.values.n == 5:
            self.emit([tup.values.n], stream="chosen", direct_task=self.sink)
        self.emit([tup.values.n])


class BadEmits(Bolt):
    """Emits what its stream cannot take for some numbers, and `n` for the others."""

    outputs = ["n", Stream(["n"], "chosen", direct=True)]

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        if n == 1:
            self.emit([n, n])
        elif n == 2:
            self.emit([object()])
        elif n == 3:
            self.emit([n], stream="nowhere")
        elif n == 4:
            self.emit([n], direct_task=1)
        elif n == 5:
            self.emit([n], stream="chosen")
        elif n == 6:
            self.emit([n], stream="chosen", direct_task=12345)
        elif n == 7:
            self.emit("7")
        elif n == 8:
            self.emit_arrow(pa.record_batch([pa.array([n])], names=["m"]))
        else:
            self.emit([n])


class BadAcks(Bolt):
    """Acks, fails and anchors to what never was a tuple."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        self.ack("no such tuple")
        self.ack("1.2:3")
        self.fail(f"{tup.id}9999")
        self.ack(None)  # type: ignore[arg-type]
        self.emit([tup.values.n], anchors=tup)
        SEEN[self.component_name].append(tup.values.n)


class BadReports(Bolt):
    """Reports what cannot travel, and raises errors that cannot be written."""

    def process(self, tup: Tuple) -> None:
        if tup.values.n == 0:
            self.report_metric("strange", object())
        if tup.values.n == 1:
            raise Refusal("\ud800")
        SEEN[self.component_name].append(tup.values.n)


class TickRaises(Bolt):
    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append(tup.values.n)

    def process_tick(self, tup: Tuple) -> None:
        TOLD.append(("tick", tup.values[0], self.is_tick(tup)))
        raise Refusal("no ticks please")


class CloseRaises(Sink):
    def close(self) -> None:
        TOLD.append(("closed", self.component_name))
        raise Refusal("cannot close")


class MixedTypes(Bolt):
    """What no column of a table can hold together: number 3 becomes a text, number 4 is beyond 64 bits."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        self.emit([{3: "three", 4: 2**70}.get(n, n)])


def divides(values: Any, tasks: int) -> list[int]:
    return [7 // (values[0] - 5) % tasks]


def out_of_range(values: Any, tasks: int) -> list[int]:
    return [tasks if values[0] == 5 else 0]


class StartsLater(Pass):
    """Starts at the third attempt."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        REFUSED["starts"] += 1
        if REFUSED["starts"] < 3:
            raise Refusal("not yet")


# ---- flow ----


class NumbersBlocking(Numbers):
    blocking = True


class Burst(Bolt):
    """A hundred tuples for each."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        for k in range(100):
            self.emit([tup.values.n * 100 + k])


class Ticked(Sink):
    """Writes its ticks down, each with the number of tuples seen before."""

    def process_tick(self, tup: Tuple) -> None:
        TOLD.append((self.task_index, self.is_tick(tup), tup.component, tup.task, tuple(tup.values)))


class EmitsOnTick(Bolt):
    """Says at each tick how many it has had."""

    outputs = ["count"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.count = 0

    def process(self, tup: Tuple) -> None:
        self.count += 1

    def process_tick(self, tup: Tuple) -> None:
        self.emit([self.count])


class Lives(Sink):
    """Writes down when it is made, started and ended, and what it gets afterwards."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        TOLD.append(("initialize", self.component_name, self.task_index))

    def process(self, tup: Tuple) -> None:
        super().process(tup)
        if ("close", self.component_name, self.task_index) in TOLD:
            TOLD.append(("process after close",))

    def close(self) -> None:
        TOLD.append(("close", self.component_name, self.task_index))


class TickedBlocking(Ticked):
    blocking = True


class SumsBlocking(Sums):
    blocking = True


class ByTheHundred(Bolt):
    """Acks when it has a hundred, as a bolt does that writes to a database."""

    auto_ack = False

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.waiting: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        self.waiting.append(tup)
        if len(self.waiting) == self.storm_conf["many"]:
            waiting, self.waiting = self.waiting, []
            for old in waiting:
                SEEN[self.component_name].append(old.values.n)
                self.ack(old)


class Switched(Numbers):
    """Writes down when it is switched on and off."""

    def activate(self) -> None:
        super().activate()
        TOLD.append(("activate", self.task_index))

    def deactivate(self) -> None:
        TOLD.append(("deactivate", self.task_index))


class AllAtOnce(Numbers):
    """The whole limit in one call of next_tuple."""

    def next_tuple(self) -> None:
        while not self.exhausted:
            super().next_tuple()

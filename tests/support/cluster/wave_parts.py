"""Components for the tests of waves. Their output is kept in this module, as all workers share one process."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any, ClassVar

from millrace.api.bolt import BatchingBolt, Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState, ListState
from millrace.api.sink import TwoPhaseSink
from millrace.api.spout import Spout
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout

KEYS = 17
STAGED: dict[tuple[int, int, int, int], list[Any]] = {}  # (task, epoch, wave or -1, order) -> rows not visible yet
_orders = itertools.count()
VISIBLE: list[Any] = []
VISIBLE_BY_TASK: defaultdict[int, list[Any]] = defaultdict(list)  # the same rows by task of the sink
WRITTEN: list[Any] = []  # rows of a sink without two-phase commit
WRITTEN_BY_TASK: defaultdict[int, list[Any]] = defaultdict(list)  # the same rows by task of the sink
RECEIVED: list[tuple[int, int, str, int]] = []  # receiver, sender, key and number of each row of `Pass` and `Tally`
FAIL_COMMIT: set[int] = set()  # waves whose first commit raises
FAIL_WRITE: list[Exception] = []  # raised by the sink's next writes
FAIL_SNAPSHOT: list[Exception] = []  # raised by the tally's next snapshots
SPOUTS_SNAPSHOT = False
POISON: set[tuple[str, int]] = set()  # rows that the sink always rejects


def forget() -> None:
    global SPOUTS_SNAPSHOT
    SPOUTS_SNAPSHOT = False
    FAIL_SNAPSHOT.clear()
    STAGED.clear()
    VISIBLE.clear()
    VISIBLE_BY_TASK.clear()
    WRITTEN.clear()
    WRITTEN_BY_TASK.clear()
    RECEIVED.clear()
    FAIL_COMMIT.clear()
    FAIL_WRITE.clear()
    POISON.clear()


class Numbers(GeneratorSpout):
    outputs: ClassVar[list[str]] = ["key", "number"]

    def generate(self, position: int) -> tuple[Any, ...]:
        number = self.ordinal(position)
        return f"k{number % KEYS}", number

    def snapshot(self) -> Any:
        return {"at": self._next_position} if SPOUTS_SNAPSHOT else None

    def restore(self, snapshot: Any) -> None: ...


class Pass(Bolt):
    outputs: ClassVar[list[str]] = ["key", "number"]

    def process(self, tup: Tuple) -> None:
        RECEIVED.append((self.task_id, tup.task, *tup.values))
        self.emit(tup.values)


class PassRows(Bolt):
    outputs: ClassVar[list[str]] = ["key", "number"]

    def process_rows(self, rows: list[Any]) -> None:
        self.emit_rows(rows)


class Tally(Bolt):
    """Counts by key, keeps the last numbers of each key, and counts all tuples."""

    outputs: ClassVar[list[str]] = ["key", "number", "count"]
    counts = CounterState()
    recent = ListState()

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def process(self, tup: Tuple) -> None:
        key, number = tup.values
        RECEIVED.append((self.task_id, tup.task, key, number))
        self.counts[key] += 1
        recent = self.recent[key]
        recent.append(number)
        del recent[:-3]
        self.state[key] = {"sum": self.state.get(key, {"sum": 0})["sum"] + number}
        self.seen += 1
        self.emit((key, number, self.counts[key]))

    def snapshot(self) -> Any:
        if FAIL_SNAPSHOT:
            raise FAIL_SNAPSHOT.pop()
        return {"seen": self.seen, "types": (1, {2})}

    def restore(self, snapshot: Any) -> None:
        assert snapshot["types"] == (1, {2})  # types are preserved
        self.seen = snapshot["seen"]


class FakeLedger(TwoPhaseSink):
    """Stages rows outside the task, as a file would; committed rows appear in VISIBLE."""

    named_rows: ClassVar[bool] = False

    def process_rows(self, rows: list[Any]) -> None:
        if FAIL_WRITE:
            raise FAIL_WRITE.pop()
        for row in rows:
            if (row[0], row[1]) in POISON:
                raise ValueError(f"{row} is not to my taste")
        if not self.exactly_once:
            WRITTEN.extend(rows)
            WRITTEN_BY_TASK[self.task_index].extend(rows)
            return
        STAGED[self.task_index, self.epoch, -1, next(_orders)] = list(rows)

    def prepare(self, wave: int) -> None:
        for key in [key for key in STAGED if key[:3] == (self.task_index, self.epoch, -1)]:
            STAGED[self.task_index, self.epoch, wave, key[3]] = STAGED.pop(key)

    def commit(self, wave: int) -> None:
        if wave in FAIL_COMMIT:
            FAIL_COMMIT.discard(wave)
            raise OSError("the disk is tired")
        self._publish(wave, self.epoch)

    def take_over(self, staged: Any) -> None: ...

    def recover(self, wave: int, epoch: int) -> None:
        self._publish(wave, epoch)
        for key in [key for key in STAGED if key[0] == self.task_index and key[1] < self.epoch]:
            del STAGED[key]

    def _publish(self, wave: int, epoch: int) -> None:
        ready = [key for key in STAGED if key[:2] == (self.task_index, epoch) and 0 <= key[2] <= wave]
        for key in sorted(ready, key=lambda key: (key[2], key[3])):
            rows = STAGED.pop(key)
            VISIBLE.extend(rows)
            VISIBLE_BY_TASK[self.task_index].extend(rows)


class FakeBatches(BatchingBolt):
    """Emits its batch at waves; ticks are too rare to matter."""

    outputs: ClassVar[list[str]] = ["key", "number"]

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        for tup in tups:
            self.emit(tup.values)


class Plain(Spout):
    outputs: ClassVar[list[str]] = ["key", "number"]

    def next_tuple(self) -> None: ...


class Exact(Topology):
    """Has two paths from the spouts to the tally, so that waves must be aligned."""

    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.2,
                                        "topology.chunk.tuples": 10, "topology.checkpoint.timeout.secs": 3.0}
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    two = PassRows.spec(inputs={one: Grouping.SHUFFLE}, par=2)
    tally = Tally.spec(inputs={one: Grouping.fields("key"), two: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


class KeyedTally(Bolt):
    """Keeps only keyed state."""

    outputs: ClassVar[list[str]] = ["key", "number", "count"]

    def process(self, tup: Tuple) -> None:
        key, number = tup.values
        self.state[key] = count = self.state.get(key, 0) + 1
        self.emit((key, number, count))


class ExactKeyed(Topology):
    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    two = PassRows.spec(inputs={one: Grouping.SHUFFLE}, par=2)
    tally = KeyedTally.spec(inputs={one: Grouping.fields("key"), two: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


class AtLeast(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.checkpoint.interval.secs": 0.2, "topology.chunk.tuples": 10,
                                        "topology.message.timeout.secs": 2.0, "topology.checkpoint.timeout.secs": 3.0}
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Tally.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


class Batched(Topology):
    config: ClassVar[dict[str, Any]] = {**Exact.config, "topology.tick.tuple.freq.secs": 1000.0}
    numbers = Numbers.spec(par=2)
    batches = FakeBatches.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    ledger = FakeLedger.spec(inputs={batches: Grouping.SHUFFLE}, par=2)


class NotReplayable(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once"}
    plain = Plain.spec()
    ledger = FakeLedger.spec(inputs={plain: Grouping.SHUFFLE})


def expected_rows(limit: int, ways: int) -> Counter[tuple[str, int]]:
    """The number of times each (key, number) must be visible."""
    return Counter({(f"k{number % KEYS}", number): ways for number in range(limit)})


def expected_counts(limit: int, ways: int) -> dict[str, int]:
    counts: defaultdict[str, int] = defaultdict(int)
    for number in range(limit):
        counts[f"k{number % KEYS}"] += ways
    return dict(counts)


class AtMost(Topology):
    config: ClassVar[dict[str, Any]] = {**AtLeast.config, "topology.guarantee": "at-most-once"}
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Tally.spec(inputs={one: Grouping.fields("key")}, par=3)
    ledger = FakeLedger.spec(inputs={tally: Grouping.SHUFFLE}, par=2)

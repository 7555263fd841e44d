"""Batches without Spark: time that passes between them, for ticks, batching bolts and expiring entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from millrace.api.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import State
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.sinks import JsonLinesSink
from millrace.runtime.clock import ManualClock
from support.cluster.batch_parts import Digits, N, Source, all_in, fail_after, numbers_in, run_to_the_end, start


class OnTick(Bolt):
    """Emits at each tick the number of tuples so far."""

    outputs: ClassVar[list[str]] = ["n"]
    config: ClassVar[dict[str, Any]] = {"topology.tick.tuple.freq.secs": 10}

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.had = 0

    def process(self, tup: Tuple) -> None:
        self.had += 1

    def process_tick(self, tup: Tuple) -> None:
        self.emit([self.had])


class Ticking(Topology):
    numbers = Source.spec(par=1)
    ticked = OnTick.spec(inputs={numbers: Grouping.SHUFFLE}, par=1)
    sink = JsonLinesSink.spec(inputs={ticked: Grouping.SHUFFLE}, par=1)


def test_a_tick_that_falls_due_between_batches_comes_once_in_the_next(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    batches = start(Ticking, tmp_path, clock=clock)
    visible = []
    for seconds in (0, 4, 4, 4, 4, 40, 0, 10):
        clock.advance(seconds)
        batches.batch()
        visible.append(numbers_in(tmp_path / "out"))
    assert visible == [[], [], [], [80], [80], [80, 120], [80, 120], [80, 120, 160]]


class ByDigit(BatchingBolt):
    """Groups numbers by their last digit and emits them at each tick."""

    outputs: ClassVar[list[str]] = ["n"]
    config: ClassVar[dict[str, Any]] = {"topology.tick.tuple.freq.secs": 10}

    def group_key(self, tup: Tuple) -> int:
        return int(tup.values.n % 10)

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        assert {tup.values.n % 10 for tup in tups} == {key}
        for tup in tups:
            self.emit(tup.values)


class ByDigitOnTime(ByDigit, TicklessBatchingBolt):
    secs_between_batches: ClassVar[float] = 10


class Grouped(Topology):
    numbers = Source.spec(par=2)
    grouped = ByDigit.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    sink = JsonLinesSink.spec(inputs={grouped: Grouping.SHUFFLE}, par=2)


class GroupedOnTime(Topology):
    numbers = Source.spec(par=2)
    grouped = ByDigitOnTime.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    sink = JsonLinesSink.spec(inputs={grouped: Grouping.SHUFFLE}, par=2)


@pytest.mark.parametrize("topology", [Grouped, GroupedOnTime])
def test_a_batching_bolt_emits_everything_by_the_end_of_the_batch(tmp_path: Path, topology: type[Topology]) -> None:
    """It emits even before its batch is due, because the checkpoint does not contain pending tuples."""
    clock = ManualClock(1000.0)
    batches = start(topology, tmp_path, processes=2, clock=clock)
    for number, seconds in enumerate((0, 3, 30, 3)):
        clock.advance(seconds)
        if number == 2:
            fail_after(batches, stage=1)
        batches.batch()
        assert len(numbers_in(tmp_path / "out")) == 40 * (number + 1)
    run_to_the_end(batches)
    assert numbers_in(tmp_path / "out") == list(range(N))


class Fresh(Bolt):
    """Passes on digits that it has not seen for a while."""

    outputs: ClassVar[list[str]] = ["n", "digit"]
    seen = State(ttl=10)

    def process(self, tup: Tuple) -> None:
        if tup.values.digit not in self.seen:
            self.emit(tup.values)
            self.seen[tup.values.digit] = True


class Freshly(Topology):
    numbers = Source.spec(par=1)
    digits = Digits.spec(inputs={numbers: Grouping.SHUFFLE}, par=1)
    fresh = Fresh.spec(inputs={digits: Grouping.fields("digit")}, par=2)
    sink = JsonLinesSink.spec(inputs={fresh: Grouping.SHUFFLE}, par=1)


@pytest.mark.parametrize("processes", [1, 2])
def test_entries_expire_between_batches(tmp_path: Path, processes: int) -> None:
    """Entries that stayed in the process, came from the store, or moved to another task."""
    clock = ManualClock(1000.0)
    batches = start(Freshly, tmp_path, processes, clock=clock)
    visible = []
    for number, seconds in enumerate((0, 6, 3, 2, 6, 6, 6)):
        clock.advance(seconds)
        all_in(batches, number % processes)
        if number == 4:
            batches.scale("fresh", 3)
        batches.batch()
        visible.append(len(numbers_in(tmp_path / "out")) // 10)
    assert visible == [1, 1, 1, 2, 2, 3, 3]

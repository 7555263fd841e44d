"""Topologies that run in batches without Spark, and helpers to run and check them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.sinks import JsonLinesSink
from millrace.model.graph import batched, graph_of
from millrace.testing.local_batches import AttemptFailed, LocalBatches
from support.cluster.plain_parts import Numbers
from support.cluster.records import CLOSED, MADE
from support.rows import rows_in
from support.suites.kept_state import state_of

N = 200


def start(topology: type[Topology], tmp_path: Path, processes: int = 1, most_tuples: int = 20, config: Any = (),
          **more: Any) -> LocalBatches:
    """Start a topology whose spout tasks emit `most_tuples` per batch."""
    graph = batched(graph_of(topology, config={"path": str(tmp_path / "out"), "limit": N, "burst": 5,
                                               "topology.chunk.tuples": 5, **dict(config)}))
    return LocalBatches(graph, str(tmp_path / "store"), processes, most_tuples=most_tuples, **more)


def run_to_the_end(batches: LocalBatches) -> None:
    for _ in range(100):
        if not sum(task.meters["emitted"] for report in batches.batch() for task in report.tasks):
            return
    raise AssertionError("the spouts do not end")


def all_in(batches: LocalBatches, process: int) -> None:
    batches.choose = lambda task: process


def fail_after(batches: LocalBatches, stage: int) -> None:
    """Abort an attempt when all of the stage is done."""
    last = len(batches.work(0, 0).stages().partitions[stage]) - 1
    batches.fault = lambda at, partition: (at, partition) == (stage, last)
    with pytest.raises(AttemptFailed):
        batches.batch()
    batches.fault = lambda at, partition: False


def numbers_in(directory: Path) -> list[int]:
    return sorted(row["n"] for row in rows_in(directory))


def counters(batches: LocalBatches) -> Counter[str]:
    """Run one more batch; returns its counters."""
    total: Counter[str] = Counter()
    for report in batches.batch():
        total.update(report.counters)
    return total


# ---- components ----


class Remembers:
    """Counts its instances."""

    component_name: str
    task_index: int

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)  # type: ignore[misc]
        MADE[f"{self.component_name}[{self.task_index}]"] += 1

    def close(self) -> None:
        CLOSED.append(f"{self.component_name}[{self.task_index}]")
        super().close()  # type: ignore[misc]


class Source(Remembers, Numbers):
    pass


class Tally(Remembers, Bolt):
    """Counts the last digits and passes every number on."""

    outputs: ClassVar[list[str]] = ["n"]
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        self.counts[tup.values.digit] += 1
        self.emit([tup.values.n])


class Digits(Bolt):
    outputs: ClassVar[list[str]] = ["n", "digit"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.n, tup.values.n % 10])


class Tallied(Topology):
    numbers = Source.spec(par=2)
    digits = Digits.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Tally.spec(inputs={digits: Grouping.fields("digit")}, par=3)
    sink = JsonLinesSink.spec(inputs={tally: Grouping.SHUFFLE}, par=2)


def check_tally(batches: LocalBatches, out: Path) -> None:
    assert numbers_in(out) == list(range(N))
    assert counts_of(batches) == {digit: N // 10 for digit in range(10)}


def counts_of(batches: LocalBatches) -> dict[Any, Any]:
    return state_of(batches.checkpoints.store, batches.graph)["tally"]["counts"]

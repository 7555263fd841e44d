"""A bolt that acks by hand and moves: it has time to ack what it holds, and what it holds even then is failed."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from millrace.api.bolt import BatchingBolt, Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.moved_runs import at_rest, flaws, until_processed
from support.cluster.wave_runs import start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 2000
SWITCH_SECONDS = 2.0
TICKS = "topology.tick.tuple.freq.secs"


class Acking(Bolt):
    """Acks at each tick what came before it, but nothing more once `stops` is set."""

    auto_ack = False
    outputs: ClassVar[list[str]] = ["key", "number", "count"]
    stops: ClassVar[bool] = False

    def initialize(self, conf: Any, context: Any) -> None:
        self.held: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        self.held.append(tup)

    def process_tick(self, tup: Tuple) -> None:
        held, self.held = ([], self.held) if self.stops else (self.held, [])
        for old in held:
            self.emit((*old.values, 1), anchors=[old])
            self.ack(old)


class Batching(BatchingBolt):
    outputs: ClassVar[list[str]] = ["key", "number", "count"]

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        for tup in tups:
            self.emit((*tup.values, 1))


class Acks(Topology):
    config: ClassVar[dict[str, Any]] = {**parts.AtLeast.config, "topology.message.timeout.secs": 20.0,
                                        "topology.handover.switch.secs": SWITCH_SECONDS}
    numbers = parts.Numbers.spec(par=2)
    acking = Acking.spec(inputs={numbers: Grouping.SHUFFLE}, par=2, config={TICKS: 0.3})
    batching = Batching.spec(inputs={numbers: Grouping.SHUFFLE}, par=2, config={TICKS: 1000.0})
    ledger = parts.FakeLedger.spec(inputs={acking: Grouping.SHUFFLE, batching: Grouping.SHUFFLE}, par=2)


def moved(component: str) -> LocalCluster:
    """A cluster on which a task has moved while it held tuples."""
    cluster, task = start(Acks, limit=LIMIT), TaskId(component, 0)
    until_wave(cluster, 1, "acks")
    moving = next(each for each in tasks(cluster, component) if each.name == task)
    cluster.run_until(lambda: moving.acks.unacked.tuples > 10)
    cluster.move("acks", task, (cluster.where("acks")[task] + 1) % 3)
    cluster.run_until(lambda: at_rest(cluster, "acks"))
    return cluster


def seconds(cluster: LocalCluster) -> float:
    (row,) = cluster.migrations.past()
    assert row["outcome"] == "done"
    return float(row["phases_ms"]["switch"]) / 1000


def replayed(cluster: LocalCluster) -> int:
    return sum(task.meters.replayed for task in tasks(cluster, "numbers"))


def test_what_a_moving_task_acks_in_time_is_not_replayed() -> None:
    cluster = moved("acking")
    until_processed(cluster)
    assert not flaws(cluster), (flaws(cluster), cluster.said)
    assert seconds(cluster) < 0.5, "it waits no longer than until its next tick"
    assert len(parts.WRITTEN) == 2 * LIMIT


def test_what_a_moving_task_never_acks_is_failed_after_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acking, "stops", True)
    cluster = moved("acking")
    monkeypatch.setattr(Acking, "stops", False)
    assert SWITCH_SECONDS / 2 <= seconds(cluster) < 0.75 * SWITCH_SECONDS
    until_processed(cluster)
    assert replayed(cluster) > 10
    assert {row[:2] for row in parts.WRITTEN} == set(parts.expected_rows(LIMIT, 1))


def test_a_batch_does_not_wait_for_its_ticks() -> None:
    cluster = moved("batching")
    assert seconds(cluster) < 0.2
    cluster.run(1.0)
    assert not replayed(cluster)

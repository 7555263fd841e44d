"""Migrations while minutes of work wait in the inboxes of a slow bolt: it is drained, captured or replayed, and the record of
the migration says so."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.control.events import Rebalanced, WaveRequested
from millrace.control.waves import IDLE
from millrace.model.graph import TaskId
from millrace.runtime.tasks.bolt import BoltTask
from millrace.testing.local_cluster import LocalCluster
from support.cluster import slow_parts, wave_parts
from support.cluster.slow_parts import FAN, BlockingBursts, Burst, Bursts, SlowTally
from support.cluster.wave_parts import KEYS, FakeLedger, Numbers
from support.cluster.wave_runs import counts

NAME = "bursts"
LIMIT = 60  # numbers, of which each becomes FAN rows
PER_ROW = 0.05
EXACTLY = [Bursts, BlockingBursts]


class BurstsAtLeast(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.message.timeout.secs": 3000.0, "topology.chunk.tuples": 5}
    numbers = Numbers.spec(par=2)
    burst = Burst.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    tally = SlowTally.spec(inputs={burst: Grouping.fields("key")}, par=2)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    wave_parts.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wave_parts.Numbers, "clock", wave_parts.Numbers.clock)
        yield
    slow_parts.SECONDS[:] = [0.0, 0.0]


def full(topology: type[Topology], waiting: int = 200) -> LocalCluster:
    """A cluster in which most of the rows wait for the tally."""
    cluster = LocalCluster(4, nodes=4)
    wave_parts.Numbers.clock = wave_parts.Numbers.wall_clock = staticmethod(cluster.clock.now)
    slow_parts.ADVANCE[:] = [cluster.clock.advance]
    cluster.submit(topology, name=NAME, config={
        "limit": LIMIT, "rate": 200.0, "topology.checkpoint.interval.secs": 1000.0, "topology.checkpoint.timeout.secs": 1000.0,
        "topology.handover.prepare.secs": 1000.0})
    waves = cluster.master.topologies[NAME].waves
    assert waves is not None
    cluster.run_until(lambda: waves.committed == 1 and waves.phase == IDLE)
    slow_parts.SECONDS[:] = [0.0, PER_ROW]
    cluster.run_until(lambda: queued(cluster) > waiting)
    return cluster


def queued(cluster: LocalCluster) -> int:
    return sum(task.queue_length for task in cluster.tasks("tally"))


def migrate(cluster: LocalCluster, strategy: str) -> None:
    """Move the tally and a burst, each to the next worker."""
    complete(cluster, begin(cluster, strategy))


def begin(cluster: LocalCluster, strategy: str) -> dict[TaskId, int]:
    """Request the moves, and return them."""
    where = cluster.where(NAME)
    moves = {task: (where[task] + 1) % 4 for task in (TaskId("tally", 0), TaskId("tally", 1), TaskId("burst", 0))}
    cluster.tell(Rebalanced(NAME, moves, strategy))
    return moves


def complete(cluster: LocalCluster, moves: dict[TaskId, int]) -> None:
    state = cluster.master.topologies[NAME]
    cluster.run_until(lambda: state.migration is None)
    assert moves.items() <= cluster.where(NAME).items()


def flow(cluster: LocalCluster) -> tuple[int, int, int]:
    """Chunks lost and repeated and tuples replayed, by the final record of the migration."""
    cluster.run(2.2)
    record = cluster.migrations.past(NAME)[-1]
    assert (record["outcome"], record["reason"], record["final"]) == ("done", "", True)
    return record["lost"], record["repeated"], record["replayed"]


def finish(cluster: LocalCluster) -> None:
    slow_parts.SECONDS[:] = [0.0, 0.0]
    spouts = cluster.tasks("numbers")
    cluster.run_until(lambda: all(task.component.exhausted for task in cluster.tasks("numbers")))
    assert len(spouts) == 2
    cluster.tell(WaveRequested(NAME))
    cluster.stop(NAME, wait=100)
    cluster.run_until(lambda: NAME not in cluster.master.topologies)


def assert_exact() -> None:
    """Every row once; the rows of a key counted one by one and, from each spout, in the order of emission."""
    assert Counter(number for _, number, _ in wave_parts.VISIBLE) == Counter(range(LIMIT * FAN))
    seen: defaultdict[str, int] = defaultdict(int)
    latest: defaultdict[tuple[str, int], int] = defaultdict(lambda: -1)
    for rows in wave_parts.VISIBLE_BY_TASK.values():
        for key, number, count in rows:
            seen[key] += 1
            assert count == seen[key], f"{key} was counted {count} times at its row {seen[key]}"
            spout = number // FAN % 2
            assert number > latest[key, spout], f"{number} came after {latest[key, spout]}"
            latest[key, spout] = number


def assert_processed_once() -> None:
    """The tally has got every row once, and those of a sender and a key in order."""
    rows = [(sender, key, number) for _, sender, key, number in wave_parts.RECEIVED]
    assert Counter(number for _, _, number in rows) == Counter(range(LIMIT * FAN))
    latest: defaultdict[tuple[int, str, int], int] = defaultdict(lambda: -1)
    for sender, key, number in rows:
        assert number > latest[sender, key, number // FAN % 2]
        latest[sender, key, number // FAN % 2] = number


@pytest.mark.parametrize("topology", EXACTLY)
def test_ccr_captures_what_waits_and_restores_it_in_order(topology: type[Topology]) -> None:
    cluster = full(topology)
    moves = begin(cluster, "ccr")
    cluster.run_until(lambda: all(task.captured for task in cluster.tasks("tally")))  # a chunk that was begun is finished first
    waiting, processed, began = queued(cluster), len(wave_parts.RECEIVED), cluster.clock.now()
    complete(cluster, moves)
    manifest = cluster.master.topologies[NAME].checkpoint
    assert manifest is not None and "tally" in {each.component for each in manifest.records if each.in_flight is not None}
    assert len(wave_parts.RECEIVED) - processed < waiting, "most of the work is still ahead"
    assert cluster.clock.now() - began < 60.0
    assert flow(cluster) == (0, 0, 0)
    finish(cluster)
    assert_exact()
    assert_processed_once()


@pytest.mark.parametrize("topology", EXACTLY)
def test_captured_tasks_process_nothing(topology: type[Topology]) -> None:
    cluster = full(topology)
    executed: dict[tuple[TaskId, int], int] = {}
    step = cluster.step

    def watched(count: int = 1) -> None:
        for _ in range(count):
            step()
            for task in (task for name in ("burst", "tally", "ledger") for task in cluster.tasks(name)):
                if isinstance(task, BoltTask) and task.captured and not task.busy:
                    before = executed.setdefault((task.name, task.incarnation), task.meters.executed)
                    assert task.meters.executed == before, f"{task.name} has processed input after its capture"

    cluster.step = watched  # type: ignore[method-assign]
    migrate(cluster, "ccr")
    cluster.step = step  # type: ignore[method-assign]
    assert {task for task, _ in executed} == {TaskId(name, index) for name in ("burst", "tally", "ledger") for index in (0, 1)}
    finish(cluster)
    assert_exact()


@pytest.mark.parametrize("topology", EXACTLY)
def test_dcr_drains_what_waits(topology: type[Topology]) -> None:
    cluster = full(topology)
    waiting, processed = queued(cluster), len(wave_parts.RECEIVED)
    migrate(cluster, "dcr")
    assert len(wave_parts.RECEIVED) - processed >= waiting
    assert flow(cluster) == (0, 0, 0)
    finish(cluster)
    assert_exact()
    assert_processed_once()


def test_dcr_drains_what_waits_at_least_once() -> None:
    cluster = full(BurstsAtLeast, 100)
    migrate(cluster, "dcr")
    assert flow(cluster) == (0, 0, 0)
    finish(cluster)
    assert_processed_once()


@pytest.mark.parametrize("topology", [Bursts, BurstsAtLeast])
def test_dsm_replays_what_waits(topology: type[Topology]) -> None:
    cluster = full(topology, 15)
    migrate(cluster, "dsm")
    lost, repeated, replayed = flow(cluster)
    assert lost == repeated == 0 < replayed
    if topology is Bursts:
        finish(cluster)
        assert_exact()
    else:
        slow_parts.SECONDS[:] = [0.0, 0.0]
        cluster.run_until(lambda: all(task.component.exhausted and not task.component.unacked_tuples
                                      for task in cluster.tasks("numbers")))
        counted = counts(cluster)
        assert all(counted[f"k{key}"] >= FAN * len(range(key, LIMIT, KEYS)) for key in range(KEYS))
    assert len(wave_parts.RECEIVED) > LIMIT * FAN

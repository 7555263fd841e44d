"""Every strategy of migration with real worker processes, under load: the output is exact, and workers really restart."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.control.migrations import COMPLETED
from millrace.control.strategies.catalogue import STRATEGIES
from millrace.model.graph import ACKER, TaskId
from support.migrations.quick import QUICK
from support.processes.family import alive
from support.processes.forked import ForkedCluster
from support.processes.supplied import SuppliedWorkers
from support.topologies.audited import AuditedStream, StatefulStream, assert_all_exact, assert_never_less

SLOTS = 3
RESTARTING = {"storm", "storm*", "dsm", "dcr", "ccr"}


@pytest.fixture
def cluster() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS) as cluster, SuppliedWorkers(cluster):
        yield cluster


def shifted(stream: AuditedStream) -> dict[TaskId, int]:
    """The next slot for each task."""
    return {task: (place.slot + 1) % SLOTS for task, place in dict(stream.state.places).items() if task.component != ACKER}


def pids(cluster: ForkedCluster) -> dict[int, int]:
    return {slot: connection.hello.pid for slot, connection in dict(cluster.master.connections).items()}


def migrate(cluster: ForkedCluster, stream: StatefulStream, strategy: str,
            placement: dict[TaskId, int] | None = None) -> dict[str, Any]:
    """Move these tasks, or every task to the next slot; returns the record."""
    placement = placement or shifted(stream)
    cluster.master.rebalance(stream.name, placement, strategy, QUICK.get(strategy))
    stream.until(lambda: stream.state.migration is None)
    [record] = [row for row in cluster.master.past_migrations(stream.name) if row["strategy"] == strategy]
    assert (record["outcome"], record["reason"]) == (COMPLETED, ""), stream.story()
    assert placement.items() <= stream.state.plan.placement.items()
    return record


def counters(cluster: ForkedCluster) -> Counter[str]:
    """The counters of all workers, summed up."""
    total: Counter[str] = Counter()
    for connection in dict(cluster.master.connections).values():
        total.update(connection.counters)
    return total


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exactly_once(cluster: ForkedCluster, tmp_path: Path, strategy: str) -> None:
    stream = StatefulStream(cluster.master, tmp_path, f"by {strategy}", rate=500)
    stream.wave(1)
    before = pids(cluster)
    record = migrate(cluster, stream, strategy)
    after = pids(cluster)
    assert set(record["new_pids"]) == (set(after.values()) if strategy in RESTARTING else set())
    if strategy in RESTARTING:
        assert not set(before.values()) & set(after.values()) and not any(map(alive, before.values()))
    else:
        assert after == before
    stream.wave(1)
    assert_all_exact(stream.finish_both())


def test_tstorm_restarts_a_worker_that_it_has_emptied(cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = StatefulStream(cluster.master, tmp_path, "by tstorm", rate=500)
    stream.wave(1)
    before, emptied = pids(cluster), 0
    placement = {task: 1 + number % 2 for number, (task, slot) in enumerate(sorted(stream.state.plan.placement.items()))
                 if slot == emptied}
    record = migrate(cluster, stream, "tstorm", placement)
    after = pids(cluster)
    assert record["new_pids"] == [after[emptied]] and not alive(before.pop(emptied))
    assert before.items() <= after.items(), "the others were not touched"
    stream.wave(1)
    assert_all_exact(stream.finish_both())


@pytest.mark.parametrize("strategy", ["nstorm", "nstorm+"])
def test_at_least_once(cluster: ForkedCluster, tmp_path: Path, strategy: str) -> None:
    stream = StatefulStream(cluster.master, tmp_path, f"by {strategy}", "at-least-once", rate=500)
    stream.wave(1)
    before = pids(cluster)
    assert migrate(cluster, stream, strategy)["new_pids"] == []
    assert pids(cluster) == before
    stream.wave(1)
    assert_never_less(stream.finish_both())


@pytest.mark.parametrize(("strategy", "source"), [("layered", "fragments"), ("handover", "store")])
def test_where_state_comes_from(cluster: ForkedCluster, tmp_path: Path, strategy: str, source: str) -> None:
    """Tasks that stand still until they have their state read fragments in the memory of other workers. Those that work
    meanwhile read the checkpoint store: fragments cost their holders time."""
    stream = StatefulStream(cluster.master, tmp_path, f"by {strategy}", interval=3600.0, rate=500)
    cluster.master.call(lambda: stream.waves.request(time.monotonic()))
    stream.wave(1)
    moved = stream.state.graph.component("count").par
    stream.until(lambda: counters(cluster)["fragments_sent"] >= 2 * moved)  # a raw and a check block of each task
    migrate(cluster, stream, strategy)
    restored = {each: f"blobs_from_{each}" for each in ("fragments", "store", "copies")}
    stream.until(lambda: sum(counters(cluster)[name] for name in restored.values()) >= moved)
    assert [each for each, name in restored.items() if counters(cluster)[name]] == [source]
    stream.end()

"""Waves behind components that take long for every row, in virtual time. The output is compared with the expected rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.api.topology import Topology
from millrace.control.waves import IDLE
from millrace.runtime.tasks.bolt import BoltTask
from millrace.testing.local_cluster import LocalCluster
from support.cluster import slow_parts, wave_parts
from support.cluster.slow_parts import ThroughSlow, ToSlow, ToSlowOneByOne
from support.cluster.wave_parts import expected_rows

KINDS = pytest.mark.parametrize("topology", [ToSlow, ToSlowOneByOne, ThroughSlow])
PER_ROW = pytest.mark.parametrize("per_row", [0.001, 0.01, 0.1])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    wave_parts.forget()
    yield
    slow_parts.SECONDS[:] = [0.0, 0.0]


def start(topology: type[Topology], per_row: float, workers: int = 2, per_call: float = 0.0, **config: Any) -> LocalCluster:
    cluster = LocalCluster(workers, nodes=workers)
    slow_parts.SECONDS[:] = [per_call, per_row]
    slow_parts.ADVANCE[:] = [cluster.clock.advance]
    cluster.submit(topology, name="slow", config=config)
    return cluster


def waves(cluster: LocalCluster) -> Any:
    return cluster.master.topologies["slow"].waves


def until_wave(cluster: LocalCluster, count: int) -> None:
    target = waves(cluster).committed + count
    cluster.run_until(lambda: waves(cluster).committed >= target and waves(cluster).phase == IDLE)


def visible() -> Counter[Any]:
    return Counter((key, number) for key, number, *_ in wave_parts.VISIBLE)


def queued(cluster: LocalCluster) -> int:
    tasks = [task for name in ("through", "slow", "tally", "ledger")
             for task in cluster.tasks(name) if isinstance(task, BoltTask)]
    return sum(task.queue_length for task in tasks)


@KINDS
@PER_ROW
@pytest.mark.parametrize("workers", [1, 3])
def test_waves_are_committed_behind_a_slow_component(topology: type[Topology], per_row: float, workers: int) -> None:
    """The spouts are endless and as fast as they can be. Virtual seconds, so the outcome is always the same."""
    cluster = start(topology, per_row, workers)
    until_wave(cluster, 2)
    began = cluster.clock.now()
    until_wave(cluster, 2)
    assert sum(visible().values()) > 0
    assert waves(cluster).abandoned == 0
    assert cluster.clock.now() - began < 30.0, "each began five seconds after the one before, or when that was committed"
    hops = 4
    assert queued(cluster) * per_row <= 2 * hops * max(0.5, 4 * per_row), "seconds of work"


@KINDS
def test_every_row_comes_out_once(topology: type[Topology]) -> None:
    cluster = start(topology, 0.01, limit=800)
    cluster.run_until(lambda: sum(visible().values()) >= 800)
    assert visible() == expected_rows(800, 1)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_worker_dies_while_a_slow_sink_has_parts_of_a_chunk_left(slot: int) -> None:
    cluster = start(ToSlow, 0.01, limit=1500)
    until_wave(cluster, 2)
    cluster.run_until(lambda: any(delivery.count for task in cluster.tasks("ledger") for delivery in task.inbox.waiting))
    cluster.kill(slot)
    cluster.run_until(lambda: sum(visible().values()) >= 1500)
    until_wave(cluster, 1)
    assert visible() == expected_rows(1500, 1)


def test_a_sink_with_fixed_costs_for_each_call_still_gets_whole_chunks() -> None:
    cluster = start(ToSlow, 0.0, per_call=0.4, limit=20_000)
    began = cluster.clock.now()
    cluster.run_until(lambda: sum(visible().values()) >= 20_000)
    assert cluster.clock.now() - began < 0.4 * 200, "far fewer calls than rows"
    assert visible() == expected_rows(20_000, 1)


def test_a_component_that_is_fast_again_gets_whole_chunks_again() -> None:
    cluster = start(ToSlow, 0.05)
    until_wave(cluster, 1)
    assert max(task.chunk_tuples for task in cluster.tasks("tally")) < 10
    slow_parts.SECONDS[:] = [0.0, 0.0]
    cluster.run_until(lambda: min(task.chunk_tuples for task in cluster.tasks("tally")) == 1000)


# ---- the end, and waves that take long ----

SHORT = {"topology.checkpoint.timeout.secs": 2.0, "topology.checkpoint.interval.secs": 20.0}


def emitted(cluster: LocalCluster) -> int:
    """Numbers that the spouts have emitted; they share them out in turn."""
    return sum(task.component.position() for task in cluster.tasks("numbers"))


@KINDS
@PER_ROW
def test_a_stopped_topology_commits_all_that_it_has_emitted(topology: type[Topology], per_row: float) -> None:
    """The time to drain is far shorter than what is in flight takes, but it counts from the last tuple processed."""
    cluster = start(topology, per_row, **{"topology.channel.secs": 4.0})
    cluster.run_until(lambda: queued(cluster) * per_row > 4.5)
    cluster.stop("slow", wait=2.0)
    cluster.step()
    total, began = emitted(cluster), cluster.clock.now()
    cluster.run_until(lambda: bool(cluster.ended))
    assert cluster.clock.now() - began > 2.0
    assert cluster.uncommitted == [""] and total > 0
    assert sum(visible().values()) == total and set(visible().values()) == {1}


def test_what_is_not_committed_is_said() -> None:
    cluster = start(ToSlow, 0.01)
    until_wave(cluster, 1)
    cluster.run_until(lambda: sum(cluster.master.topologies["slow"].in_flight.values()) > 0)
    cluster.stop("slow", wait=0.0)
    committed = waves(cluster).committed
    cluster.run_until(lambda: bool(cluster.ended))
    [uncommitted] = cluster.uncommitted
    assert uncommitted.startswith(f"killed as of wave {committed}: input after it is not committed (")
    assert uncommitted.endswith(" tuples were in flight); --resume continues from there")
    assert f"slow: {uncommitted}" in cluster.said


def test_a_topology_that_processes_nothing_more_is_given_up_after_its_time() -> None:
    cluster = start(ToSlow, 0.01)
    until_wave(cluster, 1)
    for task in cluster.tasks("ledger"):
        task.busy = True  # as if its code did not return
    cluster.stop("slow", wait=2.0)
    began = cluster.clock.now()
    cluster.run_until(lambda: bool(cluster.ended))
    assert cluster.uncommitted[0].startswith("killed as of wave")
    assert 2.0 <= cluster.clock.now() - began <= 6.0


def test_a_worker_lost_while_stopping_leaves_tuples_uncommitted_and_that_is_said() -> None:
    cluster = start(ToSlow, 0.01)
    until_wave(cluster, 1)
    cluster.stop("slow", wait=5.0)
    committed = waves(cluster).committed
    cluster.kill(1)
    cluster.run_until(lambda: bool(cluster.ended))
    assert cluster.uncommitted == [f"ends as of wave {committed}: --resume continues from there"]


@KINDS
def test_a_wave_is_not_abandoned_while_tasks_work_on_what_is_ahead_of_it(topology: type[Topology]) -> None:
    cluster = start(topology, 0.01, **SHORT, **{"topology.channel.secs": 4.0})
    until_wave(cluster, 3)
    assert waves(cluster).took > 2.0, "longer than its timeout"
    assert waves(cluster).abandoned == 0
    assert set(visible().values()) == {1}


def test_a_wave_is_abandoned_if_a_task_that_it_waits_for_stands_still() -> None:
    cluster = start(ToSlow, 0.01, **SHORT)
    until_wave(cluster, 1)
    for task in cluster.tasks("ledger"):
        task.busy = True
    cluster.run_until(lambda: waves(cluster).abandoned > 0)
    assert any("not prepared within 2 s: ledger" in text for text in cluster.said)

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
    cluster = start(topology, 0.01, limit=2000)
    cluster.run_until(lambda: sum(visible().values()) >= 2000)
    assert visible() == expected_rows(2000, 1)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_worker_dies_while_a_slow_sink_has_parts_of_a_chunk_left(slot: int) -> None:
    cluster = start(ToSlow, 0.01, limit=3000)
    until_wave(cluster, 2)
    cluster.run_until(lambda: any(delivery.count for task in cluster.tasks("ledger") for delivery in task.inbox.waiting))
    cluster.kill(slot)
    cluster.run_until(lambda: sum(visible().values()) >= 3000, 600.0)
    until_wave(cluster, 1)
    assert visible() == expected_rows(3000, 1)


def test_a_sink_with_fixed_costs_for_each_call_still_gets_whole_chunks() -> None:
    cluster = start(ToSlow, 0.0, per_call=0.4, limit=20_000)
    cluster.run_until(lambda: sum(visible().values()) >= 20_000)
    assert cluster.clock.now() - 1000.0 < 0.4 * 200, "far fewer calls than rows"
    assert visible() == expected_rows(20_000, 1)


def test_a_component_that_is_fast_again_gets_whole_chunks_again() -> None:
    cluster = start(ToSlow, 0.05)
    until_wave(cluster, 1)
    assert max(task.chunk_tuples for task in cluster.tasks("tally")) < 10
    slow_parts.SECONDS[:] = [0.0, 0.0]
    cluster.run_until(lambda: min(task.chunk_tuples for task in cluster.tasks("tally")) == 1000)

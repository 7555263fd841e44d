"""The memory of workers stays flat, regardless of the number of tuples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.bench.memory import resident_mb
from millrace.bench.topologies import SlowBolt
from millrace.model.graph import graph_of
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, StatefulStream, assert_all_exact

SAMPLES = 18  # the first third is the warm-up
SLACK = 1.05  # for memory that the allocator keeps


def assert_flat(cluster: ForkedCluster, advance: Callable[[], None]) -> None:
    """Check that the resident set of the last third of a run is no larger than that of the second."""
    samples = []
    for _ in range(SAMPLES):
        advance()
        samples.append(sum(resident_mb(process.pid) for process in cluster.processes.values()))
    third = SAMPLES // 3
    assert max(samples[-third:]) <= SLACK * max(samples[third:-third]), samples


@pytest.mark.slow
def test_with_state_and_waves(tmp_path: Path) -> None:
    """Several hundred thousand words, with continuous snapshots and commits."""
    with ForkedCluster(2, nodes=2) as cluster:
        stream = StatefulStream(cluster.master, tmp_path, interval=0.2)
        assert_flat(cluster, lambda: stream.advance(2500))
        assert_all_exact(stream.finish_both())


@pytest.mark.slow
def test_a_bolt_slower_than_its_spout(tmp_path: Path) -> None:
    with ForkedCluster(2) as cluster:
        cluster.master.submit(graph_of(SlowBolt, "slow"))

        def processed() -> float:
            observed = cluster.master.observed.get("slow")
            return observed.total("slow", "executed") if observed is not None else 0

        def advance() -> None:
            target = processed() + 1000
            assert cluster.master.wait_until(lambda: processed() >= target, SECONDS)

        assert_flat(cluster, advance)
        cluster.master.kill("slow", wait=0)
        assert cluster.master.wait_until(lambda: "slow" not in cluster.master.state.topologies, SECONDS)

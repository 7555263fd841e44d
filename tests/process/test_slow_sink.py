"""Real processes with a slow sink: waves are committed, and the end commits all that was emitted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millrace.bench.backpressure import SLEEP, SlowEnd
from millrace.config import CHANNEL_SECONDS, CHECKPOINTS, EXACTLY_ONCE, GUARANTEE, WAVE_ALIGNED, WAVE_INTERVAL
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.spark.running_topology import RunningTopology
from support.processes.forked import ForkedCluster
from support.rows import rows_in

pytestmark = pytest.mark.process
PATIENCE = 120.0


def numbers_in(directory: Path) -> Counter[int]:
    return Counter(row["number"] for row in rows_in(directory))


def test_rows_are_visible_while_it_runs_and_complete_when_it_was_stopped(tmp_path: Path) -> None:
    store = str(tmp_path / "checkpoints")
    with ForkedCluster(2, settings={CHECKPOINTS.key: store}) as cluster:
        cluster.submit(SlowEnd, name="slow", config={GUARANTEE.key: EXACTLY_ONCE, WAVE_INTERVAL.key: 0.5, SLEEP: 0.01,
                                                     "path": str(tmp_path / "rows")})
        master, running = cluster.master, RunningTopology(cluster.master, "slow")
        waves = master.state.topologies["slow"].waves
        assert waves is not None
        assert master.wait_until(lambda: waves.committed >= 3, PATIENCE), "the spouts are endless and never wait for it"
        assert sum(numbers_in(tmp_path / "rows").values()) > 0
        running.kill(wait=30.0)
        assert running.wait(PATIENCE)
        assert running.uncommitted == ""
    assert numbers_in(tmp_path / "rows") == emitted(store)


def emitted(store: str) -> Counter[int]:
    """The numbers that the spouts have emitted, by their positions in the last checkpoint."""
    manifest = Checkpoints(open_store(store), "slow").latest()
    assert manifest is not None
    positions = manifest.positions()
    return Counter(2 * position + index for index in range(2) for position in range(positions[TaskId("moments", index)]))


def test_a_worker_dies_after_waves_have_overtaken_queued_rows(tmp_path: Path) -> None:
    store = str(tmp_path / "checkpoints")
    with ForkedCluster(2, settings={CHECKPOINTS.key: store}) as cluster:
        cluster.submit(SlowEnd, name="slow", config={
            GUARANTEE.key: EXACTLY_ONCE, WAVE_INTERVAL.key: 0.5, WAVE_ALIGNED.key: 0.2, CHANNEL_SECONDS.key: 1.5, SLEEP: 0.01,
            "path": str(tmp_path / "rows")})
        master, running = cluster.master, RunningTopology(cluster.master, "slow")
        topology = master.state.topologies["slow"]

        def overtaken(after: int) -> bool:
            manifest = topology.checkpoint
            return (manifest is not None and manifest.wave > after
                    and any(record.in_flight is not None for record in manifest.records if record.component == "lines"))

        assert master.wait_until(lambda: overtaken(1), PATIENCE)
        assert topology.waves is not None
        wave, epoch = topology.waves.committed, topology.epoch  # the master may notice the kill at once
        cluster.kill(1)
        assert master.wait_until(lambda: topology.epoch > epoch and overtaken(wave), PATIENCE)
        running.kill(wait=30.0)
        assert running.wait(PATIENCE)
        assert running.uncommitted == ""
    assert numbers_in(tmp_path / "rows") == emitted(store)

"""A checkpoint of one engine is resumed by the other: the state and the output are exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millrace.control.topology_status import RUNNING
from millrace.runtime.checkpoints.store import open_store
from millrace.testing.local_batches import LocalBatches
from millrace.testing.local_cluster import LocalCluster
from support.cluster.batch_parts import N, Source, Tallied, check_tally, numbers_in, run_to_the_end, start

NAME = "tallied"


def settings(tmp_path: Path) -> dict[str, Any]:
    return {"path": str(tmp_path / "out"), "limit": N, "burst": 5, "topology.chunk.tuples": 5,
            "topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.5}


def resident(tmp_path: Path, resume: bool, monkeypatch: pytest.MonkeyPatch, **config: Any) -> LocalCluster:
    cluster = LocalCluster(store=open_store(str(tmp_path / "store")))
    monkeypatch.setattr(Source, "clock", staticmethod(cluster.clock.now))
    monkeypatch.setattr(Source, "wall_clock", staticmethod(cluster.clock.now))
    cluster.submit(Tallied, resume=resume, name=NAME, config={**settings(tmp_path), **config})
    cluster.run_until(lambda: cluster.master.topologies[NAME].status == RUNNING)
    return cluster


def batched(tmp_path: Path, resume: bool) -> LocalBatches:
    return start(Tallied, tmp_path, config={"topology.guarantee": "exactly-once"}, resume=resume)


def stop(cluster: LocalCluster) -> None:
    cluster.stop(NAME)
    cluster.run_until(lambda: NAME not in cluster.master.topologies)


def test_batches_are_resumed_by_the_resident_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = batched(tmp_path, resume=False)
    for _ in range(2):
        first.batch()
    assert 0 < len(numbers_in(tmp_path / "out")) < N
    second = resident(tmp_path, True, monkeypatch)
    second.run_until(lambda: len(numbers_in(tmp_path / "out")) == N)
    stop(second)
    check_tally(batched(tmp_path, resume=True), tmp_path / "out")


def test_waves_are_resumed_by_the_microbatch_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resident(tmp_path, False, monkeypatch, rate=50.0)
    first.run_until(lambda: len(numbers_in(tmp_path / "out")) > 20)
    assert len(numbers_in(tmp_path / "out")) < N, "the driver dies in the middle"
    second = batched(tmp_path, resume=True)
    run_to_the_end(second)
    check_tally(second, tmp_path / "out")

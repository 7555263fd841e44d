"""Tasks move while every channel is full: a sender that waits for room in an old channel must not wait forever."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.testing.local_cluster import LocalCluster
from millrace.workloads.audit import AuditedWordCount, audit

NAME = "audited"


# Steps are virtual milliseconds between the crash and the return.
@pytest.mark.parametrize(("window", "steps"), [(1, 40), (2, 50), (1, 60)])
def test_a_slot_comes_back_to_a_saturated_stream(window: int, steps: int, tmp_path: Path) -> None:
    cluster = LocalCluster(workers=3, settings={"recovery.grace.secs": 0.1})
    config = {"path": str(tmp_path), "topology.chunk.tuples": 20, "topology.channel.window": window}
    cluster.submit(AuditedWordCount, name=NAME, config=config)
    cluster.run(0.15)
    cluster.kill(1)
    cluster.step(steps)
    cluster.start(1)  # its bolts return while others hold chunks for them
    cluster.run(0.3)
    state = cluster.master.topologies[NAME]
    before = dict(state.positions)
    cluster.run(0.3)
    assert all(task.blocked >= 0 for component in ("lines", "split", "count") for task in cluster.tasks(component))
    assert all(state.positions[task] > position for task, position in before.items()), "the stream does not advance"
    result = audit(tmp_path, {task.index: position for task, position in state.positions.items()})
    assert (result.lost, result.wrong) == (0, 0)

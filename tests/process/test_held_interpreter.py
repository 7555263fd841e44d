"""Code that holds the interpreter lock for longer than the heartbeat timeout, each time: the topology finishes anyway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.config import CHECKPOINTS, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS
from support.topologies.holding import NUMBERS, Holding

pytestmark = pytest.mark.process


@pytest.mark.parametrize(("timeout", "held"), [(1.0, 2.5), (0.5, 2.5)], ids=["within the first limit", "beyond it"])
def test_it_finishes_with_the_exact_rows(tmp_path: Path, timeout: float, held: float) -> None:
    settings = {HEARTBEAT_TIMEOUT.key: timeout, HEARTBEAT_INTERVAL.key: 0.1, CHECKPOINTS.key: str(tmp_path / "store")}
    out = tmp_path / "out"

    def rows() -> list[int]:
        return sorted(json.loads(line)["number"] for path in out.glob("part-*") for line in path.read_text().splitlines())

    with ForkedCluster(2, settings=settings) as cluster:
        cluster.submit(Holding, config={"path": str(out), "hold.seconds": held})
        assert cluster.master.wait_until(lambda: len(rows()) >= NUMBERS, 2 * SECONDS), list(cluster.master.events)
    assert rows() == list(range(NUMBERS))

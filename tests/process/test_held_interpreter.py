"""Code that holds the interpreter lock for longer than the heartbeat timeout, each time: the topology finishes anyway."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.config import CHECKPOINTS, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT
from support.processes.forked import ForkedCluster
from support.rows import rows_in
from support.topologies.audited import SECONDS
from support.topologies.holding import NUMBERS, Holding

pytestmark = pytest.mark.process


@pytest.mark.parametrize(("timeout", "held"), [(1.0, 2.5), (0.5, 2.5)], ids=["within the first limit", "beyond it"])
def test_it_finishes_with_the_exact_rows(tmp_path: Path, timeout: float, held: float) -> None:
    settings = {HEARTBEAT_TIMEOUT.key: timeout, HEARTBEAT_INTERVAL.key: 0.1, CHECKPOINTS.key: str(tmp_path / "store")}
    out = tmp_path / "out"

    def numbers() -> list[int]:
        return sorted(row["number"] for row in rows_in(out))

    with ForkedCluster(2, settings=settings) as cluster:
        cluster.submit(Holding, config={"path": str(out), "hold.seconds": held})
        assert cluster.master.wait_until(lambda: len(numbers()) >= NUMBERS, 2 * SECONDS), list(cluster.master.events)
    assert numbers() == list(range(NUMBERS))

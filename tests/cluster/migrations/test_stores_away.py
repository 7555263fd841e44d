"""A checkpoint store that fails or hangs in each step of each strategy, for a while or for longer than a migration waits."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import StoreUnreachable
from millrace.testing.local_cluster import LocalCluster
from support.migrations.runs import MigrationRun, Moved, MovedAtLeast, each_step, mainly

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
FAILS, HANGS = "fails", "hangs"


def spoil(cluster: LocalCluster, fault: str) -> None:
    cluster.store_hangs = fault == HANGS
    cluster.store.broken = StoreUnreachable("the test's store is away") if fault == FAILS else None


def check(topology: Any, strategy: str, step: int, fault: str, seconds: float) -> dict[str, Any]:
    run = MigrationRun(strategy, topology, **{"topology.checkpoint.max.failures": 100})
    run.cluster.store_seconds = 0.01
    run.until_step(step)
    spoil(run.cluster, fault)
    run.cluster.run(seconds)
    spoil(run.cluster, "")
    record = run.settle()
    run.end()
    return record


@pytest.mark.parametrize("fault", [FAILS, HANGS])
@pytest.mark.parametrize(("strategy", "step"), mainly(each_step(Moved)))
def test_for_a_while(strategy: str, step: int, fault: str) -> None:
    check(Moved, strategy, step, fault, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [FAILS, HANGS])
@pytest.mark.parametrize(("strategy", "step"), each_step(MovedAtLeast))
def test_for_a_while_at_least_once(strategy: str, step: int, fault: str) -> None:
    check(MovedAtLeast, strategy, step, fault, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [FAILS, HANGS])
@pytest.mark.parametrize(("topology", "strategy", "step"), [(topology, *each) for topology in (Moved, MovedAtLeast)
                                                            for each in each_step(topology)])
def test_for_long(topology: Any, strategy: str, step: int, fault: str) -> None:
    check(topology, strategy, step, fault, 15.0)


@pytest.mark.parametrize("fault", [FAILS, HANGS])
@pytest.mark.parametrize("strategy", ["dcr", "ccr", "rollback"])
def test_no_wave_is_committed_in_time(strategy: str, fault: str) -> None:
    """Nothing has ended for it, so nothing changes."""
    record = check(Moved, strategy, 1 if strategy != "rollback" else 0, fault, 15.0)
    assert (record["outcome"], record["reason"]) == ("cancelled",
                                                     "no wave was committed within topology.handover.prepare.secs = 8")

"""A worker that is killed in a step of a migration, or that ends for it, and does not come back in time."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.strategies.steps import Replace
from support.migrations.runs import (
    BEFORE,
    GIVER,
    MOVES,
    ROLES,
    TAKER,
    THIRD,
    MigrationRun,
    Moved,
    MovedAtLeast,
    allowed,
    each_step,
    mainly,
    steps_for,
)

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
RESTARTS = [pytest.param(topology, strategy, role, marks=marks)
            for topology, marks in ((Moved, ()), (MovedAtLeast, pytest.mark.slow))
            for strategy in allowed(topology) for role, slot in ROLES.items()
            if any(isinstance(step, Replace) and slot in step.restart for step in steps_for(strategy))]


def without(run: MigrationRun, slot: int, placement: dict[Any, int]) -> bool:
    """True if the topology is placed so, apart from the tasks of a worker that is gone."""
    where = run.where
    return all(where[task] == wanted for task, wanted in placement.items() if wanted != slot)


def check_killed(topology: Any, strategy: str, step: int, role: str) -> None:
    run = MigrationRun(strategy, topology)
    run.until_step(step)
    cluster, slot = run.cluster, ROLES[role]
    cluster.run_until(lambda: slot in cluster.workers)
    cluster.kill(slot)
    cluster.run_until(lambda: run.over)
    record = run.settle(elsewhere=True)
    assert without(run, slot, BEFORE) or without(run, slot, {**BEFORE, **MOVES}), (record, cluster.said)
    if role == TAKER:
        assert record["outcome"] != "done" and f"worker {slot} " in record["reason"], record
    run.end()


@pytest.mark.parametrize("role", [GIVER, TAKER])
@pytest.mark.parametrize(("strategy", "step"), mainly(each_step(Moved)))
def test_killed(strategy: str, step: int, role: str) -> None:
    check_killed(Moved, strategy, step, role)


@pytest.mark.slow
@pytest.mark.parametrize("role", [GIVER, TAKER, THIRD])
@pytest.mark.parametrize(("strategy", "step"), each_step(MovedAtLeast))
def test_killed_at_least_once(strategy: str, step: int, role: str) -> None:
    check_killed(MovedAtLeast, strategy, step, role)


@pytest.mark.parametrize(("topology", "strategy", "role"), RESTARTS)
def test_a_restarted_worker_does_not_come_back(topology: Any, strategy: str, role: str) -> None:
    """Its tasks go elsewhere: back to the old placement if it is the one that takes tasks."""
    run = MigrationRun(strategy, topology)
    cluster, slot = run.cluster, ROLES[role]
    run.begin()
    cluster.run_until(lambda: slot not in cluster.workers)
    cluster.give_up(slot)
    record = run.settle(elsewhere=True)
    assert ("did not come back" in record["reason"]) == (role != GIVER), "no task is left on that one"
    if role == TAKER:
        assert record["outcome"] == "rolled back"
        assert run.where == BEFORE
    elif role == GIVER:
        assert record["outcome"] == "done"
        assert run.where == {**BEFORE, **MOVES}
    else:
        assert without(run, slot, {**BEFORE, **MOVES})
    run.end()


@pytest.mark.parametrize("strategy", ["storm", "storm*", "dcr", "ccr"])
def test_no_restarted_worker_comes_back_in_time(strategy: str) -> None:
    """Their tasks go wherever there is room, and move to the new placement when the workers come."""
    run = MigrationRun(strategy)
    run.cluster.start_seconds = 5.0  # longer than the master waits
    run.begin()
    outcome = run.settle(elsewhere=True)["outcome"]
    assert outcome == ("done" if strategy == "storm" else "rolled back"), "without any worker, the topology waits for the first"
    run.cluster.run_until(lambda: run.over and run.where == {**BEFORE, **MOVES})
    run.end()

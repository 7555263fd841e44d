"""A worker is killed in each step of each strategy: the one that gives tasks, the one that takes them, or another."""

from __future__ import annotations

from typing import Any

import pytest

from support.migrations.runs import (
    ROLES,
    THIRD,
    MigrationRun,
    Moved,
    MovedAtLeast,
    Stateless,
    StatelessAtMost,
    each_step,
    mainly,
)

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")


def check(topology: Any, strategy: str, step: int, role: str, later: int) -> None:
    run = MigrationRun(strategy, topology)
    run.until_step(step, later)
    cluster, slot = run.cluster, ROLES[role]
    cluster.run_until(lambda: slot in cluster.workers)  # if it restarts, its new process is killed
    cluster.kill(slot)
    cluster.run(0.05)
    cluster.start(slot)
    run.settle()
    run.end()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("strategy", "step"), mainly(each_step(Moved)))
def test_exactly_once(strategy: str, step: int, role: str) -> None:
    check(Moved, strategy, step, role, 0)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("strategy", "step"), mainly(each_step(MovedAtLeast), ["dsm"]))
def test_at_least_once(strategy: str, step: int, role: str) -> None:
    check(MovedAtLeast, strategy, step, role, 0)


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("strategy", "step"), each_step(Stateless))
def test_without_state(strategy: str, step: int, role: str) -> None:
    check(Stateless, strategy, step, role, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "step"), each_step(Stateless))
def test_at_most_once(strategy: str, step: int) -> None:
    """A worker without spouts: one that dies with a spout takes its position since the last report with it."""
    check(StatelessAtMost, strategy, step, THIRD, 0)


@pytest.mark.slow
@pytest.mark.parametrize("later", [1, 30, 120])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("strategy", "step"), each_step(Moved))
def test_some_time_after_the_beginning_of_a_step(strategy: str, step: int, role: str, later: int) -> None:
    check(Moved, strategy, step, role, later)

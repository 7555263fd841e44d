"""Faults at every step of a hand-over: exactly-once output stays exact, and at-least-once output is never short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millrace.control.assignment import ARM, SWITCH
from millrace.control.moves import REFRESH
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import assert_exact, finish, finish_at_least, start, until_wave

LIMIT = 1200


@pytest.fixture(autouse=True)
def _fresh_parts() -> Iterator[None]:
    parts.forget()
    yield
    parts.forget()


def moving(topology: Any, component: str, phase: str, steps: int) -> LocalCluster:
    """A cluster in which a task of the component is being moved from worker 0 to worker 1, so many steps after the beginning
    of the phase."""
    name = topology.__name__.lower()
    cluster = start(topology, limit=LIMIT)
    until_wave(cluster, 1, name)
    state = cluster.master.topologies[name]
    task = next(task for task, slot in cluster.where(name).items() if task.component == component and slot == 0)
    cluster.move(name, task, 1)
    cluster.run_until(lambda: state.handover.phase == phase)
    cluster.step(steps)
    return cluster


@pytest.mark.parametrize("component", ["numbers", "one", "tally", "ledger"])
@pytest.mark.parametrize("phase", [ARM, REFRESH, SWITCH])
@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_a_worker_dies(component: str, phase: str, slot: int, steps: int) -> None:
    if phase == REFRESH and component in ("one", "ledger"):
        pytest.skip("a task without state needs no wave")
    cluster = moving(parts.Exact, component, phase, steps)
    cluster.kill(slot)
    cluster.run(0.05)
    cluster.start(slot)
    finish(cluster)
    assert_exact(LIMIT)

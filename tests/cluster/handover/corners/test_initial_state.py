"""Entries that a component sets when it is initialized and deletes later stay deleted when its task moves, be it before the
first wave or after it."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.api.grouping import stable_hash
from millrace.model.graph import TaskId
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import assert_exact, counts, finish, start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT, TASK = 1200, TaskId("tally", 0)


def keys_of_the_task(topology: Any) -> list[str]:
    """Keys that no tuple has, and that belong to the task."""
    owners = start(topology).master.topologies[topology.__name__.lower()].key_groups["tally"]
    keys = [f"initial {number}" for number in range(30)]
    return [key for key in keys if owners[stable_hash(key) % len(owners)] == TASK.index]


def moved(topology: Any, first_wave: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """A run whose task has moved, and the entries that it had deleted before."""
    name, deleted = topology.__name__.lower(), list[str]()
    keys, process = keys_of_the_task(topology), parts.Tally.process

    def initialize(tally: Any, *_: Any) -> None:
        for key in keys if tally.task_index == TASK.index else ():
            tally.state[key] = {"sum": 0}

    def delete_once(tally: Any, tup: Any) -> None:
        if tally.task_index == TASK.index and not deleted:
            deleted.extend(key for key in keys if key in tally.state)
            for key in deleted:
                del tally.state[key]
        process(tally, tup)

    monkeypatch.setattr(parts.Tally, "initialize", initialize)
    monkeypatch.setattr(parts.Tally, "process", delete_once)
    cluster = start(topology, limit=LIMIT, **({} if first_wave else {"topology.checkpoint.interval.secs": 1000.0}))
    state = cluster.master.topologies[name]
    cluster.run_until(lambda: counts(cluster).total() > 100)
    if first_wave:
        until_wave(cluster, 1, name)
    assert deleted == keys and bool(state.restore_point[0]) == first_wave
    cluster.move(name, TASK, (cluster.where(name)[TASK] + 1) % 3)
    cluster.run_until(lambda: state.handover.at_rest)
    return cluster, deleted


@pytest.mark.parametrize("first_wave", [False, True])
@pytest.mark.parametrize("topology", [parts.Exact, parts.AtLeast, parts.AtMost])
def test_what_was_deleted_stays_deleted(topology: Any, first_wave: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, deleted = moved(topology, first_wave, monkeypatch)
    [task] = [task for task in tasks(cluster, "tally") if task.name == TASK]
    assert task.arrival is not None and not set(deleted) & set(task.component.state)
    if topology is parts.Exact and first_wave:
        finish(cluster)
        assert_exact(LIMIT)

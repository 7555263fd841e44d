"""Layered migration: layer by layer along the stream and each in halves, while the other half works."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.strategies.catalogue import layers
from millrace.model.graph import TaskId
from support.migrations.runs import MigrationRun, Moved, MovedAtLeast

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")


@pytest.mark.parametrize("topology", [Moved, MovedAtLeast])
def test_one_half_of_one_layer_at_a_time(topology: Any) -> None:
    run = MigrationRun("layered", topology, limit=3000)
    run.cluster.store_seconds = 0.05  # so that a half is away for a while
    depth = {name: number for number, layer in enumerate(layers(run.state.graph)) for name in layer}
    batches: list[set[TaskId]] = []
    executed: dict[TaskId, set[int]] = {}  # counts of the half that stays, while the other one moves
    run.begin()
    while run.migration is not None:
        batch = {moving.task for moving in run.state.handover.batch}
        if batch and batch not in batches:
            batches.append(batch)
        for task in run.cluster.tasks("tally"):
            if batch & {TaskId("tally", 0), TaskId("tally", 1)} and task.name not in batch:
                executed.setdefault(task.name, set()).add(task.meters.executed)
        run.cluster.step()
    assert batches == [{TaskId("numbers", 0)}, {TaskId("tally", 0)}, {TaskId("tally", 1)}]
    assert [depth[task.component] for batch in batches for task in batch] == [0, 1, 1]
    assert executed.keys() == {TaskId("tally", 0), TaskId("tally", 1)}
    assert all(len(counts) > 1 for counts in executed.values()), "the other half works meanwhile"
    assert run.settle()["outcome"] == "done"
    run.end()

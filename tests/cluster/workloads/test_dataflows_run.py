"""The dataflows on a whole cluster: every event arrives by every path, although tasks move and a worker dies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from millrace.workloads.audit import AuditResult
from millrace.workloads.dataflows import topologies
from millrace.workloads.dataflows.shapes import DATAFLOWS, LONG_LINEAR, STAR, Dataflow
from millrace.workloads.dataflows.tasks import Events, TimedBolt
from millrace.workloads.dataflows.truth import audit_events, true_events, true_key_counts
from millrace.workloads.notes import NOTE_BYTES
from support.cluster.workload_runs import WorkloadRun

EVENTS, RATE = 120, 200.0
SENT = {0: EVENTS}
EACH = pytest.mark.parametrize("dataflow", DATAFLOWS, ids=lambda dataflow: dataflow.name)


class DataflowRun(WorkloadRun):
    """A run whose tasks take no time, or advance the virtual clock."""

    def __init__(self, dataflow: Dataflow, path: Path, guarantee: str, patch: pytest.MonkeyPatch, prefix: str = "",
                 **config: Any) -> None:
        cluster = LocalCluster(workers=3, nodes=3, settings={"recovery.grace.secs": 0.1})
        patch.setattr(Events, "clock", staticmethod(cluster.clock.now))
        patch.setattr(Events, "wall_clock", staticmethod(cluster.clock.now))
        patch.setattr(TimedBolt, "wait", staticmethod(cluster.clock.advance))
        self.dataflow, self._path = dataflow, path
        super().__init__(getattr(topologies, prefix + dataflow.name), path, guarantee, SENT, cluster,
                         **{"rate": RATE, "task_seconds": 0.0, **config})

    def counted(self) -> dict[str, int]:
        return {task: sum(each.component.count for each in self.cluster.tasks(task)) for task in self.dataflow.tasks}

    def result(self) -> AuditResult:
        self.end()
        return audit_events(self._path, self.dataflow, SENT)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("dataflow", [*DATAFLOWS, LONG_LINEAR], ids=lambda dataflow: dataflow.name)
def test_every_event_arrives_once_by_every_path(dataflow: Dataflow, guarantee: str, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    run = DataflowRun(dataflow, tmp_path, guarantee, monkeypatch)
    run.until_processed()
    assert run.counted() == true_events(dataflow, SENT)
    assert run.result().exact


@EACH
def test_exactly_once_holds_while_a_task_moves_and_a_worker_dies(dataflow: Dataflow, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    run = DataflowRun(dataflow, tmp_path, "exactly-once", monkeypatch)
    moved = TaskId(dataflow.tasks[-1], 0)
    run.until_sent(0.25)
    run.move(moved)
    run.until_sent(0.5)
    run.kill_worker_of(moved)
    run.until_processed()
    assert run.counted() == true_events(dataflow, SENT)
    assert run.result().exact


@EACH
def test_at_least_once_nothing_is_lost_when_a_worker_dies(dataflow: Dataflow, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    run = DataflowRun(dataflow, tmp_path, "at-least-once", monkeypatch)
    run.until_sent(0.5)
    run.kill_worker_of(TaskId(dataflow.tasks[0], 0))
    run.until_processed()
    assert all(count >= true_events(dataflow, SENT)[task] for task, count in run.counted().items())
    assert run.result().complete


@EACH
def test_keyed_state_is_exact_and_has_the_chosen_size(dataflow: Dataflow, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    run = DataflowRun(dataflow, tmp_path, "exactly-once", monkeypatch, "Keyed", keys=16, notes=5 * NOTE_BYTES,
                      tuples_per_note=3)
    run.until_sent(0.5)
    run.kill_worker_of(TaskId(dataflow.tasks[-1], 0))
    run.until_processed()
    for task, counts in true_key_counts(dataflow, SENT, keys=16).items():
        tasks = run.cluster.tasks(task)
        assert sum((Counter(dict(each.component.counts)) for each in tasks), Counter()) == counts
        assert [sum(map(len, each.component.notes.values())) for each in tasks] == [5 * NOTE_BYTES] * len(tasks)
    assert run.result().exact


def test_tasks_that_take_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks advance the virtual clock, one after the other, so that the source is ahead of them; nothing is lost."""
    run = DataflowRun(STAR, tmp_path, "exactly-once", monkeypatch, task_seconds=0.01)
    begin = run.cluster.clock.now()
    run.until_processed()
    assert run.cluster.clock.now() - begin >= 0.01 * sum(true_events(STAR, SENT).values()) - 1e-6
    assert run.result().exact

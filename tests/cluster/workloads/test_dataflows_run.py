"""The dataflows on a whole cluster: every event arrives by every path, although tasks move and a worker dies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millrace.api.topology import Topology
from millrace.control.waves import IDLE
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from millrace.workloads.audit import AuditResult
from millrace.workloads.dataflows import topologies
from millrace.workloads.dataflows.shapes import DATAFLOWS, LONG_LINEAR, SOURCE_NAME, STAR, Dataflow
from millrace.workloads.dataflows.tasks import Events, TimedBolt
from millrace.workloads.dataflows.truth import audit_events, true_events, true_key_counts
from millrace.workloads.notes import NOTE_BYTES
from support.cluster.cluster_runs import errors

NAME = "flow"
EVENTS, RATE = 120, 200.0
SENT = {0: EVENTS}
ALL = (*DATAFLOWS, LONG_LINEAR)


class DataflowRun:
    """A dataflow of a number of events in virtual time, at which its tasks take no time unless they are given some."""

    def __init__(self, topology: type[Topology], path: Path, guarantee: str, patch: pytest.MonkeyPatch, **config: Any) -> None:
        self.cluster, self._path = LocalCluster(workers=3, nodes=3, settings={"recovery.grace.secs": 0.1}), path
        patch.setattr(Events, "clock", staticmethod(self.cluster.clock.now))
        patch.setattr(TimedBolt, "wait", staticmethod(self.cluster.clock.advance))
        self.cluster.submit(topology, name=NAME, config={
            "limit": EVENTS, "rate": RATE, "task_seconds": 0.0, "path": str(path), "topology.guarantee": guarantee,
            "topology.checkpoint.interval.secs": 0.2, "topology.message.timeout.secs": 5.0, **config})
        self.cluster.run_until(lambda: self.state.status == "running")

    @property
    def state(self) -> Any:
        return self.cluster.master.topologies[NAME]

    def until_sent(self, position: int) -> None:
        self.cluster.run_until(lambda: self.state.positions.get(TaskId(SOURCE_NAME, 0), 0) >= position)

    def until_processed(self) -> None:
        """Wait until all events are sent, and for a wave that has begun after that."""
        self.until_sent(EVENTS)
        waves = self.state.waves
        target = waves.committed + 2
        self.cluster.run_until(lambda: waves.committed >= target and waves.phase == IDLE)

    def end(self, dataflow: Dataflow) -> AuditResult:
        """End the run; returns the sink's records compared with the truth."""
        self.cluster.stop(NAME, wait=100)
        self.cluster.run_until(lambda: NAME not in self.cluster.master.topologies)
        assert not errors(self.cluster)
        return audit_events(self._path, dataflow, SENT)


def counted(run: DataflowRun, dataflow: Dataflow) -> dict[str, int]:
    return {task: sum(each.component.count for each in run.cluster.tasks(task)) for task in dataflow.tasks}


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("dataflow", ALL, ids=lambda dataflow: dataflow.name)
def test_every_event_arrives_once_by_every_path(dataflow: Dataflow, guarantee: str, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    run = DataflowRun(getattr(topologies, dataflow.name), tmp_path, guarantee, monkeypatch)
    run.until_processed()
    assert counted(run, dataflow) == true_events(dataflow, SENT)
    assert run.end(dataflow).exact


@pytest.mark.parametrize("dataflow", DATAFLOWS, ids=lambda dataflow: dataflow.name)
def test_exactly_once_holds_while_tasks_move_and_a_worker_dies(dataflow: Dataflow, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    run = DataflowRun(getattr(topologies, dataflow.name), tmp_path, "exactly-once", monkeypatch)
    run.until_sent(30)
    moved = TaskId(dataflow.tasks[-1], 0)
    target = next(slot for slot in range(3) if slot != run.cluster.where(NAME)[moved])
    run.cluster.move(NAME, moved, target)
    run.cluster.run_until(lambda: run.cluster.where(NAME)[moved] == target)
    run.until_sent(60)
    run.cluster.kill(run.cluster.where(NAME)[moved])
    run.until_processed()
    assert counted(run, dataflow) == true_events(dataflow, SENT)
    assert run.end(dataflow).exact


@pytest.mark.parametrize("dataflow", DATAFLOWS, ids=lambda dataflow: dataflow.name)
def test_at_least_once_nothing_is_lost_when_a_worker_dies(dataflow: Dataflow, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    run = DataflowRun(getattr(topologies, dataflow.name), tmp_path, "at-least-once", monkeypatch)
    run.until_sent(60)
    run.cluster.kill(run.cluster.where(NAME)[TaskId(dataflow.tasks[0], 0)])
    run.until_processed()
    assert all(count >= true_events(dataflow, SENT)[task] for task, count in counted(run, dataflow).items())
    assert run.end(dataflow).complete


@pytest.mark.parametrize("dataflow", DATAFLOWS, ids=lambda dataflow: dataflow.name)
def test_keyed_state_is_exact_and_has_the_chosen_size(dataflow: Dataflow, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    topology = getattr(topologies, f"Keyed{dataflow.name}")
    run = DataflowRun(topology, tmp_path, "exactly-once", monkeypatch, keys=16, notes=5 * NOTE_BYTES, tuples_per_note=3)
    run.until_sent(60)
    run.cluster.kill(run.cluster.where(NAME)[TaskId(dataflow.tasks[-1], 0)])
    run.until_processed()
    for task, counts in true_key_counts(dataflow, SENT, keys=16).items():
        tasks = run.cluster.tasks(task)
        assert sum((Counter(dict(each.component.counts)) for each in tasks), Counter()) == counts
        assert [sum(map(len, each.component.notes.values())) for each in tasks] == [5 * NOTE_BYTES] * len(tasks)
    assert run.end(dataflow).exact


def test_tasks_that_take_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks advance the virtual clock, one after the other, so that the source is ahead of them; nothing is lost."""
    run = DataflowRun(topologies.Star, tmp_path, "exactly-once", monkeypatch, task_seconds=0.01)
    begin = run.cluster.clock.now()
    run.until_processed()
    assert run.cluster.clock.now() - begin >= 0.01 * sum(true_events(STAR, SENT).values()) - 1e-6
    assert run.end(STAR).exact

"""The word count of `bench handover` and its watched moves on a cluster in one process, with every figure of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from millrace.bench.handover.figures import Case, Periods, run_figures, targets
from millrace.bench.handover.run import stored_state
from millrace.bench.handover.sink_log import SinkLog
from millrace.bench.handover.timetable import PRIMING, Timetable
from millrace.bench.handover.watched import COUNTING, WatchedMove
from millrace.bench.handover.words import SPOUTS, LoggedSink, ScheduledLines, WordsHandedOver
from millrace.control.events import Event
from millrace.control.topology_status import RUNNING
from millrace.errors import MillraceError
from millrace.master.service import Master
from millrace.testing.local_cluster import LocalCluster
from millrace.workloads.audit import audit, true_counts
from millrace.workloads.notes import NOTE_BYTES
from millrace.workloads.wordcount import WORDS_PER_LINE

NAME = "words"
RATE = 200.0
PRIMED = SPOUTS * PRIMING * WORDS_PER_LINE
NOTES = 40  # of each task that moves


class VirtualMaster:
    """The part of the master that a watched move uses, on virtual time."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster, self.state = cluster, cluster.master

    @property
    def events(self) -> list[dict[str, Any]]:
        return [{"text": text} for text in self._cluster.said]

    def call(self, work: Callable[[], Any]) -> Any:
        return work()

    def tell(self, event: Event) -> None:
        self._cluster.tell(event)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        self._cluster.run_until(condition, seconds)
        return True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    cluster = LocalCluster(workers=4, nodes=2)
    monkeypatch.setattr(ScheduledLines, "clock", staticmethod(cluster.clock.now))
    monkeypatch.setattr(ScheduledLines, "wall_clock", staticmethod(cluster.clock.now))
    monkeypatch.setattr(LoggedSink, "clock", staticmethod(cluster.clock.now))
    return cluster


def under_load(cluster: LocalCluster, case: Case, path: Path) -> Timetable:
    """Start the topology and let the lines come; returns after two seconds of them."""
    (path / "logs").mkdir()
    cluster.submit(WordsHandedOver, name=NAME, par=case.parallelism, config={
        "path": str(path / "output"), "log": str(path / "logs"), "rate": RATE, "topology.checkpoint.interval.secs": 0.5,
        "notes": NOTES * NOTE_BYTES, "noted_tasks": case.noted_tasks})
    cluster.run_until(lambda: cluster.master.topologies[NAME].status == RUNNING)
    cluster.run(1.0)
    timetable = Timetable(cluster.clock.now() + 0.1, RATE, SPOUTS)
    timetable.write(path / "logs")
    cluster.run(2.0)
    return timetable


def finish(cluster: LocalCluster, timetable: Timetable, path: Path) -> Timetable:
    ended = timetable.ending(cluster.clock.now() + 1.0)
    ended.write(path / "logs")
    sent = ended.positions()
    cluster.run_until(lambda: {task.index: position for task, position in cluster.master.topologies[NAME].positions.items()
                               if task.component == "lines"} == sent)
    cluster.stop(NAME, wait=100)
    cluster.run_until(lambda: NAME not in cluster.master.topologies)
    return ended


@pytest.mark.parametrize("strategy", ["handover", "rollback"])
@pytest.mark.parametrize(("tasks", "state"), [(1, 0), (1, 1), (6, 0), (6, 1)])
def test_a_run_has_all_its_figures_and_every_word(strategy: str, tasks: int, state: int, cluster: LocalCluster,
                                                  tmp_path: Path) -> None:
    case = Case(strategy, tasks, state)
    timetable = under_load(cluster, case, tmp_path)
    owners = cluster.master.topologies[NAME].key_groups[COUNTING]
    steady, goals = timetable.start + 0.5, targets(cluster.where(NAME), case.moved(), list(cluster.workers))
    move = WatchedMove(cast(Master, VirtualMaster(cluster)), NAME, goals, strategy, cluster.clock.now)
    move.run()
    assert goals.items() <= cluster.where(NAME).items()
    cluster.run(1.0)
    ended = finish(cluster, timetable, tmp_path)
    log, audited = SinkLog.read(tmp_path / "logs"), audit(tmp_path / "output", ended.positions())
    assert audited.exact, audited
    counts, notes = stored_state(cluster.store, NAME)
    assert counts == true_counts(ended.positions()) and notes == (NOTES * NOTE_BYTES * tasks if state else 0)
    figures = run_figures(case, Periods(steady, move.began, move.ended + 1.0), log, audited, PRIMED, move, owners)
    assert (figures["lost"], figures["repeated"]) == (0, 0) and figures["p99_before_ms"] and figures["p99_during_ms"]
    assert log.latencies.min() >= -1e-5  # no word comes before its line is due
    if strategy == "handover":
        assert figures["replayed"] == 0 and len(move.moving) == tasks and all(each.taken for each in move.moving.values())
        assert (figures["precopied_bytes"] > NOTES * NOTE_BYTES * tasks) == bool(state)
    else:
        assert not move.moving and figures["pause_ms"] > 0 and figures["precopied_bytes"] == figures["delta_bytes"] == 0


def test_key_groups_move_and_those_that_stay_are_measured(cluster: LocalCluster, tmp_path: Path) -> None:
    case = Case("handover", 0, 1, groups=8)
    timetable = under_load(cluster, case, tmp_path)
    owners = cluster.master.topologies[NAME].key_groups[COUNTING]
    goals = case.moved_groups(owners)
    assert len(goals) == 8
    move = WatchedMove(cast(Master, VirtualMaster(cluster)), NAME, {}, "handover", cluster.clock.now, goals)
    move.run()
    now = cluster.master.topologies[NAME].key_groups[COUNTING]
    assert {group: now[group] for group in range(len(now)) if now[group] != owners[group]} == goals
    cluster.run(1.0)
    ended = finish(cluster, timetable, tmp_path)
    log, audited = SinkLog.read(tmp_path / "logs"), audit(tmp_path / "output", ended.positions())
    assert audited.exact, audited
    counts, notes = stored_state(cluster.store, NAME)
    assert counts == true_counts(ended.positions()) and notes == NOTES * NOTE_BYTES
    periods = Periods(timetable.start + 0.5, move.began, move.ended + 1.0)
    figures = run_figures(case, periods, log, audited, PRIMED, move, owners)
    assert (figures["lost"], figures["repeated"], figures["replayed"]) == (0, 0, 0)
    assert figures["moved_groups"] == 8 and figures["precopied_bytes"] > 0 and figures["staying_groups"]["p99_during_ms"]
    assert log.of_groups(range(len(owners))).words == log.words > log.of_groups(goals).words > 0


def test_a_hand_over_that_ends_with_a_roll_back_has_no_figures(cluster: LocalCluster, tmp_path: Path) -> None:
    case = Case("handover", 1, 1)
    under_load(cluster, case, tmp_path)
    goals = targets(cluster.where(NAME), case.moved(), list(cluster.workers))
    master = VirtualMaster(cluster)
    move = WatchedMove(cast(Master, master), NAME, goals, "handover", cluster.clock.now)
    wait = master.wait_until

    def lose_the_worker(condition: Callable[[], bool], seconds: float) -> bool:
        cluster.run_until(lambda: cluster.master.topologies[NAME].handover.phase == "switch")
        cluster.kill(cluster.master.topologies[NAME].handover.batch[0].old.slot)
        return wait(condition, seconds)

    master.wait_until = lose_the_worker  # type: ignore[method-assign]
    with pytest.raises(MillraceError, match=r"the topology was rolled back; last events:|did not arrive"):
        move.run()

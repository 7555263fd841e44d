"""The metrics in the record of a migration are those of the tuples that the spouts have sent and the sinks have seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.connectors.generator import GeneratorSpout
from millrace.control.migrations import BUCKET_SECONDS
from millrace.control.moves import RESTING
from millrace.master.load.migration_log import MigrationLog
from millrace.model.graph import TaskId
from millrace.runtime.tasks.spout_tracking import SpoutTracking
from millrace.testing.local_cluster import LocalCluster
from support.cluster.logged_parts import Logged, LoggingSink
from support.cluster.wave_parts import Numbers, Pass

TALLY = TaskId("tally", 0)
STABLE_SECONDS, WATCH_SECONDS = 2.0, 8.0
SENT: defaultdict[int, list[float]] = defaultdict(list)  # times at which each number was sent
SEEN: list[tuple[float, int]] = []  # times at which a sink has seen a number


class StatelessNumbers(GeneratorSpout):
    outputs: ClassVar[list[str]] = ["key", "number"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return "key", self.ordinal(position)


class Passed(Topology):
    """Has no state, so that only acks tell what is lost."""

    config: ClassVar[dict[str, Any]] = {"topology.chunk.tuples": 10, "topology.message.timeout.secs": 2.0}
    numbers = StatelessNumbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    sink = LoggingSink.spec(inputs={one: Grouping.SHUFFLE}, par=2)


@pytest.fixture(autouse=True)
def _logged(fresh_wave_parts: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    send = SpoutTracking._send_root

    def noted(self: SpoutTracking, group: Any, roots: Any, now: float, attempt: int) -> None:
        for row in group.body:
            SENT[row[1]].append(self._task.worker.clock.now())
        send(self, group, roots, now, attempt)

    monkeypatch.setattr(SpoutTracking, "_send_root", noted)
    monkeypatch.setattr(LoggingSink, "clock", LoggingSink.clock)
    monkeypatch.setattr(LoggingSink, "process_rows", lambda self, rows: SEEN.extend((self.clock(), row[1]) for row in rows))
    yield
    SENT.clear()
    SEEN.clear()


def running(topology: type[Topology] = Logged, **config: Any) -> LocalCluster:
    cluster = LocalCluster(3, nodes=3)
    cluster.migrations = MigrationLog(STABLE_SECONDS, WATCH_SECONDS)
    Numbers.clock = StatelessNumbers.clock = LoggingSink.clock = staticmethod(cluster.clock.now)
    Numbers.wall_clock = StatelessNumbers.wall_clock = staticmethod(cluster.clock.now)
    cluster.submit(topology, config={"rate": 1000.0, "topology.chunk.linger.ms": 0.0, **config})
    cluster.run(3.0)
    return cluster


def completed(cluster: LocalCluster) -> dict[str, Any]:
    """The record of the only migration, once it is complete."""
    cluster.run_until(lambda: bool(cluster.migrations.past()))
    for _ in range(600):
        if all(row["complete"] for row in cluster.migrations.past()):
            break
        cluster.run(0.1)
    (row,) = cluster.migrations.past()
    assert row["complete"] and row["final"]
    return row


def ms_since(row: dict[str, Any], times: list[float], choose: Callable[..., float | None]) -> Any:
    chosen = choose(times, default=None)
    return None if chosen is None else pytest.approx((chosen - row["at"]) * 1000, abs=BUCKET_SECONDS * 1000)


def rebalance_of(row: dict[str, Any]) -> float:
    """The time when tasks began to end."""
    assert row["rebalance_ms"] is not None
    return float(row["at"] + row["phases_ms"]["arm"] / 1000)


def catch_ups(row: dict[str, Any], after: list[tuple[float, int]], rebalance: float) -> list[Any]:
    """The times that may be recorded: behind a wave of the migration's own, it is not known whether a tuple that is replayed
    was first sent before the request or up to a bucket after it."""
    unsure = BUCKET_SECONDS if "checkpoint" in dict(row["steps_ms"]) else 0.0
    found = []
    for began in (row["at"], row["at"] - unsure):
        old = [time for time, number in after if SENT[number][0] < began]
        found.append(ms_since(row, old, max) if max(old, default=0.0) > rebalance else None)
    return found


def check_sinks(row: dict[str, Any]) -> None:
    """Compare the times with those of the tuples themselves."""
    began, after = row["at"], [(time, number) for time, number in SEEN if time >= row["at"]]
    old = [time for time, number in after if SENT[number][0] < began]
    again = [time for time, number in after if len([sent for sent in SENT[number] if sent <= time]) > 1]
    if row["rebalance_ms"] is None:
        assert row["restore_ms"] is None
        # If none was on its way, some may have left in the bucket of the request, before it: that is not known.
        assert row["catchup_ms"] == ms_since(row, old, max) or (not old and row["catchup_ms"] < BUCKET_SECONDS * 1000)
    else:
        rebalance = rebalance_of(row)
        assert row["restore_ms"] == ms_since(row, [time for time, _ in after if time > rebalance], min)
        assert any(row["catchup_ms"] == expected for expected in catch_ups(row, after, rebalance))
    assert row["recovery_ms"] == ms_since(row, again, max)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
@pytest.mark.parametrize("task", [TALLY, TaskId("sink", 0), TaskId("numbers", 0)])
def test_a_hand_over(task: TaskId, guarantee: str) -> None:
    cluster = running(**{"topology.guarantee": guarantee})
    cluster.move("logged", task, (cluster.where("logged")[task] + 1) % 3)
    cluster.run_until(lambda: cluster.master.topologies["logged"].handover.phase == RESTING)
    row = completed(cluster)
    assert (row["strategy"], row["drain_ms"], row["rebalance_ms"], row["restore_ms"]) == ("handover", None, None, None)
    assert row["recovery_ms"] is None and row["replayed"] == 0
    assert [name for name, _ in row["steps_ms"]] == ["handover"] and row["new_pids"] == []
    assert row["stabilise_ms"] is not None
    check_sinks(row)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_roll_back(guarantee: str) -> None:
    """Tuples that it replays have entered after the request; at least once, also those in flight then."""
    cluster = running(**{"topology.guarantee": guarantee})
    cluster.store_seconds = 0.1  # so that a wave takes a while
    cluster.move("logged", TALLY, (cluster.where("logged")[TALLY] + 1) % 3, "rollback")
    row = completed(cluster)
    assert (row["strategy"], row["outcome"]) == ("rollback", "done")
    assert row["drain_ms"] is None, "spouts do not wait"
    assert [name for name, _ in row["steps_ms"]] == ["checkpoint", "replace"]
    assert row["phases_ms"]["arm"] > 100 and 0 < row["rebalance_ms"] <= dict(row["steps_ms"])["replace"]
    assert row["recovery_ms"] is not None and row["replayed"] > 0
    assert row["catchup_ms"] is None or guarantee == "at-least-once"
    assert row["stabilise_ms"] is not None and row["stabilise_ms"] >= row["restore_ms"] - 1000
    check_sinks(row)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_loss_that_is_noticed_late(guarantee: str) -> None:
    """Tuples of both kinds are read again; the last ones have entered while the topology was stopped already."""
    cluster = running(**{"topology.guarantee": guarantee, "topology.checkpoint.interval.secs": 1.0})
    spouts = {slot for task, slot in cluster.where("logged").items() if task.component == "numbers"}
    cluster.kill(next(slot for slot in (0, 1, 2) if slot not in spouts), noticed=False)
    check_sinks(completed(cluster))


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_loss(guarantee: str) -> None:
    """Spouts read old tuples again. The lost worker has none of the spouts: how far they had come is known exactly."""
    cluster = running(**{"topology.guarantee": guarantee, "topology.checkpoint.interval.secs": 1.0})
    spouts = {slot for task, slot in cluster.where("logged").items() if task.component == "numbers"}
    cluster.kill(next(slot for slot in (0, 1, 2) if slot not in spouts))
    row = completed(cluster)
    assert (row["drain_ms"], row["strategy"]) == (None, "rollback") and row["rebalance_ms"] > 0
    assert row["catchup_ms"] is not None and row["recovery_ms"] is not None
    check_sinks(row)


def test_a_loss_of_a_spout() -> None:
    """The position that it had reached is known as of its last report."""
    cluster = running(**{"topology.checkpoint.interval.secs": 1.0})
    cluster.kill(cluster.where("logged")[TaskId("numbers", 0)])
    row = completed(cluster)
    again = [time for time, number in SEEN if len([sent for sent in SENT[number] if sent <= time]) > 1]
    assert row["recovery_ms"] is not None and row["catchup_ms"] is not None
    assert 0 <= (max(again) - row["at"]) * 1000 - row["recovery_ms"] + BUCKET_SECONDS * 1000 <= 400


def test_tuples_that_acks_tell_of() -> None:
    """Nothing is read again, but what was lost with the worker is sent again when its time is up."""
    cluster = running(Passed)
    spouts = {slot for task, slot in cluster.where("passed").items() if task.component == "numbers"}
    cluster.kill(next(slot for slot in (0, 1, 2) if slot not in spouts), noticed=False)
    row = completed(cluster)
    assert (row["strategy"], row["drain_ms"]) == ("restart", None)
    assert row["replayed"] > 0 and row["recovery_ms"] is not None and row["catchup_ms"] is not None
    check_sinks(row)


def test_a_spout_that_leaves_tuples_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict comes during the switch, so the new incarnation sends them again."""
    on_verdicts = SpoutTracking.on_verdicts

    def not_while_leaving(self: SpoutTracking, finished: list[int], failed: list[int]) -> None:
        if self._task.departure is None:
            on_verdicts(self, finished, failed)

    monkeypatch.setattr(SpoutTracking, "on_verdicts", not_while_leaving)
    cluster = running(**{"topology.guarantee": "at-least-once", "topology.handover.switch.secs": 2.0})
    task = TaskId("numbers", 0)
    cluster.move("logged", task, (cluster.where("logged")[task] + 1) % 3)
    row = completed(cluster)
    again = [time for time, number in SEEN if len([sent for sent in SENT[number] if sent <= time]) > 1]
    assert row["replayed"] > 0 and row["recovery_ms"] == ms_since(row, again, max)


def test_the_next_migration_ends_the_watch() -> None:
    cluster = running()
    for _ in range(2):
        cluster.move("logged", TALLY, (cluster.where("logged")[TALLY] + 1) % 3)
        cluster.run_until(lambda: cluster.master.topologies["logged"].handover.phase == RESTING)
    cluster.run(STABLE_SECONDS + 2.0)
    first, second = cluster.migrations.past()
    assert first["complete"] and first["stabilise_ms"] is None, "it had no time to show that it is stable"
    cluster.run(WATCH_SECONDS)
    assert cluster.migrations.past()[1]["stabilise_ms"] is not None and second["id"] == 2


def test_a_stream_that_does_not_return_to_its_rate_is_watched_for_a_limited_time() -> None:
    cluster = running(limit=4000)  # it ends soon after
    cluster.move("logged", TALLY, (cluster.where("logged")[TALLY] + 1) % 3)
    cluster.run_until(lambda: cluster.master.topologies["logged"].handover.phase == RESTING)
    cluster.run(WATCH_SECONDS - 1.0)
    assert [row["complete"] for row in cluster.migrations.past()] == [False]
    row = completed(cluster)
    assert row["stabilise_ms"] is None

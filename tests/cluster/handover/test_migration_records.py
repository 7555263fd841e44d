"""Every migration leaves a record, whose figures are those of the sinks' own log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

import pytest

from millrace.control.assignment import ARM, SWITCH
from millrace.control.events import Regrouped, Withdrawn
from millrace.control.migrations import BEFORE_SECONDS, BUCKET_SECONDS, USUAL_BUCKETS
from millrace.control.moves import RESTING
from millrace.errors import TopologyError
from millrace.master.requests.record import moves_of
from millrace.model.graph import TaskId
from millrace.runtime.tasks.spout_tracking import SpoutTracking
from millrace.testing.local_cluster import LocalCluster
from support.cluster import logged_parts
from support.cluster.logged_parts import LOG, Logged, LoggingSink
from support.cluster.watched_moves import STATE, kind_of
from support.cluster.wave_parts import Numbers

TALLY, SINK = TaskId("tally", 0), TaskId("sink", 0)


@pytest.fixture(autouse=True)
def _fresh_log(fresh_wave_parts: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(LoggingSink, "clock", LoggingSink.clock)
    LOG.clear()
    yield
    LOG.clear()


def running(seconds: float = 3.0, **config: Any) -> LocalCluster:
    cluster = LocalCluster(3, nodes=3)
    logged_parts.Numbers.clock = LoggingSink.clock = logged_parts.Numbers.wall_clock = staticmethod(cluster.clock.now)
    cluster.submit(Logged, config={"rate": 1000.0, **config})
    cluster.run(seconds)
    return cluster


def next_to(cluster: LocalCluster, task: TaskId) -> int:
    return (cluster.where("logged")[task] + 1) % 3


def until(cluster: LocalCluster, phase: str) -> None:
    cluster.run_until(lambda: cluster.master.topologies["logged"].handover.phase == phase)


def move(cluster: LocalCluster, task: TaskId) -> None:
    """Move a task to the next worker and wait for the figures."""
    cluster.move("logged", task, next_to(cluster, task))
    until(cluster, RESTING)
    settle(cluster)


def settle(cluster: LocalCluster) -> None:
    """Wait for the final figures, which come with the reports of the workers: between these there is no need to look."""
    for _ in range(600):
        if (rows := cluster.migrations.past()) and all(row["final"] for row in rows):
            return
        cluster.run(0.1)
    raise AssertionError(f"no final figures; the master said: {cluster.said}")


def longest(numbers: list[int], first: int, last: int) -> int | None:
    """Buckets between two with output, in a walk over all of them; those outside of first to last do not count."""
    gap, silent_since, found = None, None, set(numbers)
    for number in range(min(numbers), max(numbers) + 1):
        if number in found:
            if silent_since is not None and number >= first and silent_since <= last:
                gap = max(gap or 0, number - silent_since)
            silent_since = number
    return gap


def from_log(row: dict[str, Any]) -> dict[str, Any]:
    """The figures of a migration as the sinks' own log tells them."""
    tuples: Counter[int] = Counter()
    for at, rows in LOG:
        tuples[int(at / BUCKET_SECONDS)] += rows
    first, last = int(row["at"] / BUCKET_SECONDS), int((row["at"] + row["phases_ms"]["done"] / 1000) / BUCKET_SECONDS)
    start = max(min(tuples), first - round(BEFORE_SECONDS / BUCKET_SECONDS))
    before = [tuples[number] for number in range(start, first)]
    during = [tuples[number] for number in range(first, last + 1)]
    earlier, gaps = [number for number in tuples if start <= number < first], []
    length, end = max(USUAL_BUCKETS, len(during)), first
    while end - length >= start:
        gaps.append(longest(earlier, end - length, end - 1))
        end -= length
    gap = longest(list(tuples), first, last)
    assert gap is not None and gaps and None not in gaps
    return {"longest_gap_ms": gap * BUCKET_SECONDS * 1000, "usual_gap_ms": median(gaps) * BUCKET_SECONDS * 1000,
            "throughput_ratio": sum(during) / len(during) / (sum(before) / len(before))}


@pytest.mark.parametrize("task", [TALLY, SINK])
@pytest.mark.parametrize("held", [0.0, 0.4])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_figures_are_those_of_the_sinks_own_log(task: TaskId, held: float, guarantee: str) -> None:
    """`held`: seconds that the new worker stands still in the middle of the switch."""
    cluster = running(**{"topology.guarantee": guarantee})
    source, target = cluster.where("logged")[task], next_to(cluster, task)
    version = cluster.master.topologies["logged"].version
    cluster.move("logged", task, target)
    until(cluster, SWITCH)
    cluster.holding.add(target)
    cluster.run(held)
    cluster.holding.discard(target)
    until(cluster, RESTING)
    settle(cluster)
    (row,) = cluster.migrations.past()
    assert (row["id"], row["topology"], row["strategy"], row["cause"]) == (1, "logged", "handover", "person")
    assert (row["outcome"], row["reason"], row["from_version"]) == ("done", "", version)
    assert row["to_version"] == cluster.master.topologies["logged"].version
    (moved,) = row["moved"]
    assert (moved["task"], moved["from"], moved["to"], moved["groups"]) == (str(task), source, target, [])
    assert (moved["precopied_bytes"] > 0) == (task == TALLY) and moved["pause_ms"] >= 900 * held
    phases = row["phases_ms"]
    assert phases["arm"] > 0 and phases["switch"] >= held * 1000
    assert phases["arm"] + phases["switch"] == pytest.approx(phases["done"], abs=0.2), "each is rounded"
    assert (row["lost"], row["repeated"], row["replayed"]) == (0, 0, 0)
    assert {name: row[name] for name in from_log(row)} == pytest.approx(from_log(row), rel=1e-3)
    assert row["peak_latency_ms"] >= row["latency_before_ms"] > 0 and row["latency_after_ms"] > 0


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_the_peak_latency_is_that_of_tuples_which_the_migration_held(guarantee: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They reach the sinks after its end, because the workers of the sinks stand still then."""
    emitted, latencies = dict[int, float](), list[tuple[float, float]]()
    generate, process_rows = Numbers.generate, LoggingSink.process_rows

    def noted(self: Numbers, position: int) -> tuple[Any, ...]:
        emitted[self.ordinal(position)] = LoggingSink.clock()
        return generate(self, position)

    def measured(self: LoggingSink, rows: list[Any]) -> None:
        process_rows(self, rows)
        latencies.extend((LoggingSink.clock(), LoggingSink.clock() - emitted[number]) for _, number, _ in rows)

    monkeypatch.setattr(Numbers, "generate", noted)
    monkeypatch.setattr(LoggingSink, "process_rows", measured)
    cluster, kept = running(**{"topology.guarantee": guarantee}), list[Any]()
    post, sinks = cluster.post, {slot for task, slot in cluster.where("logged").items() if task.component == "sink"}

    def keep_state(sender: int, address: Any, frames: list[bytes]) -> None:
        if kind_of(frames) == STATE:
            kept.append((sender, address, frames))
        else:
            post(sender, address, frames)

    cluster.post = keep_state  # type: ignore[method-assign]
    (target,) = {0, 1, 2} - sinks
    cluster.move("logged", TALLY, target)
    cluster.run_until(lambda: bool(kept))
    cluster.run(0.4)
    cluster.post = post  # type: ignore[method-assign]
    for message in kept:
        post(*message)
    cluster.holding |= sinks
    until(cluster, RESTING)
    cluster.run(0.2)
    cluster.holding -= sinks
    settle(cluster)
    (row,) = cluster.migrations.past()
    ended = row["at"] + row["phases_ms"]["done"] / 1000
    late = max(latency for at, latency in latencies if ended + BUCKET_SECONDS < at < ended + 1.0)
    assert late > 0.55, "the test is wrong: what the migration held came before its end"
    assert late - 0.22 < row["peak_latency_ms"] / 1000 < late + 0.001, "time between workers does not count"


@pytest.mark.parametrize("held", [0.0, 0.4])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_key_groups_that_move_are_recorded(guarantee: str, held: float) -> None:
    cluster = running(**{"topology.guarantee": guarantee})
    topology = cluster.master.topologies["logged"]
    version, owners = topology.version, topology.key_groups["tally"]
    cluster.tell(Regrouped("logged", "tally", {group: (owner + 1) % 3 for group, owner in enumerate(owners)}))
    until(cluster, SWITCH)
    slots = [topology.places[TaskId("tally", index)].slot for index in range(3)]
    cluster.holding.add(slots[1])
    cluster.run(held)
    cluster.holding.discard(slots[1])
    until(cluster, RESTING)
    settle(cluster)
    (row,) = cluster.migrations.past()
    assert (row["strategy"], row["cause"], row["outcome"], row["reason"]) == ("handover", "person", "done", "")
    assert (row["from_version"], row["to_version"]) == (version, topology.version)
    for index, moved in enumerate(row["moved"]):
        target = (index + 1) % 3
        assert (moved["task"], moved["to_task"]) == (f"tally[{index}]", f"tally[{target}]")
        assert moved["groups"] == [group for group, owner in enumerate(owners) if owner == index]
        assert (moved["from"], moved["to"]) == (slots[index], slots[target])
        assert moved["pause_ms"] >= (900 * held if target == 1 else 0) and moved["precopied_bytes"] > 0
    assert sum(moved["delta_bytes"] for moved in row["moved"]) > 0
    assert (row["lost"], row["repeated"], row["replayed"]) == (0, 0, 0)
    assert {name: row[name] for name in from_log(row)} == pytest.approx(from_log(row), rel=1e-3)
    told = [(event.text.split(" in ")[0], event.cause, event.tasks) for event in cluster.events][-2:]
    names, tasks = "tally[0], tally[1], tally[2]", tuple(TaskId("tally", index) for index in range(3))
    assert told == [(f"{len(owners)} key groups of tally go to {names}", "person", tasks),
                    (f"{len(owners)} key groups of tally moved to {names}", "person", tasks)]


def test_moves_of_key_groups_are_shown_queued_and_cancelled() -> None:
    cluster = running()
    topology = cluster.master.topologies["logged"]
    owners = topology.key_groups["tally"]
    zero = [group for group, owner in enumerate(owners) if owner == 0]
    slots = [topology.places[TaskId("tally", index)].slot for index in range(3)]
    cluster.deaf.add(slots[1])  # so that it is not armed
    cluster.tell(Regrouped("logged", "tally", dict.fromkeys(zero[:3], 1)))
    cluster.tell(Regrouped("logged", "tally", dict.fromkeys(zero[3:8], 2)))
    assert cluster.said[-1] == "logged: 5 key groups of tally will move after 3 key groups of tally"
    (moves,) = moves_of(cluster.master, cluster.clock.now(), None)
    shown = [(move["task"], move["groups"], move["to_task"], move["from"], move["to"], move["cause"])
             for move in (*moves["moving"], *moves["waiting"])]
    assert shown == [("tally[0]", zero[:3], "tally[1]", slots[0], slots[1], "person"),
                     ("tally[0]", zero[3:8], "tally[2]", slots[0], slots[2], "person")]
    cluster.tell(Withdrawn("logged", TALLY))
    cluster.hear(slots[1])
    cluster.run(2.0)
    assert moves_of(cluster.master, cluster.clock.now(), None) == [] and topology.key_groups["tally"] == owners
    assert cluster.said[-2:] == ["logged: 5 key groups of tally not moved: a person cancelled it",
                                 "logged: 3 key groups of tally not moved: a person cancelled it"]
    (row,) = cluster.migrations.past()
    assert (row["outcome"], row["reason"], row["moved"][0]["groups"]) == ("cancelled", "a person cancelled it", zero[:3])


def test_key_groups_that_switch_are_not_cancelled() -> None:
    cluster = running()
    topology = cluster.master.topologies["logged"]
    group = topology.key_groups["tally"].index(0)
    cluster.tell(Regrouped("logged", "tally", {group: 1}))
    until(cluster, SWITCH)
    with pytest.raises(TopologyError, match=r"1 key group of tally has begun to switch, which cannot be cancelled\. Give it "
                                            r"back when it has arrived"):
        cluster.tell(Withdrawn("logged", TALLY))
    until(cluster, RESTING)
    assert topology.key_groups["tally"][group] == 1


@pytest.mark.parametrize("component", ["numbers", "tally", "sink"])
def test_every_tuple_of_the_sinks_is_counted_while_they_move(component: str) -> None:
    cluster = running(limit=4000)
    for index in (0, 1, 0):
        move(cluster, TaskId(component, index))
    cluster.run_until(lambda: sum(rows for _, rows in LOG) >= 4000)
    cluster.run(0.2)
    counted = sum(bucket.tuples for bucket in cluster.migrations._logs["logged"].buckets())
    assert counted == sum(rows for _, rows in LOG) == 4000


def test_a_standstill_is_degradation() -> None:
    cluster = running()
    cluster.move("logged", SINK, next_to(cluster, SINK))
    until(cluster, SWITCH)
    cluster.holding |= {0, 1, 2}
    cluster.run(0.9)  # less than what makes a worker count as lost
    cluster.holding.clear()
    until(cluster, RESTING)
    settle(cluster)
    (row,) = cluster.migrations.past()
    degraded = row["degraded_s"]
    assert 0.5 <= degraded["100"] <= degraded["80"] <= degraded["60"] <= degraded["40"] <= degraded["20"]
    assert row["throughput_ratio"] < 1


def test_moves_under_way_are_shown_and_one_that_arms_is_cancelled() -> None:
    cluster = running()
    source, target = cluster.where("logged")[TALLY], next_to(cluster, TALLY)
    cluster.deaf.add(target)  # so that it is not armed
    cluster.move("logged", TALLY, target)
    cluster.run(0.2)
    cluster.move("logged", SINK, next_to(cluster, SINK))
    (moves,) = moves_of(cluster.master, cluster.clock.now(), None)
    assert (moves["topology"], moves["phase"], moves["progress"]) == ("logged", ARM, 0.0) and moves["seconds"] > 0
    assert [(move["task"], move["from"], move["to"], move["cause"], move["armed"]) for move in moves["moving"]] == [
        ("tally[0]", source, target, "person", False)]
    assert [(move["task"], move["cause"]) for move in moves["waiting"]] == [("sink[0]", "person")]
    with pytest.raises(TopologyError, match=r"sink\[1\] of 'logged' is not being moved, and neither are key groups of it; "
                                            r"being moved: sink\[0\], tally\[0\]"):
        cluster.tell(Withdrawn("logged", TaskId("sink", 1)))
    cluster.tell(Withdrawn("logged", SINK))
    cluster.tell(Withdrawn("logged", TALLY))
    cluster.hear(target)
    cluster.run(1.0)
    assert moves_of(cluster.master, cluster.clock.now(), None) == []
    assert cluster.where("logged")[TALLY] == source == cluster.master.topologies["logged"].homes[TALLY]
    assert cluster.master.topologies["logged"].homes[SINK] == cluster.where("logged")[SINK]
    (row,) = cluster.migrations.past()
    assert (row["outcome"], row["reason"], row["phases_ms"]["switch"]) == ("cancelled", "a person cancelled it", None)


def test_a_move_that_switches_is_not_cancelled() -> None:
    cluster = running()
    source, target = cluster.where("logged")[TALLY], next_to(cluster, TALLY)
    cluster.move("logged", TALLY, target)
    until(cluster, SWITCH)
    (moves,) = moves_of(cluster.master, cluster.clock.now(), "logged")
    assert moves["phase"] == SWITCH and 2 / 3 <= moves["progress"] < 1
    with pytest.raises(TopologyError, match=rf"cannot be cancelled. Move it back to worker {source} when it has arrived"):
        cluster.tell(Withdrawn("logged", TALLY))
    until(cluster, RESTING)
    assert cluster.where("logged")[TALLY] == target


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_roll_back_counts_the_tuples_that_spouts_emit_again(guarantee: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: Counter[int] = Counter()
    generate = Numbers.generate

    def noted(self: Numbers, position: int) -> tuple[Any, ...]:
        emitted[self.ordinal(position)] += 1
        return generate(self, position)

    monkeypatch.setattr(Numbers, "generate", noted)
    cluster = running(**{"topology.guarantee": guarantee, "topology.chunk.linger.ms": 0.0})
    where = cluster.where("logged")
    spouts = {slot for task, slot in where.items() if task.component == "numbers"}
    cluster.kill(next(slot for slot in (0, 1, 2) if slot not in spouts))
    cluster.run_until(lambda: cluster.master.topologies["logged"].status == "running")
    settle(cluster)
    (row,) = cluster.migrations.past()
    twice = sum(emitted.values()) - len(emitted)
    assert 0 < row["replayed"] <= twice <= row["replayed"] + len(spouts), "each spout may have made one that it had not sent"


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_loss_during_a_switch_leaves_two_records(guarantee: str) -> None:
    cluster = running(**{"topology.guarantee": guarantee, "topology.message.timeout.secs": 2.0})
    target = next_to(cluster, TALLY)
    cluster.move("logged", TALLY, target)
    until(cluster, SWITCH)
    cluster.kill(target)
    cluster.run_until(lambda: cluster.master.topologies["logged"].status == "running")
    settle(cluster)
    handover, recovery = cluster.migrations.past()
    assert (handover["outcome"], handover["reason"]) == ("rolled back", f"worker {target} was lost")
    assert [move["pause_ms"] for move in handover["moved"]] == [None]
    assert (recovery["strategy"], recovery["outcome"]) == ("rollback", "done")
    assert recovery["cause"] == f"loss: worker {target} lost: killed by the test"
    assert {move["from"] for move in recovery["moved"]} == {target} and "tally[0]" in {
        move["task"] for move in recovery["moved"]}
    assert recovery["from_version"] < recovery["to_version"]
    assert all(cluster.where("logged")[TaskId.parse(move["task"])] == move["to"] for move in recovery["moved"])


def test_a_loss_while_arming_cancels_the_move() -> None:
    cluster = running()
    target = next_to(cluster, TALLY)
    cluster.deaf.add(target)
    cluster.move("logged", TALLY, target)
    cluster.run(0.1)
    cluster.kill(target)
    cluster.run_until(lambda: cluster.master.topologies["logged"].status == "running")
    settle(cluster)
    outcomes = [(row["strategy"], row["outcome"], row["reason"]) for row in cluster.migrations.past()]
    assert outcomes[0] == ("handover", "cancelled", f"worker {target} was lost")


def test_records_of_a_topology_that_ends_are_final() -> None:
    cluster = running()
    cluster.move("logged", TALLY, next_to(cluster, TALLY))
    until(cluster, RESTING)
    cluster.stop("logged", wait=10)
    cluster.run_until(lambda: "logged" not in cluster.master.topologies)
    assert [row["final"] for row in cluster.migrations.past()] == [True]
    assert cluster.migrations.past("other") == []


def test_what_an_impatient_spout_leaves_behind_counts_as_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict comes during the switch, so the old incarnation leaves with tuples in flight."""
    on_verdicts = SpoutTracking.on_verdicts

    def not_while_leaving(self: SpoutTracking, finished: list[int], failed: list[int]) -> None:
        if self._task.departure is None:
            on_verdicts(self, finished, failed)

    monkeypatch.setattr(SpoutTracking, "on_verdicts", not_while_leaving)
    cluster = running(rate=10_000.0, limit=40_000, **{"topology.guarantee": "at-least-once",
                                                     "topology.handover.switch.secs": 2.0})
    move(cluster, TaskId("numbers", 0))
    cluster.run_until(lambda: all(task.component.exhausted and task.idle() for task in cluster.tasks("numbers")))
    (row,) = cluster.migrations.past()
    assert row["outcome"] == "done" and row["repeated"] == 0
    assert row["replayed"] == sum(rows for _, rows in LOG) - 40_000 > 1

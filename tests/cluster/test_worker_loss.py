"""Workers die, return or are cut off: every tuple arrives at least once, and exactly once if no worker died."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.control.events import Paused, Unpaused
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster.cluster_runs import Late, counter, drain, meter, spouts_done
from support.cluster.plain_parts import (
    Lives,
    Numbers,
    NumbersArrow,
    NumbersBlocking,
    Pass,
    PassArrow,
    PassBlocking,
    Reliable,
    Sink,
    SinkArrow,
    SinkBlocking,
)
from support.cluster.records import EVENTS, SEEN, forget
from support.cluster.timed_parts import Sums
from support.examples import examples

N = 4000
CONFIG: dict[str, Any] = {"limit": N, "burst": 10, "batch": 10, "topology.chunk.tuples": 10,
                          "topology.message.timeout.secs": 2.0}
AT_MOST_ONCE = {**CONFIG, "topology.guarantee": "at-most-once"}


class Rows(Topology):
    numbers = Numbers.spec(par=2)
    through = Pass.spec(inputs=[numbers], par=3)
    sink = Sink.spec(inputs={through: Grouping.fields("n")}, par=2)


class Arrow(Topology):
    numbers = NumbersArrow.spec(par=2)
    through = PassArrow.spec(inputs=[numbers], par=3)
    sink = SinkArrow.spec(inputs={through: Grouping.fields("n")}, par=2)


class Threads(Topology):
    numbers = NumbersBlocking.spec(par=2)
    through = PassBlocking.spec(inputs=[numbers], par=3)
    sink = SinkBlocking.spec(inputs={through: Grouping.fields("n")}, par=2)


class Narrow(Topology):
    """Has a sink slower than its senders, so that their channels are full."""

    numbers = Numbers.spec(par=2)
    through = Pass.spec(inputs=[numbers], par=4)
    sink = Sink.spec(inputs=[through])


def running(topology: type[Topology], workers: int = 3, steps: int = 150, **config: Any) -> LocalCluster:
    """A cluster in the middle of the stream."""
    cluster = LocalCluster(workers)
    cluster.submit(topology, config={**CONFIG, **config})
    cluster.step(steps)
    return cluster


def finish(cluster: LocalCluster, name: str) -> None:
    """Run to the end, and check that every tuple has arrived."""
    cluster.run_until(lambda: spouts_done(cluster))
    cluster.run(0.5)
    drain(cluster, name)


def assert_at_least_once(sink: str = "sink", limit: int = N) -> None:
    lost = set(range(limit)) - set(SEEN[sink])
    assert not lost, f"{len(lost)} lost: {sorted(lost)[:20]}"
    assert set(SEEN[sink]) == set(range(limit))


# ---- deaths ----


@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("topology", [Rows, Arrow, Threads], ids=lambda topology: topology.__name__)
def test_a_worker_may_die_at_any_moment(topology: type[Topology], slot: int) -> None:
    for steps in (102, 137, 190, 260):
        forget()
        cluster = running(topology, steps=steps)
        cluster.kill(slot)
        finish(cluster, topology.__name__.lower())
        assert_at_least_once()


@pytest.mark.parametrize("topology", [Rows, Narrow], ids=lambda topology: topology.__name__)
def test_two_workers_may_die_at_once(topology: type[Topology]) -> None:
    for first, second in ((0, 1), (1, 2), (2, 0)):
        forget()
        cluster = running(topology)
        cluster.kill(first)
        cluster.kill(second)
        cluster.step(200)
        cluster.start(second)
        finish(cluster, topology.__name__.lower())
        assert_at_least_once()


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "unnoticed"])
def test_a_worker_may_die_and_be_started_again_at_once(noticed: bool, slot: int) -> None:
    for steps in range(110, 200, 30):
        forget()
        cluster = running(Rows, workers=2, steps=steps)
        cluster.kill(slot, noticed)
        cluster.start(slot)
        assert (f"worker {slot} lost: it was restarted" in cluster.said) == (not noticed)
        finish(cluster, "rows")
        assert_at_least_once()


def test_an_unreported_death_is_noticed_by_missing_heartbeats() -> None:
    cluster = running(Rows)
    cluster.kill(1, noticed=False)
    cluster.run(1.0)
    assert 1 in cluster.master.workers
    cluster.run(1.0)
    assert "worker 1 lost: no heartbeat" in cluster.said
    finish(cluster, "rows")
    assert_at_least_once()


@pytest.mark.parametrize("topology", [Rows, Threads], ids=lambda topology: topology.__name__)
def test_without_workers_the_topology_waits_and_continues_when_one_is_back(topology: type[Topology]) -> None:
    name = topology.__name__.lower()
    cluster = running(topology, workers=2)
    cluster.kill(0)
    cluster.kill(1)
    assert any(text.startswith(f"{name}: waits: cannot place") for text in cluster.said)
    cluster.run(5.0)
    assert cluster.master.topologies[name].status == "waiting"
    cluster.start(0)
    assert set(cluster.where(name).values()) == {0}
    finish(cluster, name)
    assert_at_least_once()


def test_a_topology_submitted_without_workers_starts_when_one_joins() -> None:
    cluster = LocalCluster(0)
    cluster.submit(Rows, config=CONFIG)
    cluster.run(1.0)
    assert cluster.master.topologies["rows"].status == "waiting"
    cluster.start(0)
    finish(cluster, "rows")
    assert sorted(SEEN["sink"]) == list(range(N))


def test_tuples_lost_with_a_worker_are_reported_to_the_spout_as_lost() -> None:
    class Told(Topology):
        numbers = Reliable.spec()
        sums = Sums.spec(inputs=[numbers], config={"topology.tick.tuple.freq.secs": 0.5})
        sink = Sink.spec(inputs=[sums])

    cluster = LocalCluster(2)
    cluster.submit(Told, config={"limit": 100})
    cluster.run_until(lambda: meter(cluster, "sums", "executed") == 100)
    where = cluster.where("told")
    assert where[TaskId("sums", 0)] != where[TaskId("numbers", 0)]
    cluster.kill(where[TaskId("sums", 0)])
    cluster.run(5.0)
    assert {what for what, *_ in EVENTS} == {"lost", "ack", "batch"}
    assert Counter(entry[1] for entry in EVENTS if entry[0] == "ack") == Counter(range(100))


def test_nothing_is_replayed_that_was_done_before_the_loss() -> None:
    cluster = running(Rows, steps=250)
    done = cluster.master.topologies["rows"].positions
    before = {task.index: position for task, position in done.items()}
    assert min(before.values()) > 100
    SEEN.clear()
    cluster.kill(0)
    finish(cluster, "rows")
    old = [n for n in SEEN["sink"] if n // 2 < before[n % 2]]
    assert old == []


# ---- random faults ----

ACTIONS = st.tuples(
    st.sampled_from(["kill", "kill unnoticed", "start", "restart", "cut", "heal", "lose frames", "late", "hear"]),
    st.integers(0, 2), st.integers(1, 400))


class Chaos:
    """Applies a schedule of faults, and repairs everything at the end."""

    def __init__(self, topology: type[Topology]) -> None:
        self.cluster = Late(3)
        self.cluster.submit(topology, config=CONFIG)
        self.cluster.step(120)
        self.losing = 0
        self.frames = 0
        self.cluster.drop = self.drop

    def drop(self, sender: int, receiver: int, frames: list[bytes]) -> bool:
        self.frames += 1
        return self.losing > 0 and self.frames % self.losing == 0

    def act(self, action: str, slot: int) -> None:
        cluster, alive = self.cluster, slot in self.cluster.workers
        if action in ("kill", "restart") and alive:
            cluster.kill(slot)
        if action == "kill unnoticed" and alive:
            cluster.kill(slot, noticed=False)
        if action in ("start", "restart") and slot not in cluster.workers:
            cluster.start(slot)
        if action == "cut" and alive:
            cluster.cut.add(slot)
        if action == "late":
            cluster.late = (*cluster.late, slot)
        if action == "hear":
            cluster.hear()
        if action == "heal":
            self.heal()
        if action == "lose frames":
            self.losing = slot + 2

    def heal(self) -> None:
        """Restart every live worker that is presumed dead, as it does itself when it learns of it."""
        self.losing = 0
        self.cluster.hear()
        for slot in sorted(self.cluster.cut):
            known = self.cluster.master.workers.get(slot)
            worker = self.cluster.workers.get(slot)
            if worker is not None and (known is None or known.address.generation != worker.generation):
                self.cluster.start(slot)
        self.cluster.cut.clear()


@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(st.sampled_from([Rows, Arrow, Threads, Narrow]), st.lists(ACTIONS, min_size=1, max_size=8))
def test_random_faults_of_workers_and_frames_lose_nothing(
        topology: type[Topology], schedule: list[tuple[str, int, int]]) -> None:
    forget()
    chaos = Chaos(topology)
    for action, slot, steps in schedule:
        chaos.act(action, slot)
        chaos.cluster.step(steps)
    chaos.heal()
    if not chaos.cluster.workers:
        chaos.cluster.start(0)
    finish(chaos.cluster, topology.__name__.lower())
    assert_at_least_once()


# ---- moving home ----


def displace(cluster: LocalCluster, name: str, slot: int) -> None:
    """Kill a worker while nothing is in flight, so that nothing is lost with it, and continue without it."""
    cluster.tell(Paused(name))
    cluster.run_until(lambda: cluster.master.drained(cluster.master.topologies[name]))
    cluster.kill(slot)
    cluster.tell(Unpaused(name))


@pytest.mark.parametrize("config", [CONFIG, AT_MOST_ONCE], ids=["at-least-once", "at-most-once"])
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("topology", [Rows, Arrow, Threads, Narrow], ids=lambda topology: topology.__name__)
def test_tasks_move_home_without_losing_or_repeating_anything(
        topology: type[Topology], slot: int, config: dict[str, Any]) -> None:
    name = topology.__name__.lower()
    cluster = running(topology, workers=2, steps=110, **config)
    homes = cluster.where(name)
    for steps in (40, 11):
        displace(cluster, name, slot)
        cluster.step(steps)
        assert set(cluster.where(name).values()) == {1 - slot}
        cluster.start(slot)
        cluster.run_until(lambda: cluster.where(name) == homes and cluster.master.topologies[name].handover.at_rest)
    finish(cluster, name)
    assert Counter(SEEN["sink"]) == dict.fromkeys(range(N), 1)
    assert counter(cluster, "stale") == 0


@pytest.mark.parametrize("config", [CONFIG, AT_MOST_ONCE], ids=["at-least-once", "at-most-once"])
@pytest.mark.parametrize(("slot", "late"), [(0, 1), (1, 2), (2, 0)])
def test_a_worker_that_learns_of_a_move_late_loses_nothing(slot: int, late: int, config: dict[str, Any]) -> None:
    cluster = Late(3)
    cluster.submit(Rows, config=config)
    cluster.step(110)
    displace(cluster, "rows", slot)
    cluster.step(30)
    cluster.late = (late,)
    cluster.start(slot)
    cluster.run(1.0)
    cluster.hear()
    finish(cluster, "rows")
    assert Counter(SEEN["sink"]) == dict.fromkeys(range(N), 1)


def test_at_most_once_a_batch_that_moves_home_is_not_lost() -> None:
    class Held(Topology):
        numbers = Numbers.spec()
        sums = Sums.spec(inputs=[numbers], config={"topology.tick.tuple.freq.secs": 2.0})
        sink = Sink.spec(inputs=[sums])

    cluster = LocalCluster(2)
    cluster.submit(Held, config={**AT_MOST_ONCE, "limit": 500})
    home = cluster.where("held")[TaskId("sums", 0)]
    cluster.kill(home)  # nothing has been emitted yet
    cluster.run(0.5)
    assert meter(cluster, "sums", "executed") == 500
    cluster.start(home)
    cluster.run(10.0)
    drain(cluster, "held")
    assert sum(total for _, total in SEEN["sink"]) == sum(range(500))


def test_a_task_that_moved_home_is_closed_where_it_was() -> None:
    class Living(Topology):
        numbers = Numbers.spec()
        lives = Lives.spec(inputs=[numbers], par=2)

    cluster = LocalCluster(2)
    cluster.submit(Living, config=CONFIG)
    cluster.step(150)
    cluster.kill(1)
    cluster.step(20)
    cluster.start(1)
    cluster.run(5.0)
    (moved,) = (task.index for task, slot in cluster.where("living").items() if task.component == "lives" and slot == 1)
    assert [entry for entry in EVENTS if entry[-1] == moved] == [
        *[("initialize", "lives", moved)] * 3, ("close", "lives", moved)]
    assert ("process after close",) not in EVENTS
    assert set(SEEN["lives"]) == set(range(N))


def test_a_kill_closes_tasks_that_are_on_their_way_home_too() -> None:
    class Living(Topology):
        numbers = Numbers.spec()
        lives = Lives.spec(inputs=[numbers], par=2)

    cluster = LocalCluster(2)
    cluster.submit(Living, config={**CONFIG, "limit": 10_000_000})
    cluster.step(150)
    cluster.kill(1)
    cluster.step(20)
    cluster.start(1)
    cluster.stop("living", wait=0.0)
    cluster.run(1.0)
    started = Counter(entry[2] for entry in EVENTS if entry[0] == "initialize")
    closed = Counter(entry[2] for entry in EVENTS if entry[0] == "close")
    assert sum(started.values()) == 4
    assert sum(closed.values()) == 3, "all but the one that died with its worker"
    assert ("process after close",) not in EVENTS


# ---- several topologies ----


class Other(Topology):
    more = Numbers.spec(par=2)
    second = Sink.spec(inputs=[more], par=2)


def test_two_topologies_run_side_by_side_through_a_death() -> None:
    cluster = running(Rows)
    cluster.submit(Other, config={**CONFIG, "limit": 3000})
    cluster.step(100)
    cluster.kill(1)
    cluster.step(100)
    cluster.start(1)
    finish(cluster, "rows")
    assert cluster.master.topologies["other"].status == "running"
    drain(cluster, "other")
    assert_at_least_once()
    assert_at_least_once("second", 3000)


def test_a_topology_that_is_killed_leaves_the_other_as_it_was() -> None:
    cluster = running(Rows)
    cluster.submit(Other, config={**CONFIG, "limit": 10_000_000})
    cluster.step(50)
    before = {task.name: task.incarnation for task in cluster.tasks("through")}
    cluster.stop("other", wait=0.0)
    cluster.step(200)
    assert cluster.ended == ["other"]
    assert {task.name: task.incarnation for task in cluster.tasks("through")} == before
    finish(cluster, "rows")
    assert Counter(SEEN["sink"]) == dict.fromkeys(range(N), 1)


class Chain(Topology):
    numbers = Numbers.spec()
    middle = Pass.spec(inputs={numbers: Grouping.SHUFFLE})
    end = Sink.spec(inputs={middle: Grouping.SHUFFLE})


def test_tuples_for_a_lost_worker_sent_by_one_with_the_old_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spout has the new plan and continues; a bolt in between has not. Nothing waits for the message timeout."""
    cluster = LocalCluster(3, nodes=3)
    monkeypatch.setattr(Numbers, "clock", staticmethod(cluster.clock.now))  # few enough that no channel is full
    monkeypatch.setattr(Numbers, "wall_clock", staticmethod(cluster.clock.now))
    cluster.submit(Chain, config={"limit": 200, "rate": 100.0, "topology.message.timeout.secs": 600.0})
    cluster.run_until(lambda: len(SEEN["end"]) > 20)
    where = cluster.where("chain")
    lost, between = where[TaskId("end", 0)], where[TaskId("middle", 0)]
    assert len({lost, between, where[TaskId("numbers", 0)]}) == 3
    cluster.deaf.add(between)
    cluster.kill(lost)
    cluster.run(0.3)
    cluster.hear(between)
    cluster.run_until(lambda: len(set(SEEN["end"])) == 200, seconds=20.0)

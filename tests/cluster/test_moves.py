"""Single tasks move between workers while tuples flow: nothing is lost, and nothing is replayed without need. Spouts and
ackers move too, with their state."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.config import HANDOVER_SWITCH_LIMIT
from millrace.control.events import Moved, Replanned
from millrace.control.moves import RESTING
from millrace.errors import StalePlan, TopologyError, UnknownName, UnknownTopology
from millrace.model.graph import ACKER, TaskId
from millrace.model.plan import Plan
from millrace.testing.local_cluster import LocalCluster
from support.cluster.cluster_runs import Late, counter, drain, meter, spouts_done
from support.cluster.plain_parts import FromQueue, Numbers, Pass, Sink
from support.cluster.records import QUEUE, SEEN, forget
from support.examples import examples

N = 4000
CONFIG: dict[str, Any] = {"limit": N, "burst": 10, "topology.chunk.tuples": 10, "topology.message.timeout.secs": 5.0}


class Rows(Topology):
    numbers = Numbers.spec(par=2)
    through = Pass.spec(inputs=[numbers], par=3)
    sink = Sink.spec(inputs={through: Grouping.fields("n")}, par=2)


class Queued(Topology):
    numbers = FromQueue.spec()
    through = Pass.spec(inputs=[numbers], par=3)
    sink = Sink.spec(inputs=[through])


def running(topology: type[Topology] = Rows, workers: int = 4, nodes: int = 2, steps: int = 150,
            kind: type[LocalCluster] = LocalCluster) -> LocalCluster:
    cluster = kind(workers, nodes)
    cluster.submit(topology, config=CONFIG)
    cluster.step(steps)
    return cluster


def finish(cluster: LocalCluster, name: str = "rows") -> None:
    cluster.run_until(lambda: spouts_done(cluster))
    cluster.run(0.5)
    drain(cluster, name)


def elsewhere(cluster: LocalCluster, task: TaskId, name: str = "rows") -> int:
    return (cluster.where(name)[task] + 1) % len(cluster.workers)


def arrived(cluster: LocalCluster, name: str = "rows") -> bool:
    handover = cluster.master.topologies[name].handover
    return handover.phase == RESTING and not handover.waiting


def move_on(cluster: LocalCluster, task: TaskId, name: str = "rows") -> None:
    """Move a task to the next worker, and wait until it is there."""
    cluster.move(name, task, elsewhere(cluster, task, name))
    cluster.run_until(lambda: arrived(cluster, name))


@pytest.mark.parametrize("component", ["through", "sink", ACKER])
def test_bolts_and_ackers_move_without_replays(component: str) -> None:
    cluster = running()
    tasks = sorted(task for task in cluster.where("rows") if task.component == component)
    for _ in range(3):
        for task in tasks:
            move_on(cluster, task)
            cluster.step(7)
    replayed = meter(cluster, "numbers", "replayed")
    finish(cluster)
    assert replayed == 0
    assert Counter(SEEN["sink"]) == Counter(range(N)), "not exactly once"
    assert counter(cluster, "stale") == 0


def test_a_move_affects_no_other_task() -> None:
    cluster = running()
    before = {task: place.incarnation for task, place in cluster.master.topologies["rows"].places.items()}
    objects = {task.name: task for component in ("numbers", "through", "sink") for task in cluster.tasks(component)}
    moved = TaskId("through", 1)
    move_on(cluster, moved)
    for task, place in cluster.master.topologies["rows"].places.items():
        assert (place.incarnation == before[task]) == (task != moved)
    for task in [task for component in ("numbers", "through", "sink") for task in cluster.tasks(component)]:
        assert (objects[task.name] is task) == (task.name != moved)


def test_a_replayable_spout_continues_from_its_position() -> None:
    cluster = running()
    for index in (0, 1, 0, 1):
        move_on(cluster, TaskId("numbers", index))
        cluster.step(60)
    finish(cluster)
    assert Counter(SEEN["sink"]) == Counter(range(N)), "not exactly once"


def test_a_spout_that_cannot_replay_does_not_move() -> None:
    """Its tuples in flight are only in its memory."""
    QUEUE.extend(range(N))
    cluster = running(Queued, steps=110)
    spout = TaskId("numbers", 0)
    with pytest.raises(TopologyError, match=r"numbers\[0\] cannot be moved: its source cannot be replayed"):
        cluster.move("queued", spout, elsewhere(cluster, spout, "queued"))
    plan = cluster.master.topologies["queued"].plan
    moved = Plan(plan.version + 1, {**plan.placement, spout: elsewhere(cluster, spout, "queued")}, plan.key_groups)
    with pytest.raises(TopologyError, match=r"moves numbers\[0\]: its source cannot be replayed"):
        cluster.tell(Replanned({"queued": moved}, {"queued": plan.version}, "someone's plan"))
    assert cluster.master.topologies["queued"].plan == plan
    cluster.run_until(lambda: not QUEUE and set(SEEN["sink"]) == set(range(N)))
    drain(cluster, "queued")


def test_traffic_counts_continue_when_a_task_moves() -> None:
    cluster = running()
    source, target = cluster.tasks("numbers")[0], TaskId("through", 0)
    number = cluster.master.topologies["rows"].graph.number(target)
    before = source.channels[number].tuples
    move_on(cluster, target)
    assert source.channels[number].tuples >= before > 0


@pytest.mark.parametrize("late", [(0,), (1,), (0, 1), (2, 3)])
def test_workers_that_learn_of_a_move_late(late: tuple[int, ...]) -> None:
    """A task is handed over when its last sender knows of the move."""
    cluster = running(kind=Late)
    cluster.late = late
    for task in (TaskId("through", 0), TaskId("sink", 1), TaskId(ACKER, 0), TaskId(ACKER, 1)):
        cluster.move("rows", task, elsewhere(cluster, task))
        cluster.step(40)
    cluster.hear()
    cluster.run_until(lambda: arrived(cluster))
    finish(cluster)
    assert Counter(SEEN["sink"]) == Counter(range(N))


def test_a_worker_that_learns_of_a_move_far_too_late() -> None:
    cluster = running(kind=Late)
    cluster.late = (0, 1)
    for index in range(3):
        cluster.move("rows", TaskId("through", index), elsewhere(cluster, TaskId("through", index)))
    cluster.run(HANDOVER_SWITCH_LIMIT.default + 3.0)
    cluster.hear()
    finish(cluster)
    assert set(SEEN["sink"]) == set(range(N)), "what was lost must be sent again"


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=12),
       st.sampled_from([None, 0, 1, 2, 3]))
def test_random_moves_and_the_death_of_a_worker(moves: list[tuple[int, int, int]],
                                                victim: int | None) -> None:
    forget()
    cluster = running(steps=120)
    tasks = sorted(cluster.where("rows"))
    for number, (which, slot, steps) in enumerate(moves):
        if number == len(moves) // 2 and victim is not None:
            cluster.kill(victim)
        with suppress(TopologyError):  # it is being moved
            cluster.move("rows", tasks[which % len(tasks)], slot if slot in cluster.workers else min(cluster.workers))
        cluster.step(steps)
    finish(cluster)
    assert set(SEEN["sink"]) == set(range(N))


# ---- refused moves ----


def test_invalid_moves_are_refused_and_change_nothing() -> None:
    cluster = running()
    before, revision = cluster.where("rows"), cluster.master.revision
    with pytest.raises(UnknownTopology, match="no topology named 'ghost'"):
        cluster.move("ghost", TaskId("sink", 0), 1)
    with pytest.raises(UnknownName, match=r"'rows' has no running task sink\[9\]; it has sink\[0\], sink\[1\]"):
        cluster.move("rows", TaskId("sink", 9), 1)
    with pytest.raises(UnknownName, match="has no running task ghost"):
        cluster.move("rows", TaskId("ghost", 0), 1)
    with pytest.raises(UnknownName, match="there is no worker 7; there are 0, 1, 2, 3"):
        cluster.move("rows", TaskId("sink", 0), 7)
    cluster.move("rows", TaskId("sink", 0), before[TaskId("sink", 0)])
    assert "is already on worker" in cluster.said[-1]
    assert (cluster.where("rows"), cluster.master.revision) == (before, revision)
    cluster.stop("rows")
    with pytest.raises(TopologyError, match="is stopping: its tasks can be moved or rescaled only while it runs or is paused"):
        cluster.move("rows", TaskId("sink", 0), elsewhere(cluster, TaskId("sink", 0)))


def test_an_overtaken_plan_is_not_enacted() -> None:
    cluster = running()
    plan = cluster.master.topologies["rows"].plan
    sink = TaskId("sink", 0)
    moved = Plan(plan.version + 1, {**plan.placement, sink: elsewhere(cluster, sink)}, plan.key_groups)
    cluster.kill(cluster.where("rows")[TaskId("through", 0)])
    before = cluster.where("rows")
    with pytest.raises(StalePlan, match="'rows' is now at version 2, and the plan was made for version 1"):
        cluster.tell(Replanned({"rows": moved}, {"rows": plan.version}, "late"))
    current = cluster.master.topologies["rows"].plan
    with pytest.raises(StalePlan, match=r"places tasks on lost workers \(9\)"):
        cluster.tell(Replanned({"rows": Plan(3, {task: 9 for task in current.placement})}, {"rows": current.version}, "gone"))
    with pytest.raises(StalePlan, match="does not match the running tasks"):
        cluster.tell(Replanned({"rows": Plan(3, {TaskId("sink", 0): 0})}, {"rows": current.version}, "few"))
    assert cluster.where("rows") == before


def test_a_plan_is_enacted_as_a_whole() -> None:
    cluster = running()
    plan = cluster.master.topologies["rows"].plan
    everything = Plan(plan.version + 1, dict.fromkeys(plan.placement, 2), plan.key_groups)
    cluster.tell(Replanned({"rows": everything}, {"rows": plan.version}, "all in one place"))
    cluster.run_until(lambda: arrived(cluster))
    assert set(cluster.where("rows").values()) == {2}
    finish(cluster)
    assert Counter(SEEN["sink"]) == Counter(range(N)), "not exactly once"


def test_a_task_that_was_moved_stays_there_when_its_first_place_comes_back() -> None:
    cluster = running()
    task = TaskId("through", 0)
    first, then = cluster.where("rows")[task], elsewhere(cluster, task)
    cluster.tell(Moved("rows", task, then))
    cluster.run_until(lambda: arrived(cluster))
    cluster.kill(first)
    cluster.start(first)
    assert cluster.where("rows")[task] == then

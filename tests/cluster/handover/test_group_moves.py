"""Key groups change owners while the stream runs: nothing is lost, repeated or reordered, and other groups do not wait."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.api.grouping import stable_hash
from millrace.control.assignment import ARM, SWITCH
from millrace.control.events import Regrouped
from millrace.control.moves import REFRESH
from millrace.errors import KeyNotOwned, TopologyError, UnknownName
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.moved_runs import assert_once_in_order, at_rest, flaws, until_processed
from support.cluster.watched_moves import STATE, kind_of
from support.cluster.wave_runs import (
    LIMIT,
    assert_exact,
    finish,
    finish_at_least,
    start,
    tasks,
    until_wave,
)

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")


def owners(cluster: LocalCluster, name: str = "exact") -> tuple[int, ...]:
    return cluster.master.topologies[name].key_groups["tally"]


def give(cluster: LocalCluster, old: int, new: int, share: float = 0.5, name: str = "exact") -> list[int]:
    """Ask that a share of the key groups of one task of the tally go to another. Returns the groups."""
    groups = [group for group, owner in enumerate(owners(cluster, name)) if owner == old]
    groups = groups[:max(1, round(share * len(groups)))]
    cluster.tell(Regrouped(name, "tally", dict.fromkeys(groups, new)))
    return groups


@pytest.mark.parametrize("topology", [parts.Exact, parts.ExactKeyed])
def test_groups_move_within_the_epoch(topology: Any) -> None:
    name = topology.__name__.lower()
    cluster = start(topology)
    until_wave(cluster, 2, name)
    epoch = cluster.master.topologies[name].epoch
    for old, new in ((0, 1), (1, 2), (2, 0), (0, 1)):
        groups = give(cluster, old, new, name=name)
        cluster.run_until(lambda: at_rest(cluster, name))
        assert all(owners(cluster, name)[group] == new for group in groups)
        cluster.step(20)
    assert not flaws(cluster), (flaws(cluster), cluster.said)
    assert cluster.master.topologies[name].epoch == epoch, cluster.said
    finish(cluster, name)
    assert_exact()


def test_all_groups_of_a_task_leave_it_and_return() -> None:
    cluster = start()
    until_wave(cluster, 1)
    groups = give(cluster, 0, 1, share=1.0)
    cluster.run_until(lambda: at_rest(cluster))
    until_wave(cluster, 1)
    cluster.tell(Regrouped("exact", "tally", dict.fromkeys(groups, 0)))
    cluster.run_until(lambda: at_rest(cluster))
    finish(cluster)
    assert_exact()


@pytest.mark.parametrize("topology", [parts.AtLeast, parts.AtMost])
def test_nothing_is_lost_replayed_or_reordered_without_a_fault(topology: Any) -> None:
    name = topology.__name__.lower()
    cluster = start(topology)
    until_wave(cluster, 2, name)
    for old, new in ((0, 1), (1, 2), (2, 0)):
        give(cluster, old, new, name=name)
        cluster.run_until(lambda: at_rest(cluster, name))
    until_processed(cluster)
    assert not flaws(cluster), (flaws(cluster), cluster.said)
    assert_once_in_order(cluster)


def test_other_groups_do_not_wait() -> None:
    """While the state of the moved groups is on its way, both tasks work on with their others."""
    cluster = start(limit=10 * LIMIT)
    until_wave(cluster, 2)
    kept: list[Any] = []
    post = cluster.post

    def delayed(sender: int, address: Any, frames: list[bytes]) -> None:
        if kind_of(frames) == STATE:
            kept.append((sender, address, frames))
        else:
            post(sender, address, frames)

    cluster.post = delayed  # type: ignore[method-assign]
    give(cluster, 0, 1)
    cluster.run_until(lambda: bool(kept))
    before = {task.name: task.meters.executed for task in tasks(cluster, "tally")}
    cluster.run(0.3)
    after = {task.name: task.meters.executed for task in tasks(cluster, "tally")}
    assert all(after[name] > before[name] for name in before), "some task has stopped"
    assert cluster.master.topologies["exact"].handover.phase == SWITCH
    cluster.post = post  # type: ignore[method-assign]
    for message in kept:
        post(*message)
    cluster.run_until(lambda: at_rest(cluster))
    finish(cluster)
    assert_exact(10 * LIMIT)


@pytest.mark.parametrize("phase", [ARM, REFRESH, SWITCH])
@pytest.mark.parametrize("victim", ["old", "new", "other"])
@pytest.mark.parametrize("topology", [parts.Exact, parts.AtLeast])
def test_a_worker_dies(phase: str, victim: str, topology: Any) -> None:
    name = topology.__name__.lower()
    for steps in (0, 1, 2, 3):
        parts.forget()
        cluster = start(topology, limit=1200)
        until_wave(cluster, 1, name)
        where = cluster.where(name)
        old, new = where[TaskId("tally", 0)], where[TaskId("tally", 1)]
        slots = {"old": old, "new": new, "other": next((slot for slot in range(3) if slot not in (old, new)), new)}
        give(cluster, 0, 1, name=name)
        state = cluster.master.topologies[name]
        cluster.run_until(lambda state=state: state.handover.phase == phase)  # type: ignore[misc]
        cluster.step(steps)
        cluster.kill(slots[victim])
        cluster.run(0.05)
        cluster.start(slots[victim])
        if topology is parts.Exact:
            finish(cluster)
            assert_exact(1200)
        else:
            finish_at_least(cluster, 1200)


def test_tasks_and_groups_move_one_after_the_other() -> None:
    cluster = start()
    until_wave(cluster, 2)
    for index in range(3):
        cluster.move("exact", TaskId("tally", index), (cluster.where("exact")[TaskId("tally", index)] + 1) % 3)
    give(cluster, 0, 1)
    give(cluster, 2, 0)
    cluster.run_until(lambda: at_rest(cluster))
    finish(cluster)
    assert_exact()


def test_the_wave_after_a_move_has_the_changes_and_no_copy_of_the_rest() -> None:
    cluster = start(parts.ExactKeyed, limit=500)
    cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
    until_wave(cluster, 2, "exactkeyed")
    before = cluster.master.topologies["exactkeyed"].checkpoint
    groups = give(cluster, 0, 1, share=1.0, name="exactkeyed")
    cluster.run_until(lambda: at_rest(cluster, "exactkeyed"))
    until_wave(cluster, 1, "exactkeyed")
    after = cluster.master.topologies["exactkeyed"].checkpoint
    assert before is not None and after is not None and after.wave > before.wave
    assert after.chains("tally") == before.chains("tally"), "nothing has changed, and nothing is written again"
    taker = next(record for record in after.records if record.task == TaskId("tally", 1))
    assert set(groups) & set(before.chains("tally")) <= set(taker.chains)


@pytest.mark.parametrize(("component", "wanted", "error", "says"), [
    ("ghost", {0: 0}, UnknownName, "has no component 'ghost'"),
    ("one", {0: 0}, TopologyError, "'one' has no key groups.*components that have some: tally"),
    ("tally", {128: 0}, UnknownName, "'tally' has no key group 128; it has 0 to 127"),
    ("tally", {0: 3}, UnknownName, "'tally' has no task 3; it has 0 to 2"),
])
def test_what_does_not_exist_is_refused(component: str, wanted: dict[int, int], error: type[Exception], says: str) -> None:
    cluster = start()
    until_wave(cluster, 1)
    before = cluster.master.revision
    with pytest.raises(error, match=says):
        cluster.tell(Regrouped("exact", component, wanted))
    assert cluster.master.revision == before and at_rest(cluster)


def test_a_key_that_has_moved_is_refused_with_its_new_owner() -> None:
    cluster = start()
    until_wave(cluster, 1)
    group = give(cluster, 0, 1)[0]
    cluster.run_until(lambda: at_rest(cluster))
    tally = next(task for task in tasks(cluster, "tally") if task.name.index == 0)
    key = next(key for key in map(str, range(10_000)) if stable_hash(key) % len(owners(cluster)) == group)
    with pytest.raises(KeyNotOwned, match=f"key group {group}, which task 1 owns"):
        tally.snapshots.state.places.find(key, "counts")

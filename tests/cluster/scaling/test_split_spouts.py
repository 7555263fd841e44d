"""Spouts with splits are scaled while they run: every number comes once, in order for each key and split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.control.events import Paused, Regrouped, Rescaled, Unpaused, Withdrawn
from millrace.errors import TopologyError, UnknownName
from millrace.model.graph import TaskId
from millrace.model.plan import fewest_group_moves
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.cluster import slow_parts
from support.cluster import wave_parts as parts
from support.cluster.moved_runs import at_rest, flaws
from support.cluster.wave_runs import start, tasks, until_wave
from support.scaling.scaled_runs import name_of, par_of, scale, scaled, slow_down
from support.scaling.split_runs import (
    SPLITS,
    PlainNumbers,
    SplitAtLeast,
    SplitAtMost,
    SplitExact,
    SplitPlain,
    SplitPlainAtMost,
    SplitSlowly,
    assert_counted,
    assert_in_order,
    assert_numbers_once,
    end,
    owned,
    splits_of,
)

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 2500
LONG = 6000  # enough tuples for several changes of parallelism one after the other
EVERY = [SplitExact, SplitAtLeast, SplitAtMost, SplitPlain, SplitPlainAtMost]


@pytest.fixture(autouse=True)
def quick_again() -> Iterator[None]:
    yield
    slow_parts.SECONDS[:] = [0.0, 0.0]


def begun(topology: Any, par: int, limit: int = LIMIT, **config: Any) -> LocalCluster:
    cluster = start(topology, limit=limit, par={"numbers": par}, **config)
    PlainNumbers.clock = PlainNumbers.wall_clock = staticmethod(cluster.clock.now)
    slow_down(cluster, 0.0)
    cluster.run_until(lambda: cluster.master.topologies[name_of(topology)].status == "running")
    cluster.run(0.05)
    return cluster


def check_once(cluster: LocalCluster, topology: Any, limit: int = LIMIT) -> None:
    """Run to the end; every number has come once, in order."""
    name = name_of(topology)
    end(cluster, name)
    assert_in_order()
    if topology in (SplitExact, SplitSlowly):
        assert_numbers_once(limit)
    elif topology in (SplitPlain, SplitPlainAtMost):
        assert Counter(number for *_, number in parts.RECEIVED) == Counter(range(limit))
    else:
        assert_counted(cluster, limit)


def check_never_short(topology: Any, limit: int = LIMIT) -> None:
    numbers = parts.RECEIVED if topology is SplitPlain else parts.WRITTEN
    assert {row[-1] if topology is SplitPlain else row[1] for row in numbers} == set(range(limit))


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("topology", EVERY)
def test_more_tasks_and_fewer_again(topology: Any, snapshots: bool) -> None:
    parts.SPOUTS_SNAPSHOT = snapshots
    name, cluster = name_of(topology), begun(topology, 1, LONG)
    state = cluster.master.topologies[name]
    epoch = state.epoch
    for par in (2, 7, 3, 1):
        before = state.key_groups["numbers"]
        record = scale(cluster, name, {"numbers": par})
        assert (record["strategy"], record["outcome"]) == ("scale", "done"), record
        assert sum(len(move["groups"]) for move in record["moved"]) == fewest_group_moves(before, par)
        assert par_of(cluster, name)["numbers"] == par and splits_of(cluster) == owned(cluster, name)
        cluster.step(20)
        if state.waves is not None and par == 7:
            until_wave(cluster, 1, name)
    assert not all(task.component.exhausted for task in tasks(cluster, "numbers")), "the stream runs"
    assert not flaws(cluster) and state.epoch == epoch, (flaws(cluster), cluster.said)
    check_once(cluster, topology, LONG)
    assert not flaws(cluster)


@pytest.mark.parametrize(("phase", "before", "after"), [
    ("grow", 2, 5), ("regroup", 2, 5), ("switch", 2, 5), ("regroup", 5, 2), ("switch", 5, 2), ("retire", 5, 2)])
@pytest.mark.parametrize("topology", [SplitExact, SplitAtLeast, SplitPlain])
def test_a_worker_dies_in_each_phase(topology: Any, phase: str, before: int, after: int) -> None:
    name = name_of(topology)
    for slot in range(3):
        parts.forget()
        cluster = begun(topology, before)
        state = cluster.master.topologies[name]
        cluster.scale(name, numbers=after)
        cluster.run_until(lambda state=state: (  # type: ignore[misc]
            state.handover.phase == "switch" if phase == "switch" else state.scaling.phase == phase))
        cluster.step(slot)
        cluster.kill(slot)
        cluster.run(0.05)
        cluster.start(slot)
        cluster.run_until(lambda cluster=cluster: scaled(cluster, name))  # type: ignore[misc]
        assert par_of(cluster, name)["numbers"] in (before, after)
        end(cluster, name)
        if topology is SplitExact:
            assert_numbers_once(LIMIT)
        else:
            check_never_short(topology)


def test_under_back_pressure() -> None:
    """The sink takes longer for its rows than the spout needs to send them."""
    name, cluster = name_of(SplitSlowly), begun(SplitSlowly, 1, limit=600)
    slow_down(cluster, 0.002)
    cluster.run(0.2)
    for par in (3, 7, 2):
        record = scale(cluster, name, {"numbers": par}, seconds=300)
        assert record["outcome"] == "done", (record, cluster.said)
        cluster.run(0.2)
    assert not flaws(cluster)
    slow_down(cluster, 0.0)
    check_once(cluster, SplitSlowly, 600)


@pytest.mark.parametrize("topology", EVERY)
def test_splits_are_given_to_other_tasks(topology: Any) -> None:
    name, cluster = name_of(topology), begun(topology, 2)
    for owners in ({0: 1, 5: 0}, dict.fromkeys(range(SPLITS), 1), {3: 0}):
        cluster.tell(Regrouped(name, "numbers", owners))
        cluster.run_until(lambda: at_rest(cluster, name))
        assert splits_of(cluster) == owned(cluster, name)
        assert all(cluster.master.topologies[name].key_groups["numbers"][split] == owner for split, owner in owners.items())
        cluster.step(20)
    assert not flaws(cluster)
    check_once(cluster, topology)


@pytest.mark.parametrize("topology", EVERY)
def test_a_cancelled_move_leaves_the_splits_where_they_were(topology: Any) -> None:
    name, cluster = name_of(topology), begun(topology, 2)
    before, lost = owned(cluster, name), list[Any]()

    def lose(message: Any) -> bool:
        chosen = isinstance(message, wire.Armed) and bool(message.starts)
        lost.extend([message] if chosen else [])
        return chosen

    cluster.lose = lose
    cluster.tell(Regrouped(name, "numbers", dict.fromkeys(range(SPLITS), 1)))
    cluster.run_until(lambda: bool(lost))
    cluster.run(0.1)
    assert cluster.master.topologies[name].handover.phase == "arm"
    cluster.tell(Withdrawn(name, TaskId("numbers", 0)))
    cluster.run(0.1)
    assert splits_of(cluster) == owned(cluster, name) == before and not flaws(cluster)
    check_once(cluster, topology)


@pytest.mark.parametrize("kind", [wire.Armed, wire.Taken, wire.Waved, wire.Wave])
@pytest.mark.parametrize("topology", [SplitExact, SplitPlain])
def test_messages_are_lost(topology: Any, kind: type) -> None:
    """The first four of a kind: they are sent again."""
    name, cluster, lost = name_of(topology), begun(topology, 2), list[Any]()

    def lose(message: Any) -> bool:
        chosen = isinstance(message, kind) and len(lost) < 4
        lost.extend([message] if chosen else [])
        return chosen

    cluster.lose = lose
    assert scale(cluster, name, {"numbers": 5})["outcome"] == "done", cluster.said
    assert scale(cluster, name, {"numbers": 1})["outcome"] == "done", cluster.said
    assert len(lost) == 4 or topology is SplitPlain
    check_once(cluster, topology)


def test_messages_and_records_say_splits() -> None:
    name, cluster = name_of(SplitExact), begun(SplitExact, 2)
    record = scale(cluster, name, {"numbers": 4})
    assert all(move["splits"] for move in record["moved"] if move["groups"]) and record["moved"]
    assert f"{SPLITS // 2} splits handed over" in "".join(cluster.said) and "key group" not in "".join(cluster.said)
    record = scale(cluster, name, {"numbers": 2, "tally": 4})
    assert {move["task"].partition("[")[0]: move["splits"] for move in record["moved"] if move["groups"]} == {
        "numbers": True, "tally": False}
    assert " key groups and splits handed over" in "".join(cluster.said)
    with pytest.raises(UnknownName, match=f"'numbers' has no split {SPLITS}; it has 0 to {SPLITS - 1}"):
        cluster.tell(Regrouped(name, "numbers", {SPLITS: 0}))
    check_once(cluster, SplitExact)


@pytest.mark.parametrize("topology", EVERY)
def test_it_is_scaled_while_it_is_paused(topology: Any) -> None:
    name, cluster = name_of(topology), begun(topology, 2)
    cluster.tell(Paused(name))
    cluster.run(0.2)
    for par in (5, 1):
        assert scale(cluster, name, {"numbers": par})["outcome"] == "done", cluster.said
        assert splits_of(cluster) == owned(cluster, name)
    cluster.tell(Unpaused(name))
    assert not flaws(cluster)
    check_once(cluster, topology)


@pytest.mark.parametrize("topology", EVERY)
def test_a_task_moves_with_its_splits(topology: Any) -> None:
    name, cluster = name_of(topology), begun(topology, 3)
    for slot in (0, 1, 2):
        if cluster.where(name)[TaskId("numbers", 1)] != slot:
            cluster.move(name, TaskId("numbers", 1), slot)
            cluster.run_until(lambda: at_rest(cluster, name))
            assert splits_of(cluster) == owned(cluster, name)
    assert not flaws(cluster)
    check_once(cluster, topology)


@pytest.mark.parametrize("topology", [SplitExact, SplitAtLeast])
def test_it_is_resumed_as_it_was_scaled(topology: Any) -> None:
    name, store = name_of(topology), MemoryStore()
    cluster = start(topology, limit=LIMIT, store=store)
    until_wave(cluster, 1, name)
    scale(cluster, name, {"numbers": 5})
    until_wave(cluster, 1, name)
    again = start(topology, limit=LIMIT, store=store, resume=True)
    assert par_of(again, name)["numbers"] == 5
    assert f"{name}: resumes with numbers x 5, as it was scaled" in again.said
    end(again, name)
    if topology is SplitExact:
        assert_numbers_once(LIMIT)
    else:
        check_never_short(topology)


def test_it_is_resumed_with_another_number_of_tasks_but_not_of_splits() -> None:
    name, store = name_of(SplitExact), MemoryStore()
    cluster = start(SplitExact, limit=LIMIT, store=store)
    until_wave(cluster, 2, name)
    again = start(SplitExact, limit=LIMIT, store=store, resume=True, par={"numbers": 7})
    assert par_of(again, name)["numbers"] == 7
    end(again, name)
    assert_numbers_once(LIMIT)


@pytest.mark.parametrize(("topology", "par", "says"), [
    (SplitExact, 9, "its source has 8 splits, and each task needs one, so it can have 8 at most"),
    (parts.Exact, 3, "Declare it with splits, for example config="),
])
def test_it_is_refused_and_nothing_changes(topology: Any, par: int, says: str) -> None:
    cluster, name = start(topology), name_of(topology)
    until_wave(cluster, 1, name)
    revision = cluster.master.revision
    with pytest.raises(TopologyError, match=says):
        cluster.tell(Rescaled(name, {"numbers": par}))
    assert cluster.master.revision == revision and scaled(cluster, name)

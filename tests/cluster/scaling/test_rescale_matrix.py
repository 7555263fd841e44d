"""Parallelism changes while the stream runs: nothing is lost, repeated or reordered, and the fewest key groups move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.model.plan import fewest_group_moves
from millrace.testing.local_cluster import LocalCluster
from support.cluster import slow_parts
from support.cluster import wave_parts as parts
from support.cluster.moved_runs import assert_at_most_once_in_order, assert_once_in_order, flaws, until_processed
from support.cluster.wave_runs import assert_exact, finish, finish_at_least, start, tasks, until_wave
from support.scaling.scaled_runs import (
    PAIRS,
    ScaledAtLeast,
    ScaledAtMost,
    ScaledExact,
    ScaledSlowly,
    ScaledSlowlyTracked,
    ScaledSlowlyUntracked,
    ScaledUnionAtLeast,
    ScaledUnionAtMost,
    ScaledUnionSlowly,
    name_of,
    par_of,
    scale,
    scaled,
    slow_down,
)

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 1500
BOLTS = ("one", "tally", "ledger")
UNIONS = (ScaledUnionAtLeast, ScaledUnionAtMost, ScaledUnionSlowly)  # a row takes two ways to the tally


@pytest.fixture(autouse=True)
def quick_again() -> Iterator[None]:
    yield
    slow_parts.SECONDS[:] = [0.0, 0.0]


def begun(topology: Any, par: int, limit: int = LIMIT, **config: Any) -> LocalCluster:
    """A cluster that runs the topology with so many tasks of each bolt."""
    cluster = start(topology, limit=limit, par=dict.fromkeys(BOLTS, par), **config)
    slow_down(cluster, 0.0)
    until_wave(cluster, 1, name_of(topology))
    return cluster


@pytest.mark.parametrize(("few", "many"), PAIRS)
@pytest.mark.parametrize("topology", [ScaledExact, ScaledAtLeast, ScaledAtMost, ScaledUnionAtLeast, ScaledUnionAtMost])
def test_more_tasks_and_fewer_again(topology: Any, few: int, many: int) -> None:
    name, cluster = name_of(topology), begun(topology, few)
    state = cluster.master.topologies[name]
    epoch = state.epoch
    for par in (many, few):
        owners = {bolt: state.key_groups[bolt] for bolt in ("tally", "ledger")}
        record = scale(cluster, name, dict.fromkeys(BOLTS, par))
        assert (record["strategy"], record["outcome"]) == ("scale", "done"), record
        assert all(par_of(cluster, name)[bolt] == par for bolt in BOLTS)
        assert all(set(state.key_groups[bolt]) == set(range(par)) for bolt in owners)
        moved = sum(len(move["groups"]) for move in record["moved"])
        assert moved == sum(fewest_group_moves(groups, par) for groups in owners.values())
        assert sorted(task.name for bolt in BOLTS for task in cluster.tasks(bolt)) == sorted(
            task for task in state.graph.tasks() if task.component in BOLTS)
        cluster.step(30)
    assert not flaws(cluster) and state.epoch == epoch, (flaws(cluster), cluster.said)
    if topology is ScaledExact:
        finish(cluster, name)
        assert_exact(LIMIT)
    else:
        until_processed(cluster)
        assert not flaws(cluster)
        assert_once_in_order(cluster, LIMIT, ways=2 if topology in UNIONS else 1)


@pytest.mark.parametrize(("few", "many"), PAIRS)
@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("topology", [ScaledExact, ScaledAtLeast, ScaledUnionAtLeast])
def test_a_worker_dies_in_each_phase(topology: Any, grows: bool, few: int, many: int) -> None:
    name = name_of(topology)
    before, after = (few, many) if grows else (many, few)
    for phase in ("grow", "regroup") if grows else ("regroup", "retire"):
        for steps in (0, 5):
            parts.forget()
            cluster = begun(topology, before)
            state = cluster.master.topologies[name]
            cluster.scale(name, **dict.fromkeys(BOLTS, after))
            cluster.run_until(lambda state=state, phase=phase: state.scaling.phase == phase)  # type: ignore[misc]
            cluster.step(steps)
            cluster.kill(steps % 3)
            cluster.run(0.05)
            cluster.start(steps % 3)
            cluster.run_until(lambda cluster=cluster: scaled(cluster, name))  # type: ignore[misc]
            assert all(par_of(cluster, name)[bolt] == after for bolt in BOLTS), "the change continues after a loss"
            if topology is ScaledExact:
                finish(cluster, name)
                assert_exact(LIMIT)
            else:
                finish_at_least(cluster, LIMIT, name, ways=2 if topology in UNIONS else 1)


@pytest.mark.parametrize(("few", "many"), PAIRS)
@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("topology", [ScaledAtMost, ScaledUnionAtMost])
def test_at_most_once_a_death_costs_what_is_in_flight_and_nothing_else(topology: Any, grows: bool, few: int,
                                                                       many: int) -> None:
    """At most once, a tuple may be lost with a worker, but only one that is on its way when the worker dies. None is processed
    twice, and what arrives is in order. The worker has no spout: its spout would send again what it has sent since its last
    report."""
    name, ways = name_of(topology), 2 if topology in UNIONS else 1
    before, after = (few, many) if grows else (many, few)
    for phase in ("grow", "regroup") if grows else ("regroup", "retire"):
        for steps in (0, 5):
            parts.forget()
            cluster = begun(topology, before, workers=4)
            state = cluster.master.topologies[name]
            cluster.scale(name, **dict.fromkeys(BOLTS, after))
            cluster.run_until(lambda state=state, phase=phase: state.scaling.phase == phase)  # type: ignore[misc]
            cluster.step(steps)
            slot = next(slot for slot in sorted(cluster.workers) if slot not in {task.worker.slot for task in
                                                                                 tasks(cluster, "numbers")})
            in_flight = emitted(cluster) - written(ways)
            cluster.kill(slot)
            cluster.run(0.05)
            cluster.start(slot)
            cluster.run_until(lambda cluster=cluster: scaled(cluster, name))  # type: ignore[misc]
            assert all(par_of(cluster, name)[bolt] == after for bolt in BOLTS), "the change continues after a loss"
            until_processed(cluster)
            assert_at_most_once_in_order(cluster, ways)
            lost = set(range(LIMIT)) - written(ways)
            assert lost <= in_flight, f"{sorted(lost - in_flight)[:5]} were not on their way when the worker died"


def emitted(cluster: LocalCluster) -> set[int]:
    """The numbers that the spouts have sent."""
    return {task.component.ordinal(position) for task in tasks(cluster, "numbers")
            for position in range(task.component._next_position)}


def written(ways: int) -> set[int]:
    """The numbers that have come to the sink on all their ways."""
    return {number for number, count in Counter(number for _, number, _ in parts.WRITTEN).items() if count == ways}


@pytest.mark.parametrize(("few", "many"), PAIRS)
@pytest.mark.parametrize("topology", [ScaledSlowly, ScaledSlowlyTracked, ScaledSlowlyUntracked, *UNIONS])
def test_under_back_pressure(topology: Any, few: int, many: int) -> None:
    """The sink takes longer for its rows than the spouts need to send them."""
    name, cluster = name_of(topology), begun(topology, few, limit=600)
    slow_down(cluster, 0.002)
    cluster.run(0.2)
    for par in (many, few):
        record = scale(cluster, name, dict.fromkeys(BOLTS, par), seconds=200)
        assert record["outcome"] == "done", (record, cluster.said)
        cluster.run(0.2)
    assert not flaws(cluster)
    slow_down(cluster, 0.0)
    if topology in (ScaledSlowly, ScaledUnionSlowly):
        finish(cluster, name)
        assert_exact(600, 1 if topology is ScaledSlowly else 2)
    else:
        until_processed(cluster)
        assert not flaws(cluster)
        assert_once_in_order(cluster, 600, ways=2 if topology in UNIONS else 1)

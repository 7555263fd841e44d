"""Every strategy of migration on the one-process cluster, in every guarantee that allows it."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.api.topology import Topology
from millrace.control.events import Rebalanced, Replanned
from millrace.control.migrations import COMPLETED
from millrace.control.strategies.catalogue import STRATEGIES
from millrace.control.waves import PREPARE
from millrace.model.graph import TaskId
from millrace.model.plan import Plan
from millrace.runtime.wire.messages import Waved
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.watched_moves import STATE, kind_of
from support.cluster.wave_runs import assert_exact, finish, finish_at_least, start, until_wave
from support.migrations.quick import QUICK
from support.migrations.runs import MigrationRun, Stateless, StatelessAtMost, allowed

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
RESTARTING = {"storm", "storm*", "dsm", "dcr", "ccr"}


def shifted(cluster: LocalCluster, name: str, *components: str) -> dict[TaskId, int]:
    """The next slot for each task of these components."""
    return {task: (slot + 1) % len(cluster.workers) for task, slot in cluster.where(name).items()
            if task.component in components}


def migrate(cluster: LocalCluster, name: str, placement: dict[TaskId, int], strategy: str) -> dict[str, Any]:
    """Migrate, and return the record."""
    cluster.tell(Rebalanced(name, placement, strategy, QUICK.get(strategy, {})))
    assert cluster.master.topologies[name].migration is not None
    cluster.run_until(lambda: cluster.master.topologies[name].migration is None)
    return cluster.migrations.past(name)[-1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exactly_once(strategy: str) -> None:
    cluster = start()
    until_wave(cluster, 2)
    placement = shifted(cluster, "exact", "one", "tally")
    generations = {slot: worker.generation for slot, worker in cluster.workers.items()}
    record = migrate(cluster, "exact", placement, strategy)
    assert (record["strategy"], record["outcome"], record["reason"]) == (strategy, COMPLETED, "")
    assert placement.items() <= cluster.where("exact").items()
    restarted = {slot for slot, worker in cluster.workers.items() if worker.generation != generations[slot]}
    assert bool(restarted) == (strategy in RESTARTING), restarted
    finish(cluster)
    assert_exact()


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if not STRATEGIES[name].exactly_once])
def test_at_least_once(strategy: str) -> None:
    cluster = start(parts.AtLeast)
    until_wave(cluster, 2, "atleast")
    placement = shifted(cluster, "atleast", "one", "tally")
    record = migrate(cluster, "atleast", placement, strategy)
    assert (record["strategy"], record["outcome"]) == (strategy, COMPLETED)
    assert placement.items() <= cluster.where("atleast").items()
    finish_at_least(cluster)


def test_a_plan_of_a_scheduler_by_its_strategy() -> None:
    cluster = start()
    until_wave(cluster, 1)
    state = cluster.master.topologies["exact"]
    placement = shifted(cluster, "exact", "one")
    plan = Plan(state.version, {**state.plan.placement, **placement}, state.key_groups)
    cluster.tell(Replanned({"exact": plan}, {"exact": state.version}, "tstorm: better", 7, "dcr"))
    cluster.run_until(lambda: state.migration is None)
    record = cluster.migrations.past("exact")[-1]
    assert (record["strategy"], record["cause"]) == ("dcr", "scheduler: decision 7, tstorm: better")
    assert placement.items() <= cluster.where("exact").items()
    finish(cluster)
    assert_exact()


@pytest.mark.parametrize("topology", [Stateless, StatelessAtMost])
@pytest.mark.parametrize("strategy", allowed(Stateless))
def test_without_state(topology: type[Topology], strategy: str) -> None:
    """At least once no row is missing, and at most once none comes twice: spouts report how far they have come before they
    start elsewhere."""
    run = MigrationRun(strategy, topology)
    run.begin()
    assert run.settle()["outcome"] == COMPLETED
    run.end()


def test_a_topology_that_comes_to_a_worker_is_not_restarted_with_it() -> None:
    cluster = start()
    until_wave(cluster, 1)
    cluster.tell(Rebalanced("exact", shifted(cluster, "exact", "one"), "storm", {"message_timeout": 1.0}))
    cluster.submit(Stateless)
    cluster.run_until(lambda: cluster.master.topologies["exact"].migration is None)
    record = cluster.migrations.past("exact")[-1]
    assert record["outcome"] == "cancelled" and "it also has, or gets, tasks of 'stateless'" in record["reason"], record
    assert cluster.master.topologies["stateless"].losses == 0
    cluster.stop("stateless", 0.0)
    finish(cluster)
    assert_exact()


def test_a_task_that_has_not_finished_its_queue_in_time_ends() -> None:
    """Its tuples are replayed, and the migration goes on."""
    cluster = start()
    until_wave(cluster, 1)
    placement = shifted(cluster, "exact", "tally")
    cluster.drop = lambda sender, receiver, frames: kind_of(frames) == STATE  # the old incarnation has not handed over
    cluster.tell(Rebalanced("exact", placement, "nstorm+", {"supervisor_cycle": 0.0, "worker_cycle": 0.0, "drain": 0.2}))
    cluster.run_until(lambda: cluster.master.topologies["exact"].migration is None)
    record = cluster.migrations.past("exact")[-1]
    assert record["outcome"] == COMPLETED, record
    assert any("had more queued than could be processed in 0.2 s" in text for text in cluster.said), cluster.said
    assert placement.items() <= cluster.where("exact").items()
    finish(cluster)
    assert_exact()


def test_a_capture_does_not_wait_for_the_wave_under_way() -> None:
    """That wave is rolled back, and has not failed."""
    run = MigrationRun("ccr")
    waves = run.state.waves
    assert waves is not None
    run.cluster.run_until(lambda: waves.phase == PREPARE)
    wave, committed = waves.wave, set[int]()
    run.cluster.lose = lambda message: isinstance(message, Waved) and (message.kind, message.wave) == (PREPARE, wave)
    run.begin()
    while run.migration is not None:
        committed.add(waves.committed)
        run.cluster.step()
    assert wave not in committed and wave + 1 in committed, committed
    assert (waves.abandoned, waves.failed) == (0, 0)
    assert run.settle()["outcome"] == "done"
    run.end()

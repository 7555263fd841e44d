"""Tuples that are combined before they are sent: the totals are exact whatever happens meanwhile, and fewer tuples are sent."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from millrace.api.grouping import stable_hash
from millrace.api.topology import Topology
from millrace.control.events import Regrouped, Rescaled
from millrace.model.graph import TaskId
from support.cluster import wave_parts as parts
from support.cluster.cluster_runs import drain, meter, spouts_done
from support.cluster.moved_runs import at_rest, flaws
from support.cluster.wave_runs import finish
from support.load.combined_parts import (
    LETTERS,
    REFUSED,
    CombinedAtTheSource,
    CombinedBatches,
    CombinedRows,
    CombinedWrongly,
    MergedRows,
    SumBatches,
    Sums,
)
from support.load.measured_cluster import MeasuredCluster
from support.load.skewed_parts import COLD, GROUPS, HOT, TALLIES, last_totals, true_totals

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT, RATE = 8000, 16_000.0  # tuples, and those of a virtual second
EXACTLY, AT_LEAST, AT_MOST = "exactly-once", "at-least-once", "at-most-once"
GUARANTEES = pytest.mark.parametrize("guarantee", [AT_MOST, AT_LEAST, EXACTLY])
FORMS = pytest.mark.parametrize("topology", [CombinedRows, MergedRows, CombinedBatches, CombinedAtTheSource])


@pytest.fixture(autouse=True)
def _no_letters() -> Iterator[None]:
    yield
    LETTERS.clear()
    REFUSED.clear()


def started(topology: type[Topology], guarantee: str, par: dict[str, int] | None = None, **config: Any) -> MeasuredCluster:
    cluster = MeasuredCluster(3, nodes=3)
    Sums.clock = Sums.wall_clock = SumBatches.clock = SumBatches.wall_clock = staticmethod(cluster.clock.now)
    cluster.submit(topology, par=par, config={"limit": LIMIT, "topology.guarantee": guarantee, "topology.chunk.tuples": 50,
                                              "topology.checkpoint.interval.secs": 0.1, **config})
    cluster.run(0.1)
    return cluster


def name_of(topology: type[Topology]) -> str:
    return topology.__name__.lower()


def all_sent(cluster: MeasuredCluster) -> None:
    cluster.run_until(lambda: all(task.component.exhausted for task in cluster.tasks("numbers")))


def saved(cluster: MeasuredCluster) -> int:
    return meter(cluster, "numbers", "merged") + meter(cluster, "relay", "merged")


@GUARANTEES
@FORMS
def test_the_totals_are_exact_though_keys_and_tasks_move(topology: type[Topology], guarantee: str) -> None:
    cluster, name = started(topology, guarantee, rate=RATE), name_of(topology)
    group = stable_hash(HOT[0]) % GROUPS
    for owner, task in ((1, TaskId("tally", 0)), (2, TaskId("tally", 2)), (0, TaskId("numbers", 1))):
        cluster.tell(Regrouped(name, "tally", {group: owner}))
        cluster.run_until(lambda: at_rest(cluster, name))
        cluster.move(name, task, (cluster.where(name)[task] + 1) % 3)
        cluster.run_until(lambda: at_rest(cluster, name))
    all_sent(cluster)
    assert saved(cluster) and not flaws(cluster)
    drain(cluster, name)
    assert last_totals(guarantee) == true_totals(LIMIT)


@pytest.mark.parametrize("guarantee", [AT_LEAST, EXACTLY])
@FORMS
def test_the_totals_are_exact_though_the_number_of_tasks_changes(topology: type[Topology], guarantee: str) -> None:
    cluster, name = started(topology, guarantee, rate=RATE), name_of(topology)
    for tasks in (5, 2, 4):
        cluster.tell(Rescaled(name, {"tally": tasks}))
        cluster.run(0.05)
        cluster.run_until(lambda: at_rest(cluster, name) and cluster.master.topologies[name].scaling is None)
    assert len(cluster.tasks("tally")) == 4
    all_sent(cluster)
    assert saved(cluster) and not flaws(cluster)
    drain(cluster, name)
    assert last_totals(guarantee) == true_totals(LIMIT)


@GUARANTEES
@FORMS
def test_a_key_is_sent_once_in_a_chunk(topology: type[Topology], guarantee: str) -> None:
    cluster = started(topology, guarantee)
    cluster.run_until(lambda: meter(cluster, "tally", "executed") + saved(cluster) == LIMIT)
    assert saved(cluster) > LIMIT / 2
    sender = "relay" if cluster.tasks("relay") else "numbers"
    assert meter(cluster, sender, "emitted") == LIMIT, "tuples are counted as they were emitted"
    assert meter(cluster, sender, "transferred") == meter(cluster, "tally", "executed") == LIMIT - saved(cluster)
    sent = sum(int(counts["tally"].sum()) for task in cluster.tasks(sender) for counts in [task.group_counts])
    assert sent < LIMIT / 2, "key groups are balanced by what is sent"
    cluster.run(3.0)
    observed = cluster.observed[name_of(topology)]
    assert observed.total(sender, "merged") == saved(cluster)


@pytest.mark.parametrize("lost", [0, 1, 2])
@FORMS
def test_a_lost_worker_takes_nothing_of_the_totals_with_it(topology: type[Topology], lost: int) -> None:
    cluster = started(topology, EXACTLY, rate=RATE)
    cluster.kill(lost)
    cluster.start(lost)
    finish(cluster, name_of(topology))
    assert last_totals(EXACTLY) == true_totals(LIMIT)


@pytest.mark.parametrize("lost", [0, 1, 2])
@FORMS
def test_what_was_combined_is_replayed_as_a_whole_after_a_loss(topology: type[Topology], lost: int) -> None:
    """At least once, a tuple may count again, and none is missing: every root was acked."""
    cluster = started(topology, AT_LEAST, rate=RATE, **{"topology.message.timeout.secs": 5.0})
    cluster.kill(lost)
    cluster.start(lost)
    cluster.run_until(lambda: spouts_done(cluster))
    drain(cluster, name_of(topology))
    newest: dict[str, int] = {}
    for key, _, count in parts.WRITTEN:
        newest[key] = max(newest.get(key, 0), count)
    assert all(newest[key] >= count for key, (_, count) in true_totals(LIMIT).items())


@pytest.mark.parametrize("seed", range(4))
@FORMS
def test_the_totals_are_exact_through_random_losses_and_moves(topology: type[Topology], seed: int) -> None:
    random, cluster, name = Random(seed), started(topology, EXACTLY, rate=RATE), name_of(topology)

    def lose() -> None:
        slot = random.randrange(3)
        cluster.kill(slot)
        cluster.start(slot)

    def move() -> None:
        where = cluster.where(name)
        task = random.choice(sorted(where))
        cluster.move(name, task, random.randrange(3))

    def regroup() -> None:
        cluster.tell(Regrouped(name, "tally", {group: random.randrange(TALLIES) for group in random.sample(range(GROUPS), 30)}))

    for _ in range(6):
        cluster.run_until(lambda: cluster.master.topologies[name].status == "running" and at_rest(cluster, name))
        random.choice([lose, move, regroup])()
        cluster.run(random.choice([0.01, 0.05, 0.2]))
    finish(cluster, name)
    assert last_totals(EXACTLY) == true_totals(LIMIT)


@pytest.mark.parametrize("topology", [CombinedRows, MergedRows])
def test_a_tuple_that_fails_for_good_is_a_dead_letter_as_it_was_combined(topology: type[Topology]) -> None:
    REFUSED.add(COLD[0])
    cluster = started(topology, EXACTLY)
    finish(cluster, name_of(topology))
    truth = true_totals(LIMIT)
    total, count = truth.pop(COLD[0])
    assert {key for key, _, _ in LETTERS} == {COLD[0]} and len(LETTERS) < count
    assert (sum(each for _, each, _ in LETTERS), sum(each for _, _, each in LETTERS)) == (total, count)
    assert last_totals(EXACTLY) == truth


@GUARANTEES
def test_a_component_with_one_task_gets_combined_tuples_too(guarantee: str) -> None:
    cluster = started(CombinedRows, guarantee, par={"tally": 1})
    all_sent(cluster)
    assert saved(cluster) > LIMIT / 2
    drain(cluster, name_of(CombinedRows))
    assert last_totals(guarantee) == true_totals(LIMIT)


@GUARANTEES
def test_what_cannot_be_combined_is_reported_once_and_sent_as_it_is(guarantee: str) -> None:
    cluster = started(CombinedWrongly, guarantee)
    all_sent(cluster)
    assert saved(cluster) == 0 == meter(cluster, "numbers", "failed") and not flaws(cluster)
    assert meter(cluster, "numbers", "errors") == len(cluster.tasks("numbers")), "once for each task"
    drain(cluster, name_of(CombinedWrongly))
    assert all("any takes bool, not int" in text for text in cluster.errors) and cluster.errors
    assert last_totals(guarantee) == true_totals(LIMIT)



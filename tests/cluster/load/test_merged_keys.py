"""Hot keys of a bolt that declares a merge: senders merge their tuples, and the totals are exact whatever happens meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.api.grouping import stable_hash
from millrace.control.events import Regrouped
from millrace.testing.local_cluster import LocalCluster
from support.cluster.cluster_runs import drain, meter
from support.cluster.moved_runs import at_rest, flaws
from support.cluster.wave_runs import finish
from support.load.measured_cluster import MeasuredCluster
from support.load.skewed_parts import GROUPS, HOT, TALLIES, MergedSums, Totals, last_totals, true_totals

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
NAME, LIMIT = "mergedsums", 60_000
GUARANTEES = pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])


def started(guarantee: str, **config: Any) -> MeasuredCluster:
    cluster = MeasuredCluster(3, nodes=3)
    cluster.submit(MergedSums, config={"limit": LIMIT, "topology.guarantee": guarantee, "topology.chunk.tuples": 50,
                                       "topology.checkpoint.interval.secs": 0.1, **config})
    cluster.run(0.2)
    return cluster


@GUARANTEES
def test_the_totals_are_exact_though_the_hot_key_changes_its_owner(guarantee: str) -> None:
    cluster = started(guarantee)
    group = stable_hash(HOT[0]) % GROUPS
    for owner in (1, 2, 0):
        cluster.tell(Regrouped(NAME, "tally", {group: owner}))
        cluster.run_until(lambda: at_rest(cluster, NAME))
    cluster.run_until(lambda: all(task.component.exhausted for task in cluster.tasks("numbers")))
    saved = meter(cluster, "numbers", "merged")
    assert meter(cluster, "tally", "executed") < LIMIT / 2 and saved > LIMIT / 2 and not flaws(cluster)
    drain(cluster, NAME)
    assert last_totals(guarantee) == true_totals(LIMIT)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_worker_takes_nothing_of_the_totals_with_it(lost: int) -> None:
    cluster = started("exactly-once")
    cluster.kill(lost)
    cluster.start(lost)
    finish(cluster, NAME)
    assert last_totals("exactly-once") == true_totals(LIMIT)


class Raises:
    """Merges that do not do what they should."""

    @staticmethod
    def by_raising(one: Any, other: Any) -> Any:
        raise RuntimeError("cannot add")

    @staticmethod
    def to_another_key(one: Any, other: Any) -> Any:
        return "another", one[1] + other[1], one[2] + other[2]

    @staticmethod
    def to_too_few(one: Any, other: Any) -> Any:
        return one[:2]

    @staticmethod
    def to_an_object(one: Any, other: Any) -> Any:
        return one[0], object(), 1


@GUARANTEES
@pytest.mark.parametrize(("merge", "message"), [
    (Raises.by_raising, "cannot add"), (Raises.to_another_key, "it must keep the values of the fields"),
    (Raises.to_too_few, "2 values"), (Raises.to_an_object, "cannot be encoded")])
def test_a_merge_that_fails_is_reported_and_tuples_are_sent_one_by_one(merge: Any, message: str, guarantee: str,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Totals, "merge", staticmethod(merge))
    cluster = started(guarantee, limit=20_000)
    cluster.run_until(lambda: all(task.component.exhausted for task in cluster.tasks("numbers")))
    assert meter(cluster, "numbers", "errors") > 0 == meter(cluster, "numbers", "failed") and not flaws(cluster)
    drain(cluster, NAME)
    assert any(message in text for text in cluster.errors), cluster.errors
    assert last_totals(guarantee) == true_totals(20_000)


def test_a_component_with_one_task_gets_every_tuple() -> None:
    cluster = LocalCluster(2)
    cluster.submit(MergedSums, par={"tally": 1}, config={"limit": 4000, "topology.guarantee": "at-most-once"})
    cluster.run_until(lambda: meter(cluster, "tally", "executed") == 4000)
    assert TALLIES > 1 and not meter(cluster, "numbers", "merged")

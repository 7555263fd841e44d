"""Plans of schedulers that are carried out by a strategy: all of them or none, and key groups after the tasks."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.events import Rebalanced, Replanned
from millrace.errors import TopologyError
from millrace.model.graph import TaskId
from millrace.model.plan import Plan
from millrace.testing.local_cluster import LocalCluster
from support.migrations.quick import QUICK
from support.migrations.runs import MOVES, MigrationRun, Moved, MovedAtLeast, Stateless, allowed

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")


def plan_of(cluster: LocalCluster, name: str, moves: dict[TaskId, int], groups: dict[int, int] | None = None) -> Plan:
    state = cluster.master.topologies[name]
    owners = {component: list(owner) for component, owner in state.key_groups.items()}
    for group, owner in (groups or {}).items():
        owners["tally"][group] = owner
    return Plan(state.version, {**cluster.where(name), **moves}, {name: tuple(owner) for name, owner in owners.items()})


def replanned(cluster: LocalCluster, plans: dict[str, Plan], strategy: str) -> Replanned:
    based_on = {name: cluster.master.topologies[name].version for name in plans}
    return Replanned(plans, based_on, "the test wants it", 1, strategy, QUICK.get(strategy, {}))


@pytest.mark.parametrize(("topology", "strategy"), [
    pytest.param(topology, strategy, marks=marks) for topology, marks in ((Moved, ()), (MovedAtLeast, pytest.mark.slow))
    for strategy in allowed(topology) if strategy != "handover"])
def test_tasks_and_key_groups(topology: Any, strategy: str) -> None:
    run = MigrationRun(strategy, topology)
    owned = [group for group, owner in enumerate(run.state.key_groups["tally"]) if owner == 0][:4]
    plan = plan_of(run.cluster, run.name, MOVES, dict.fromkeys(owned, 1))
    run.cluster.tell(replanned(run.cluster, {run.name: plan}, strategy))
    run.cluster.run_until(lambda: run.over)
    assert run.cluster.where(run.name) == run.after
    assert dict(run.state.key_groups) == dict(plan.key_groups)
    migration, groups = run.cluster.migrations.past(run.name)[-2:]
    assert (migration["strategy"], migration["outcome"]) == (strategy, "done")
    assert {move["task"] for move in migration["moved"]} == set(map(str, MOVES))
    assert groups["strategy"] == "handover"
    assert migration["cause"] == groups["cause"] == "scheduler: decision 1, the test wants it"
    run.end()


def test_all_plans_or_none() -> None:
    """The second topology takes no waves, so the first one stays, too."""
    run = MigrationRun("rollback", MovedAtLeast)
    cluster = run.cluster
    cluster.submit(Stateless, config={"limit": 100})
    cluster.run_until(lambda: cluster.master.topologies["stateless"].status == "running")
    other = TaskId("tally", 0)
    plans = {run.name: plan_of(cluster, run.name, MOVES),
             "stateless": plan_of(cluster, "stateless", {other: (cluster.where("stateless")[other] + 1) % 5})}
    before = cluster.where(run.name), cluster.where("stateless"), cluster.master.revision
    with pytest.raises(TopologyError, match="'stateless' takes no waves, so it cannot be migrated by rollback"):
        cluster.tell(replanned(cluster, plans, "rollback"))
    assert (cluster.where(run.name), cluster.where("stateless"), cluster.master.revision) == before
    assert run.migration is None


def two_topologies(strategy: str, targets: dict[str, int]) -> tuple[LocalCluster, Replanned]:
    """`a` and `b` on workers 0 and 1, and a plan for each that moves a task to one of these workers."""
    cluster = LocalCluster(5, nodes=5)
    for name, slot in (("a", 0), ("b", 1)):
        cluster.submit(Stateless, name=name, config={"limit": 100})
        state = cluster.master.topologies[name]
        cluster.run_until(lambda state=state: state.status == "running")
        cluster.tell(Rebalanced(name, dict.fromkeys(state.places, slot)))
        cluster.run_until(lambda state=state: state.migration is None and state.handover.at_rest)
    plans = {name: plan_of(cluster, name, {TaskId("tally", 0): slot}) for name, slot in targets.items()}
    return cluster, replanned(cluster, plans, strategy)


@pytest.mark.parametrize("strategy", ["storm", "storm*"])
def test_none_if_one_restarts_a_worker_that_another_needs(strategy: str) -> None:
    cluster, event = two_topologies(strategy, {"a": 2, "b": 2})
    before = cluster.where("a"), cluster.where("b"), cluster.master.revision, cluster.master.closed
    with pytest.raises(TopologyError, match=r"worker 2 would be restarted for 'b', and tasks of 'a' are to move there: use a "
                                            "strategy that restarts no worker"):
        cluster.tell(event)
    assert (cluster.where("a"), cluster.where("b"), cluster.master.revision, cluster.master.closed) == before
    assert all(topology.migration is None for topology in cluster.master.topologies.values())


@pytest.mark.parametrize(("strategy", "targets"), [("storm*", {"a": 2, "b": 3}), ("nstorm", {"a": 2, "b": 2})])
def test_all_if_they_do_not_meet(strategy: str, targets: dict[str, int]) -> None:
    cluster, event = two_topologies(strategy, targets)
    cluster.tell(event)
    cluster.run_until(lambda: all(topology.migration is None for topology in cluster.master.topologies.values()))
    assert {name: cluster.where(name)[TaskId("tally", 0)] for name in targets} == targets
    assert [cluster.migrations.past(name)[-1]["outcome"] for name in targets] == ["done", "done"]

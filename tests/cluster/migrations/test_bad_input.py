"""Migrations that cannot be: they are refused with what to do instead, and nothing changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.control.events import Killed, Moved, Rebalanced, WorkerLeaves
from millrace.control.strategies.catalogue import STRATEGIES
from millrace.errors import MillraceError, NotEnoughSlots, TopologyError, UnknownName, UnknownTopology
from millrace.model.graph import TaskId, batched, graph_of
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import AtLeast, Exact, Pass, Plain
from support.cluster.wave_runs import assert_exact, finish, start
from support.migrations.quick import QUICK
from support.migrations.runs import PlainNumbers, Rows

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
TALLY = TaskId("tally", 0)


class Stateless(Topology):
    numbers = PlainNumbers.spec()
    through = Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    rows = Rows.spec(inputs={through: Grouping.SHUFFLE})


class NotReplayable(Topology):
    config: ClassVar[dict[str, Any]] = {}
    plain = Plain.spec()
    through = Pass.spec(inputs={plain: Grouping.SHUFFLE}, par=2)


def running(topology: Any = Exact, **config: Any) -> LocalCluster:
    cluster = start(topology, limit=600, **config)
    name = topology.__name__.lower()
    cluster.run_until(lambda: cluster.master.topologies[name].status == "running")
    return cluster


def everything(cluster: LocalCluster) -> Any:
    """All that a refused request must not change."""
    master = cluster.master
    topologies = {name: (state.version, dict(state.places), dict(state.homes), dict(state.key_groups), state.status,
                         state.migration, state.held_back, state.capturing, dict(state.handover.waiting))
                  for name, state in master.topologies.items()}
    return (master.revision, master.closed, sorted(master.workers), list(cluster.said), len(cluster.migrations.past()),
            topologies)


def refused(cluster: LocalCluster, event: Any, error: type[MillraceError], text: str) -> None:
    before = everything(cluster)
    with pytest.raises(error, match=text):
        cluster.tell(event)
    assert everything(cluster) == before


def elsewhere(cluster: LocalCluster, task: TaskId, name: str = "exact") -> dict[TaskId, int]:
    return {task: (cluster.where(name)[task] + 1) % 3}


def test_unknown_names() -> None:
    cluster = running()
    moves = elsewhere(cluster, TALLY)
    refused(cluster, Rebalanced("exact", moves, "teleport"), UnknownName,
            "there is no strategy 'teleport'; there are handover, rollback, storm")
    refused(cluster, Moved("exact", TALLY, moves[TALLY], "teleport"), UnknownName, "there is no strategy 'teleport'")
    refused(cluster, Rebalanced("exact", moves, "storm", {"timeout": 3.0}), UnknownName,
            "the strategy storm has no parameter 'timeout'; it has message_timeout=30")
    refused(cluster, Rebalanced("exact", moves, "handover", {"timeout": 3.0}), UnknownName, "it has none")
    refused(cluster, Rebalanced("exact", moves, "storm", {"message_timeout": -1.0}), MillraceError, "expected seconds")
    refused(cluster, Rebalanced("exact", {TaskId("tally", 9): 0}, "storm"), UnknownName,
            r"'exact' has no running task tally\[9\]")
    refused(cluster, Rebalanced("nobody", moves, "storm"), UnknownTopology,
            "no topology named 'nobody' is running; running: exact")
    finish(cluster)
    assert_exact(600)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_slot_that_does_not_exist(strategy: str) -> None:
    cluster = running()
    refused(cluster, Rebalanced("exact", {TALLY: 7}, strategy), NotEnoughSlots,
            r"the placement needs worker 7, and there are only 0, 1, 2\. Add workers first \(millrace workers add\)")


def test_strategies_that_the_guarantee_does_not_allow() -> None:
    cluster = running(AtLeast)
    refused(cluster, Rebalanced("atleast", elsewhere(cluster, TALLY, "atleast"), "ccr"), TopologyError,
            "ccr needs the guarantee exactly-once, and 'atleast' has at-least-once.*Use dcr or handover")
    cluster = running(Stateless)
    for strategy in ("dcr", "dsm", "rollback", "ccr"):
        moves = elsewhere(cluster, TaskId("through", 0), "stateless")
        refused(cluster, Rebalanced("stateless", moves, strategy), TopologyError,
                f"'stateless' takes no waves, so it cannot be migrated by {strategy}.*Use handover, storm")


def test_spouts_that_cannot_be_replayed() -> None:
    cluster = running(NotReplayable)
    where, spout = cluster.where("notreplayable"), TaskId("plain", 0)
    through = TaskId("through", 0)
    for strategy in ("storm", "storm*"):
        moves = {through: where[spout] if where[through] != where[spout] else (where[spout] + 1) % 3}
        refused(cluster, Rebalanced("notreplayable", moves, strategy), TopologyError,
                rf"restarts worker {where[spout]} with plain\[0\], which would lose tuples of 'notreplayable'.*Use handover")
    for strategy in ("storm", "storm*", "handover", "tstorm", "nstorm", "nstorm+", "layered"):
        refused(cluster, Rebalanced("notreplayable", {spout: (where[spout] + 1) % 3}, strategy), TopologyError,
                r"plain\[0\] cannot be moved: its source cannot be replayed.*ReplayableSpout")


def test_exactly_once_and_a_spout_that_cannot_be_replayed_is_refused_at_the_start() -> None:
    with pytest.raises(TopologyError):
        LocalCluster(3).submit(parts.NotReplayable)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_topology_in_batches(strategy: str) -> None:
    cluster = LocalCluster(3, nodes=3)
    cluster.submit(batched(graph_of(AtLeast, config={"limit": 10})))
    refused(cluster, Rebalanced("atleast", elsewhere(cluster, TALLY, "atleast"), strategy), TopologyError,
            "'atleast' runs in batches, and its tasks move between two of them: use `millrace move` without a strategy")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_worker_that_has_tasks_of_another_topology(strategy: str) -> None:
    cluster = running()
    cluster.submit(AtLeast, config={"limit": 600})
    cluster.run_until(lambda: cluster.master.topologies["atleast"].status == "running")
    event = Rebalanced("exact", elsewhere(cluster, TALLY), strategy, QUICK.get(strategy, {}))
    if strategy in ("storm", "storm*", "dsm", "dcr", "ccr"):
        refused(cluster, event, TopologyError,
                r"worker \d would be restarted, and it also has, or gets, tasks of 'atleast': use a strategy that restarts no")
    else:
        cluster.tell(event)
        assert elsewhere_in(cluster, event.placement)


def elsewhere_in(cluster: LocalCluster, moves: Mapping[TaskId, int]) -> bool:
    state = cluster.master.topologies["exact"]
    cluster.run_until(lambda: state.migration is None and state.handover.at_rest, seconds=120.0)
    return moves.items() <= cluster.where("exact").items()


@pytest.mark.parametrize("first", STRATEGIES)
@pytest.mark.parametrize("second", ["handover", "storm*"])
def test_a_second_migration(first: str, second: str) -> None:
    """It is refused."""
    cluster = running()
    moves, others = elsewhere(cluster, TALLY), elsewhere(cluster, TaskId("one", 0))
    cluster.tell(Rebalanced("exact", moves, first, QUICK.get(first, {})))
    refused(cluster, Rebalanced("exact", others, second), TopologyError,
            "'exact' is being migrated by .*: try again when that is over")
    assert elsewhere_in(cluster, moves)


def test_a_migration_while_tasks_are_moved() -> None:
    cluster = running()
    moves, others = elsewhere(cluster, TALLY), elsewhere(cluster, TaskId("one", 0))
    cluster.tell(Moved("exact", TALLY, moves[TALLY]))
    for strategy in STRATEGIES:
        refused(cluster, Rebalanced("exact", others, strategy), TopologyError,
                "tasks or key groups of 'exact' are being moved: try again when they have arrived")
    assert elsewhere_in(cluster, moves)


def test_workers_that_leave() -> None:
    cluster = running()
    slot = cluster.where("exact")[TALLY]
    cluster.tell(WorkerLeaves((slot + 1) % 3))
    refused(cluster, Rebalanced("exact", elsewhere(cluster, TALLY), "storm*"), TopologyError,
            "is being removed or restarted: move .* to another worker, or try again later")


def test_a_topology_that_is_killed() -> None:
    cluster = running()
    moves = elsewhere(cluster, TALLY)
    cluster.tell(Killed("exact", 10.0, cluster.clock.now()))
    refused(cluster, Rebalanced("exact", moves, "dcr"), TopologyError,
            "topology 'exact' is stopping: it can be migrated only while it runs or is paused")


def test_a_placement_that_is_in_force_already() -> None:
    cluster = running()
    before = cluster.where("exact")
    cluster.tell(Rebalanced("exact", {TALLY: before[TALLY]}, "storm"))
    assert cluster.said[-1] == "exact: every task is already where it is wanted"
    assert cluster.where("exact") == before and cluster.master.topologies["exact"].migration is None


def test_a_worker_that_is_to_get_a_task_of_another_topology() -> None:
    """The move of the other one is not cut short."""
    cluster = LocalCluster(3, nodes=3)
    for name, slot in (("stateless", 0), ("other", 2)):
        cluster.submit(Stateless, name=name, config={"limit": 600, "rate": 100.0})
        state = cluster.master.topologies[name]
        cluster.run_until(lambda state=state: state.status == "running")
        cluster.tell(Rebalanced(name, dict.fromkeys(state.places, slot)))
        cluster.run_until(lambda state=state: state.migration is None)
    cluster.deaf.add(1)  # it does not hear of the move, which therefore stays where it is
    cluster.tell(Moved("other", TaskId("through", 0), 1))
    assert cluster.master.topologies["other"].handover.batch
    refused(cluster, Rebalanced("stateless", {TaskId("through", 0): 1}, "storm*"), TopologyError,
            "worker 1 would be restarted, and it also has, or gets, tasks of 'other'")

"""Tasks are moved by a roll-back to a wave, the strategy that hand-over is compared with."""

from __future__ import annotations

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.control.events import Rebalanced, Withdrawn
from millrace.control.moves import BY_ROLLBACK
from millrace.errors import TopologyError, UnknownName
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import assert_exact, finish, finish_at_least, start, until_wave, waves

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
TALLY = TaskId("tally", 0)


class Stateless(Topology):
    numbers = parts.Plain.spec()
    one = parts.Pass.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)


def next_slot(cluster: LocalCluster, task: TaskId, name: str = "exact") -> int:
    return (cluster.where(name)[task] + 1) % len(cluster.workers)


@pytest.mark.parametrize("component", ["numbers", "one", "tally", "ledger"])
def test_a_task_moves_after_the_next_wave_in_a_new_epoch(component: str) -> None:
    cluster, task = start(), TaskId(component, 0)
    until_wave(cluster, 2)
    epoch, wave, source = cluster.master.topologies["exact"].epoch, waves(cluster).committed, cluster.where("exact")[task]
    target = next_slot(cluster, task)
    cluster.move("exact", task, target, BY_ROLLBACK)
    assert cluster.where("exact")[task] == source
    cluster.run_until(lambda: cluster.where("exact").get(task) == target)
    assert waves(cluster).committed == wave + 1 and cluster.master.topologies["exact"].epoch == epoch + 1
    assert f"exact: {task} started on worker {target} by rollback, with the state of wave {wave + 1}" in cluster.said
    finish(cluster)
    assert_exact()


def test_many_tasks_move_with_one_roll_back() -> None:
    cluster = start()
    until_wave(cluster, 1)
    epoch = cluster.master.topologies["exact"].epoch
    targets = {task: next_slot(cluster, task) for task in cluster.where("exact") if task.component in ("one", "tally")}
    cluster.tell(Rebalanced("exact", targets, BY_ROLLBACK))
    cluster.run_until(lambda: targets.items() <= cluster.where("exact").items())
    until_wave(cluster, 1)
    assert cluster.master.topologies["exact"].epoch == epoch + 1
    finish(cluster)
    assert_exact()


def test_at_least_once_the_output_is_never_short() -> None:
    cluster = start(parts.AtLeast)
    until_wave(cluster, 1, "atleast")
    target = next_slot(cluster, TALLY, "atleast")
    cluster.move("atleast", TALLY, target, BY_ROLLBACK)
    cluster.run_until(lambda: cluster.where("atleast").get(TALLY) == target)
    finish_at_least(cluster)


def test_it_is_refused_while_a_hand_over_is_under_way() -> None:
    cluster, one = start(), TaskId("one", 0)
    until_wave(cluster, 1)
    epoch, targets = cluster.master.topologies["exact"].epoch, {task: next_slot(cluster, task) for task in (TALLY, one)}
    cluster.move("exact", TALLY, targets[TALLY])
    with pytest.raises(TopologyError, match="'exact' are being moved: try again when they have arrived"):
        cluster.move("exact", one, targets[one], BY_ROLLBACK)
    cluster.run_until(lambda: cluster.where("exact")[TALLY] == targets[TALLY])
    assert cluster.master.topologies["exact"].epoch == epoch and cluster.where("exact")[one] != targets[one]
    finish(cluster)
    assert_exact()


def test_the_worker_that_a_task_is_to_move_to_is_lost() -> None:
    cluster = start()
    until_wave(cluster, 1)
    target = next_slot(cluster, TALLY)
    cluster.move("exact", TALLY, target, BY_ROLLBACK)
    cluster.kill(target)
    until_wave(cluster, 1)
    assert cluster.where("exact")[TALLY] != target and cluster.master.topologies["exact"].migration is None
    finish(cluster)
    assert_exact()


def test_a_move_can_be_withdrawn_until_the_wave() -> None:
    cluster = start()
    until_wave(cluster, 1)
    epoch, source = cluster.master.topologies["exact"].epoch, cluster.where("exact")[TALLY]
    cluster.move("exact", TALLY, next_slot(cluster, TALLY), BY_ROLLBACK)
    cluster.tell(Withdrawn("exact", TALLY))
    until_wave(cluster, 2)
    assert cluster.where("exact")[TALLY] == source and cluster.master.topologies["exact"].epoch == epoch
    finish(cluster)
    assert_exact()


def test_a_topology_without_waves_refuses_it() -> None:
    cluster, task = LocalCluster(workers=2), TaskId("one", 0)
    cluster.submit(Stateless)
    cluster.run(0.5)
    before = cluster.where("stateless")
    with pytest.raises(TopologyError, match="'stateless' takes no waves, so it cannot be migrated by rollback: it keeps no "
                                            "state and is not exactly-once"):
        cluster.move("stateless", task, 1 - before[task], BY_ROLLBACK)
    cluster.run(0.5)
    assert cluster.where("stateless") == before


def test_an_unknown_strategy_is_refused() -> None:
    cluster = start()
    with pytest.raises(UnknownName, match="no strategy 'magic'; there are handover, rollback"):
        cluster.move("exact", TALLY, next_slot(cluster, TALLY), "magic")

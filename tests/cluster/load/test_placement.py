"""The scheduler in use places the tasks of a new topology and those of a lost worker, and `even` is re-established live."""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.config import COMPONENT_MEMORY
from millrace.control.events import LoadEstimated, SchedulerChosen
from millrace.control.topology_status import RUNNING, WAITING
from millrace.schedulers.base import NewPlan, NoChange
from millrace.schedulers.even import Even
from millrace.schedulers.registry import make_scheduler
from support.cluster.cluster_runs import drain, spouts_done
from support.cluster.moved_runs import at_rest
from support.cluster.plain_parts import Numbers, Pass, Sink
from support.cluster.records import SEEN, forget
from support.load.measured_cluster import MeasuredCluster

N = 4000
CONFIG = {"limit": N, "burst": 10, "batch": 10, "topology.chunk.tuples": 10, "topology.message.timeout.secs": 2.0}


class Rows(Topology):
    numbers = Numbers.spec(par=2)
    through = Pass.spec(inputs=[numbers], par=4)
    sink = Sink.spec(inputs={through: Grouping.fields("n")}, par=4)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    forget()


def started(scheduler: str, **config: object) -> MeasuredCluster:
    """Four workers on two nodes: 0 and 2 on node0, 1 and 3 on node1."""
    cluster = MeasuredCluster(4, nodes=2)
    cluster.tell(SchedulerChosen(scheduler, make_scheduler(scheduler)))
    cluster.submit(Rows, config={**CONFIG, **config})
    return cluster


def slots(cluster: MeasuredCluster) -> Counter[int]:
    return Counter(place.slot for place in cluster.master.topologies["rows"].places.values())


def finish(cluster: MeasuredCluster) -> None:
    cluster.run_until(lambda: spouts_done(cluster))
    cluster.run(0.5)
    drain(cluster, "rows")
    assert set(SEEN["sink"]) == set(range(N))


@pytest.mark.parametrize("scheduler", ["tstorm", "otd", "resource-aware"])
def test_a_stream_survives_the_loss_of_a_worker_whose_tasks_the_scheduler_places(scheduler: str) -> None:
    cluster = started(scheduler)
    assert scheduler != "tstorm" or set(slots(cluster)) == {0, 1}, "one worker on a node"
    cluster.run(0.05)
    cluster.tell(LoadEstimated({"rows": cluster.window("rows", 0.1)}))
    places = dict(cluster.master.topologies["rows"].places)
    lost = {task for task, place in places.items() if place.slot == 1}
    cluster.kill(1)
    after = cluster.master.topologies["rows"].places
    assert all(after[task] == place for task, place in places.items() if task not in lost), "nothing else moves"
    assert 1 not in slots(cluster)
    assert not lost or f"by {scheduler}" in cluster.said[-1], cluster.said[-3:]
    finish(cluster)


def test_even_is_re_established_while_the_stream_runs() -> None:
    cluster = started("tstorm")
    cluster.run(0.05)
    load = cluster.window("rows", 0.1)
    assert set(slots(cluster)) == {0, 1}
    assert isinstance(cluster.plan(Even(), "rows", load), NewPlan)
    cluster.run_until(lambda: at_rest(cluster, "rows"))
    assert sorted(slots(cluster).values()) == [3, 3, 4, 4], "ten tasks and four ackers"
    assert isinstance(cluster.plan(Even(), "rows", load), NoChange)
    finish(cluster)


def test_a_topology_waits_for_memory_and_runs_when_a_worker_brings_some() -> None:
    cluster = MeasuredCluster(1, nodes=2)
    cluster.tell(SchedulerChosen("resource-aware", make_scheduler("resource-aware")))
    memory = cluster.node(0).memory_mb / 10  # fewer than its tasks fit on a node
    cluster.submit(Rows, config={**CONFIG, COMPONENT_MEMORY.key: memory})
    assert cluster.master.topologies["rows"].status == WAITING
    cluster.start(1)
    cluster.run_until(lambda: cluster.master.topologies["rows"].status == RUNNING)
    assert max(slots(cluster).values()) <= 10
    finish(cluster)

"""Slow bolts, late starts and odd user code: nothing is lost, queues stay short, and the stream continues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.model.graph import graph_of
from millrace.testing.local_cluster import LocalCluster
from support.cluster import hard_parts
from support.cluster.cluster_runs import drain, run_through
from support.cluster.hard_parts import BusyBatches, ClearsItsAnchors, Exits, RefusesOnce, Slow, StartsAtLast
from support.cluster.misbehaving_parts import divides
from support.cluster.plain_parts import Numbers, Reliable, Sink
from support.cluster.records import SEEN

N = 100
QUICK_TIMEOUT = {"topology.message.timeout.secs": 3.0}


def one_bolt(bolt: Any, spout: Any = Reliable, **options: Any) -> type[Topology]:
    source = spout.spec(name="source")
    return type("OneBolt", (Topology,), {"source": source, "bolt": bolt.spec(inputs=options.get("inputs", {
        source: options.get("grouping", Grouping.SHUFFLE)}), par=options.get("par", 1))})


def two_bolts(first: Any, second: Any) -> type[Topology]:
    source = Reliable.spec(name="source")
    bolt = first.spec(name="bolt", inputs=[source])
    return type("TwoBolts", (Topology,), {"source": source, "bolt": bolt, "sink": second.spec(inputs=[bolt])})


def test_a_bolt_too_slow_for_the_timeout_still_finishes() -> None:
    cluster = LocalCluster(2)
    hard_parts.CLOCK[:] = [cluster.clock]
    cluster.submit(one_bolt(Slow), config={"limit": N, **QUICK_TIMEOUT})
    most = 0

    def done() -> bool:
        nonlocal most
        most = max([most, *(task.queue_length for task in cluster.tasks("bolt"))])
        return set(SEEN["slow"]) == set(range(N)) and all(task.idle() for task in cluster.tasks("source"))

    cluster.run_until(done, seconds=600)
    assert most <= 5 * N, "replays piled up in the inbox"


def test_batches_run_though_the_bolt_is_always_busy() -> None:
    cluster = LocalCluster(1)
    cluster.submit(one_bolt(BusyBatches, Numbers), config={"topology.chunk.tuples": 10, "burst": 10})
    cluster.run(1.0)
    assert sum(SEEN["batches"]) > 0


def test_a_bolt_whose_server_comes_up_late_starts_late_and_loses_nothing() -> None:
    cluster = LocalCluster(2)
    graph = cluster.submit(two_bolts(StartsAtLast, Sink), config={"limit": N})
    cluster.run(0.5)
    assert cluster.master.topologies[graph.name].status == "starting", "it must not say that all is up"
    cluster.run_until(lambda: cluster.master.topologies[graph.name].status == "running", seconds=30)
    cluster.run(1.0)
    drain(cluster, graph.name)
    assert sorted(SEEN["sink"]) == [-1, *range(N)], "what initialize emitted comes too"


def test_sys_exit_in_user_code_is_an_error_like_others() -> None:
    run_through(one_bolt(Exits), limit=N)
    assert set(SEEN["exits"]) == set(range(N)) - {7}


def test_anchors_are_those_at_the_time_of_the_emit() -> None:
    run_through(two_bolts(ClearsItsAnchors, RefusesOnce), seconds=3.0, limit=N, **{"topology.chunk.tuples": 1})
    assert set(SEEN["refuses"]) == set(range(N)), "a tuple that was sent untracked is not sent again"


def test_a_lost_worker_affects_only_topologies_with_tasks_there() -> None:
    cluster = LocalCluster(2)
    graph = cluster.submit(one_bolt(Sink), config={"limit": N, "topology.workers": 1})
    cluster.run(0.5)
    used = set(cluster.where(graph.name).values())
    cluster.kill(({0, 1} - used).pop())
    assert cluster.master.topologies[graph.name].losses == 0


def test_a_grouping_that_workers_cannot_import_fails_tuples_and_not_workers() -> None:
    cluster = LocalCluster(2)
    graph = graph_of(one_bolt(Sink, grouping=Grouping.custom(divides), par=2), "broken", {"limit": N})
    bolt = graph.component("bolt")
    subscription = replace(bolt.inputs[0], grouping=Grouping("custom", code="nowhere:to_be_found"))
    cluster.submit(replace(graph, components=(graph.components[0], replace(bolt, inputs=(subscription,)))))
    cluster.submit(one_bolt(Sink), name="good", config={"limit": N})
    cluster.run(3.0)
    assert sorted(SEEN["sink"] or SEEN["bolt"]) == list(range(N))
    assert sum(task.meters.dead_letters for task in cluster.tasks("source")) == N


@pytest.mark.parametrize("position", [3.5, "7"])
def test_a_position_must_be_a_whole_number(position: Any) -> None:
    spout = Numbers()
    with pytest.raises(TypeError):
        spout.emit([1], tup_id=position)

"""Measured traffic: the bytes of tuples between tasks, and the load and the messages of ackers."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout
from millrace.model.graph import ACKER, TaskId
from millrace.runtime.wire.bodies import encode_rows
from millrace.schedulers.problem import Problem
from support.cluster.plain_parts import NumbersArrow
from support.load.measured_cluster import MeasuredCluster

SPOUT, SINK = TaskId("words", 0), TaskId("sink", 0)
ROW = ("a word of thirty-two characters.",)
CHUNK = 16
PACED = {"topology.chunk.tuples": CHUNK, "burst": CHUNK, "topology.acker.executors": 1}


class Words(GeneratorSpout):
    outputs = ["word"]

    def generate(self, position: int) -> tuple[str]:
        return ROW


class Drop(Bolt):
    def process(self, tup: Tuple) -> None: ...


class Line(Topology):
    words = Words.spec()
    sink = Drop.spec(inputs={words: Grouping.SHUFFLE})


class ArrowLine(Topology):
    words = NumbersArrow.spec()
    sink = Drop.spec(inputs={words: Grouping.SHUFFLE})


def started(topology: Any, **config: Any) -> MeasuredCluster:
    cluster = MeasuredCluster(2)
    cluster.submit(topology, name="line", config={**PACED, **config})
    cluster.run(0.5)
    return cluster


def put(cluster: MeasuredCluster, *tasks: TaskId, slot: int) -> None:
    state = cluster.master.topologies["line"]
    for task in tasks:
        if state.places[task].slot != slot:
            cluster.move("line", task, slot)
            cluster.run_until(lambda: state.handover.at_rest)
            assert state.places[task].slot == slot
    cluster.run(0.5)


def width() -> float:
    return len(encode_rows([ROW] * CHUNK)) / CHUNK


@pytest.mark.parametrize("together", [True, False])
def test_bytes_are_counted_between_workers_and_estimated_inside_one(together: bool) -> None:
    cluster = started(Line)
    put(cluster, SPOUT, slot=0)
    put(cluster, SINK, slot=0 if together else 1)
    load = cluster.window("line", 1.0)
    tuples = load.traffic[SPOUT, SINK]
    assert tuples > 100
    assert load.traffic_bytes[SPOUT, SINK] == pytest.approx(tuples * width(), rel=0.02)


def test_bytes_go_on_when_a_task_moves() -> None:
    cluster = started(Line)
    put(cluster, SPOUT, slot=0)
    put(cluster, SINK, slot=0)
    before = cluster.observed["line"].load(cluster.clock.now())
    put(cluster, SINK, slot=1)
    put(cluster, SINK, slot=0)
    after = cluster.observed["line"].load(cluster.clock.now())
    tuples = after.traffic[SPOUT, SINK] - before.traffic[SPOUT, SINK]
    assert tuples > 0
    assert after.traffic_bytes[SPOUT, SINK] - before.traffic_bytes[SPOUT, SINK] == pytest.approx(tuples * width(), rel=0.02)


def test_arrow_batches_have_bytes_too() -> None:
    cluster = started(ArrowLine)
    put(cluster, SPOUT, slot=0)
    sizes = []
    for slot in (0, 1):
        put(cluster, SINK, slot=slot)
        load = cluster.window("line", 1.0)
        sizes.append(load.traffic_bytes[SPOUT, SINK] / load.traffic[SPOUT, SINK])
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05) and sizes[0] >= 8.0


def test_ackers_have_load_and_traffic_with_spouts_and_bolts() -> None:
    cluster, acker = started(Line), TaskId(ACKER, 0)
    put(cluster, SPOUT, slot=0)
    put(cluster, SINK, acker, slot=1)
    load = cluster.window("line", 1.0)
    roots = load.traffic[SPOUT, acker]
    assert roots > 10
    assert load.traffic[acker, SPOUT] == pytest.approx(roots, rel=0.2), "it tells the spout of every root"
    assert load.traffic[SINK, acker] == pytest.approx(roots, rel=0.2)
    assert load.tasks[acker].executed == pytest.approx(2 * roots, rel=0.2)
    assert load.tasks[acker].emitted == load.traffic[acker, SPOUT]
    for pair in ((SPOUT, acker), (SINK, acker), (acker, SPOUT)):
        assert load.traffic_bytes[pair] > load.traffic[pair]
    assert load.arrival_rate("words") == pytest.approx(load.tasks[SPOUT].emitted / load.window_seconds), "no arrivals"
    graph = cluster.master.topologies["line"].graph
    problem = Problem.of([graph], cluster.master.cluster(), {"line": load}, {"line": cluster.master.topologies["line"].plan})
    ends = {problem.tasks[number][1] for number in (*problem.left, *problem.right)}
    assert acker in ends, "schedulers see what an acker sends and receives"


def test_an_acker_that_moves_counts_on() -> None:
    cluster, acker = started(Line), TaskId(ACKER, 0)
    put(cluster, SPOUT, SINK, slot=0)
    put(cluster, acker, slot=1)
    put(cluster, acker, slot=0)
    cluster._report()
    observed = cluster.observed["line"]
    told = sum(observed.tasks[acker].sent().values())
    acked = observed.tasks[SPOUT].total("acked")
    assert told * CHUNK == pytest.approx(acked, rel=0.2) and told > 0
    assert observed.tasks[acker].slot == 0


def test_without_acks_there_are_no_ackers_to_measure() -> None:
    cluster = started(Line, **{"topology.guarantee": "at-most-once"})
    load = cluster.window("line", 1.0)
    assert {task.component for task in load.tasks} == {"words", "sink"}
    assert set(load.traffic) == {(SPOUT, SINK)}

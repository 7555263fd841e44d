"""Situations and loads from a history."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from millrace.errors import BadSituation
from millrace.master.load.history_tables import PastWindow
from millrace.model.graph import ACKER, TaskId
from millrace.model.load import Load, TaskLoad
from millrace.model.sample import NodeLoad, WorkerLoad
from millrace.model.situation import Situation
from millrace.schedulers.instances import random_situation
from millrace.schedulers.problem import Problem
from millrace.simulation.recorded import graph_of_load, recorded_demands, recorded_situation, recorded_situations
from millrace.simulation.world import World

CASE = random_situation(np.random.default_rng(3), topologies=(1, 1), shape="diamond")


def window(factor: float, case: Situation = CASE) -> PastWindow:
    """A window of the case with `factor` times its load."""
    loads = {}
    for name, load in case.load.items():
        sent = {task: sum(tuples for (source, _), tuples in load.traffic.items() if source == task) for task in load.tasks}
        loads[name] = Load(load.window_seconds, {
            task: replace(row, cpu_mhz=row.cpu_mhz * factor, emitted=round(sent[task] * factor),
                          offered=round(sent[task] * factor * 2)) for task, row in load.tasks.items()},
            {pair: tuples * factor for pair, tuples in load.traffic.items()})
    nodes = {node.name: NodeLoad(1.0, node.capacity_mhz, 1.0, 1.0) for node in case.cluster.nodes}
    return PastWindow(1.0, 10.0, loads, {name: plan.placement for name, plan in case.plan.items()},
                      {slot.number: WorkerLoad(slot.node) for slot in case.cluster.slots}, nodes)


def test_the_situation_of_a_history_is_the_one_that_was_recorded() -> None:
    seen = recorded_situation([window(0.5), window(1.5)], CASE)
    assert seen.graphs == CASE.graphs and seen.cluster.nodes == CASE.cluster.nodes
    assert {name: plan.placement for name, plan in seen.plan.items()} == {name: plan.placement
                                                                          for name, plan in CASE.plan.items()}
    one, other = (Problem.of(each.graphs, each.cluster, each.load, each.plan) for each in (seen, CASE))
    assert one.rate == pytest.approx(other.rate) and one.cpu == pytest.approx(other.cpu)


def test_without_a_saved_situation_graph_and_cluster_are_rebuilt() -> None:
    seen = recorded_situation([window(1.0)])
    expected = {component.name: (component.kind, component.par, {read.source for read in component.inputs})
                for graph in CASE.graphs for component in graph.components}
    assert {component.name: (component.kind, component.par, {read.source for read in component.inputs})
            for graph in seen.graphs for component in graph.components} == expected
    assert [node.capacity_mhz for node in seen.cluster.nodes] == pytest.approx([node.capacity_mhz
                                                                                for node in CASE.cluster.nodes])


def test_ackers_and_streams_in_a_circle() -> None:
    def load(*pairs: tuple[str, str]) -> Load:
        traffic = {(TaskId(one, 0), TaskId(other, 0)): 10.0 for one, other in pairs}
        return Load(1.0, {task: TaskLoad() for pair in traffic for task in pair}, traffic)

    graph = graph_of_load("t", load(("a", "b"), ("b", ACKER), (ACKER, "a")))
    assert [component.kind for component in graph.components] == ["spout", "bolt"] and graph.ackers == 1
    with pytest.raises(BadSituation, match="in a circle"):
        graph_of_load("t", load(("a", "b"), ("b", "a")))


def test_the_load_is_replayed_window_by_window_as_the_sources_offered_it() -> None:
    past = [window(1.0), window(3.0)]
    world = World.of(recorded_situation(past, CASE))
    demands = recorded_demands(world, past)
    first, second, again = (demands.between(begin, begin + 10.0) for begin in (0.0, 10.0, 20.0))
    assert second.rate == pytest.approx(3 * first.rate, rel=0.01) and (again.rate == first.rate).all()
    emitted = sum(row.emitted for load in past[0].loads.values() for task, row in load.tasks.items()
                  if task.component == "c0")
    assert first.rate[world.spout].sum() == pytest.approx(2 * emitted / 10.0, rel=0.01), "twice as much was offered"


def test_only_windows_with_the_same_tasks_count() -> None:
    other = random_situation(np.random.default_rng(9), topologies=(1, 1))
    assert len(recorded_situations([window(1.0, other), window(1.0), window(2.0)])) == 2
    with pytest.raises(BadSituation, match="no window with traffic"):
        recorded_situation([replace(window(1.0), seconds=0.0)])


def test_a_situation_of_another_run_is_refused() -> None:
    last = CASE.graphs[0].components[-1]
    other = replace(CASE.graphs[0], components=(*CASE.graphs[0].components[:-1], replace(last, par=last.par + 1)))
    with pytest.raises(BadSituation, match=f"has {last.par + 1} tasks of '{last.name}' .* history has {last.par}"):
        recorded_situation([window(1.0)], replace(CASE, graphs=(other,)))
    gone = replace(CASE.graphs[0], components=CASE.graphs[0].components[:-1])
    with pytest.raises(BadSituation, match=f"has 0 tasks of '{last.name}'"):
        recorded_situation([window(1.0)], replace(CASE, graphs=(gone,)))


def test_ackers_that_were_not_measured_have_no_load() -> None:
    acked = replace(CASE, graphs=(replace(CASE.graphs[0], ackers=2),))
    world = World.of(recorded_situation([window(1.0)], acked))
    demand = recorded_demands(world, [window(1.0)]).between(0.0, 10.0)
    ackers = np.array([task.component == ACKER for _, task in world.tasks])
    assert ackers.sum() == 2 and not demand.rate[ackers].any() and demand.rate[~ackers].all()

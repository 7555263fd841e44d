"""Another number of tasks for bolts of a topology that runs in batches: what may change, and what may not and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from millrace.config import KEY_GROUP_COUNT
from millrace.errors import TopologyError
from millrace.model.graph import TASKS_LIMIT, ComponentDef, TopologyGraph


def rescaled(graph: TopologyGraph, par: Mapping[str, int]) -> TopologyGraph:
    """The graph with so many tasks of these components; the graph itself if it has them. All or nothing: an error, and it
    says why, if one of them cannot have as many."""
    if not graph.batched:
        raise TopologyError(f"{graph.name!r} runs on resident workers, and a resident topology keeps its parallelism while it "
                            "runs: start it with --engine microbatch, or kill it and run it again with --resume and --par")
    for name, tasks in par.items():
        _check(graph, graph.component(name), tasks)
    if all(graph.component(name).par == tasks for name, tasks in par.items()):
        return graph
    return replace(graph, components=tuple(replace(component, par=par.get(component.name, component.par))
                                           for component in graph.components))


def _check(graph: TopologyGraph, component: ComponentDef, tasks: int) -> None:
    name = component.name
    if not isinstance(tasks, int) or isinstance(tasks, bool) or not 1 <= tasks <= TASKS_LIMIT:
        raise TopologyError(f"{name!r} of {graph.name!r} cannot have {tasks!r} tasks: give a whole number from 1 to "
                            f"{TASKS_LIMIT}")
    if tasks == component.par:
        return
    if component.kind == "spout":
        raise TopologyError(f"{name!r} of {graph.name!r} is a spout, and each of its {component.par} tasks has a position of "
                            "its own in the source: their number stays. Bolts can be scaled")
    if component.own_state:
        raise TopologyError(f"{name!r} of {graph.name!r} has a snapshot() of its own, so each of its {component.par} tasks has "
                            "a state that belongs to no other: their number stays. State that is kept by key can be shared out "
                            "anew")
    if component.keyed and tasks > graph.key_groups:
        raise TopologyError(f"{name!r} of {graph.name!r} cannot have {tasks} tasks: its state has {graph.key_groups} key "
                            f"groups, and each task needs one. Their number is fixed while it runs; {KEY_GROUP_COUNT.key} sets "
                            "it")

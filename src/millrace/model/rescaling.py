"""Changes the number of tasks of components in a running topology, and checks that it may change."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.config import KEY_GROUP_COUNT
from millrace.errors import TopologyError
from millrace.model.graph import TASKS_LIMIT, ComponentDef, TopologyGraph

FIXED_GROUPINGS = {
    "global": "all its tuples go to its first task, so that others would get none",
    "direct": "its senders choose the task of each tuple, and may know only those that there were when they started",
}


def rescaled(graph: TopologyGraph, par: Mapping[str, int]) -> TopologyGraph:
    """The graph with these numbers of tasks; the graph itself if nothing changes. All or nothing: an error with the reason if
    one of the components cannot be scaled."""
    for name, tasks in par.items():
        check_tasks(graph, graph.component(name), tasks)
    if all(graph.component(name).par == tasks for name, tasks in par.items()):
        return graph
    return graph.with_par(par)


def check_tasks(graph: TopologyGraph, component: ComponentDef, tasks: int) -> None:
    """Raise `TopologyError` with the reason if the component cannot have so many tasks while it runs."""
    name = component.name
    if not isinstance(tasks, int) or isinstance(tasks, bool) or not 1 <= tasks <= TASKS_LIMIT:
        raise TopologyError(f"{name!r} of {graph.name!r} cannot have {tasks!r} tasks: give a whole number from 1 to "
                            f"{TASKS_LIMIT}")
    if tasks == component.par:
        return
    if component.kind == "spout":
        _check_splits(graph, component, tasks)
        return
    if component.own_state:
        raise TopologyError(f"{name!r} of {graph.name!r} defines snapshot(), so each of its {component.par} tasks has its own "
                            "state: their number is fixed. Keep the state by key instead: key groups can be redistributed")
    for kind, why in FIXED_GROUPINGS.items():
        if any(read.grouping.kind == kind for read in component.inputs):
            raise TopologyError(f"{name!r} of {graph.name!r} has a {kind} grouping: {why}. It keeps its {component.par} "
                                f"{'task' if component.par == 1 else 'tasks'}")
    if component.keyed and tasks > graph.key_groups:
        raise TopologyError(f"{name!r} of {graph.name!r} cannot have {tasks} tasks: its state has {graph.key_groups} key "
                            f"groups, and each task needs one, so it can have {graph.key_groups} at most. "
                            f"{KEY_GROUP_COUNT.key} sets their number, which is fixed while it runs")


def _check_splits(graph: TopologyGraph, component: ComponentDef, tasks: int) -> None:
    name, splits = component.name, component.splits
    if component.divided_by_source and not component.own_state:
        return
    if component.dataframe and graph.batched:
        return  # Spark deals the rows of each batch to the tasks that there are
    if component.dataframe and not splits:
        raise TopologyError(f"{name!r} of {graph.name!r} reads a DataFrame without splits, so each of its {component.par} "
                            f"{'task' if component.par == 1 else 'tasks'} has rows of its own: their number is fixed "
                            "while it runs. Declare it with splits, for example Spout.from_dataframe(..., splits=16): rows are "
                            "dealt to them, and tasks can share them out anew")
    if not component.movable:
        raise TopologyError(f"{name!r} of {graph.name!r} is a spout that cannot be read from a position, so its source cannot "
                            f"be divided anew: it keeps its {component.par} {'task' if component.par == 1 else 'tasks'}. A "
                            "ReplayableSpout with splits can be scaled")
    if not splits:
        raise TopologyError(f"{name!r} of {graph.name!r} is a spout, and each of its {component.par} tasks has its own "
                            "position in the source: their number is fixed. Declare it with splits, for example "
                            "config={'splits': 16}: they have a position each, and tasks can share them out anew")
    if tasks > splits:
        raise TopologyError(f"{name!r} of {graph.name!r} cannot have {tasks} tasks: its source has {splits} splits, and each "
                            f"task needs one, so it can have {splits} at most. Their number is fixed while it runs")

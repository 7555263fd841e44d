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
    """Raise `TopologyError` with the reason, and what is possible, if the component cannot have so many tasks while it runs."""
    whole = isinstance(tasks, int) and not isinstance(tasks, bool)
    if whole and tasks == component.par:
        return
    if reason := _why_fixed_spout(graph, component) if component.kind == "spout" else _why_fixed(component):
        raise TopologyError(f"{component.name!r} of {graph.name!r} {reason}")
    most, bound, set_by = _most_tasks(graph, component)
    if not whole or not 1 <= tasks <= most:
        nearest = f"; the nearest is {min(max(tasks, 1), most)}" if whole else ""
        raise TopologyError(f"{component.name!r} of {graph.name!r} cannot have {tasks!r} tasks: {bound}. Give a whole number "
                            f"from 1 to {most}{nearest}{set_by}")


def _why_fixed(component: ComponentDef) -> str:
    """The reason why a bolt keeps its number of tasks; empty if it can be scaled."""
    if component.own_state:
        return (f"defines snapshot(), so each of its {component.par} tasks has its own state: their number is fixed. Keep the "
                "state by key instead: key groups can be redistributed")
    for kind, why in FIXED_GROUPINGS.items():
        if any(read.grouping.kind == kind for read in component.inputs):
            return f"has a {kind} grouping: {why}. It keeps its {_tasks(component)}"
    return ""


def _why_fixed_spout(graph: TopologyGraph, component: ComponentDef) -> str:
    """The same for a spout."""
    if component.divided_by_source and not component.own_state:
        return ""
    if component.dataframe and graph.batched:
        return ""  # Spark deals the rows of each batch to the tasks that there are
    if component.dataframe and not component.splits:
        return (f"reads a DataFrame without splits, so each of its {_tasks(component)} has rows of its own: their number is "
                "fixed while it runs. Declare it with splits, for example Spout.from_dataframe(..., splits=16): rows are dealt "
                "to them, and tasks can share them out anew")
    if not component.movable:
        return ("is a spout that cannot be read from a position, so its source cannot be divided anew: it keeps its "
                f"{_tasks(component)}. A ReplayableSpout with splits can be scaled")
    if not component.splits:
        return (f"is a spout, and each of its {component.par} tasks has its own position in the source: their number is fixed. "
                "Declare it with splits, for example config={'splits': 16}: they have a position each, and tasks can share "
                "them out anew")
    return ""


def _tasks(component: ComponentDef) -> str:
    return f"{component.par} {'task' if component.par == 1 else 'tasks'}"


def _most_tasks(graph: TopologyGraph, component: ComponentDef) -> tuple[int, str, str]:
    """The most tasks that a component can have, the reason, and what sets them."""
    if (most := component.splits) and not (component.dataframe and graph.batched):
        owned, set_by = f"its source has {most} splits", ". The number of splits is fixed while it runs"
    elif component.keyed:
        most = graph.key_groups
        owned = f"its state has {most} key groups"
        set_by = f". {KEY_GROUP_COUNT.key} sets the number of key groups, which is fixed while it runs"
    else:
        return TASKS_LIMIT, f"a component can have {TASKS_LIMIT} at most", ""
    return most, f"{owned}, and each task needs one, so it can have {most} at most", set_by

"""Topologies whose numbers of tasks have changed: the scheduler is asked again once they run as scaled.

New tasks are placed where there is room, so that they start at once. Where they should be depends on their load and traffic,
which is first known at the end of a window that they have run through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load


@dataclass(slots=True)
class ScaledTopologies:
    """Changes of parallelism that the scheduler was not asked about yet."""

    _par: dict[str, dict[str, int]] = field(default_factory=dict)
    _scaled: set[str] = field(default_factory=set)

    def observe(self, graphs: Iterable[TopologyGraph]) -> None:
        """Called at the end of a window, with the graphs of the running topologies."""
        seen = {graph.name: dict(graph.parallelism) for graph in graphs}
        changed = {name for name, par in seen.items() if self._par.get(name, par) != par}
        self._scaled = (self._scaled | changed) & seen.keys()
        self._par = seen

    def settled(self, graphs: Iterable[TopologyGraph], loads: Mapping[str, Load]) -> bool:
        """True, once, if topologies were scaled and the window covers all tasks of these. `graphs`: of those that run with all
        their tasks."""
        running = {graph.name: graph for graph in graphs}
        if not self._scaled or not all(name in running and _covered(running[name], loads.get(name, Load()))
                                       for name in self._scaled):
            return False
        self._scaled = set()
        return True

    def forget(self, topology: str) -> None:
        self._par.pop(topology, None)
        self._scaled.discard(topology)


def _covered(graph: TopologyGraph, load: Load) -> bool:
    tasks = {TaskId(component.name, index) for component in graph.components for index in range(component.par)}
    return tasks <= load.tasks.keys() and tasks.isdisjoint(load.settling)

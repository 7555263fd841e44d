"""Topologies whose numbers of tasks have changed: the scheduler is asked again once they run as scaled.

New tasks are placed where there is room, so that they start at once. Where they should be depends on their load and traffic,
which is known once they have run through some windows: a single one does not tell the gain of a plan from noise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load

COVERED_WINDOWS = 3  # before the scheduler is asked


@dataclass(slots=True)
class ScaledTopologies:
    """Changes of parallelism that the scheduler was not asked about yet."""

    _par: dict[str, dict[str, int]] = field(default_factory=dict)
    _scaled: dict[str, int] = field(default_factory=dict)  # windows since then that cover all tasks

    def observe(self, graphs: Iterable[TopologyGraph], loads: Mapping[str, Load]) -> None:
        """Called at the end of a window, with the graphs of the running topologies, and the loads in it of those whose tasks do
        not move just now."""
        running = {graph.name: graph for graph in graphs}
        seen = {name: dict(graph.parallelism) for name, graph in running.items()}
        changed = {name for name, par in seen.items() if self._par.get(name, par) != par}
        before = {**self._scaled, **dict.fromkeys(changed, 0)}
        self._scaled = {name: windows + _covered(running[name], loads.get(name, Load()))
                        for name, windows in before.items() if name in running}
        self._par = seen

    def settled(self, running: Collection[str]) -> bool:
        """True, once, if topologies were scaled and enough windows cover all tasks of these. `running`: the topologies that run
        with all their tasks."""
        if not self._scaled or not all(name in running and windows >= COVERED_WINDOWS
                                       for name, windows in self._scaled.items()):
            return False
        self._scaled = {}
        return True

    def forget(self, topology: str) -> None:
        self._par.pop(topology, None)
        self._scaled.pop(topology, None)


def _covered(graph: TopologyGraph, load: Load) -> bool:
    tasks = {TaskId(component.name, index) for component in graph.components for index in range(component.par)}
    return tasks <= load.tasks.keys() and tasks.isdisjoint(load.settling)

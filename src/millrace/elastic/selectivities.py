"""Selectivities of a topology: tuples that arrive over an edge for each tuple that its source processes.

They are the ratio of two sums over all tasks, smoothed alike. A smoothed load has means for each pair of tasks, which say
nothing for some windows after a change of parallelism: those of new pairs still rise, and those of pairs that are gone still
fall.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from millrace.elastic.network import Edge
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load

KEEP = 0.5  # weight of the past against one more window


class Selectivities:
    """Those of one topology. A window in which a component processes nothing leaves its edges as they are."""

    def __init__(self) -> None:
        self._sums: dict[Edge, tuple[float, float]] = {}  # sent, processed

    def learn(self, graph: TopologyGraph, load: Load) -> Mapping[Edge, float]:
        """The selectivities of all edges after one more window; 0 for an edge whose source has processed nothing yet."""
        edges = dict.fromkeys((read.source, component.name) for component in graph.components for read in component.inputs)
        sent: defaultdict[Edge, float] = defaultdict(float)
        for (source, target), tuples in load.traffic.items():
            sent[source.component, target.component] += tuples
        spouts = {spout.name for spout in graph.spouts}
        processed: defaultdict[str, float] = defaultdict(float)
        for task, measured in load.tasks.items():
            processed[task.component] += measured.emitted if task.component in spouts else measured.executed
        for edge in edges:
            if (count := processed[edge[0]]) > 0:
                before, of = self._sums.get(edge, (0.0, 0.0))
                self._sums[edge] = KEEP * before + sent[edge], KEEP * of + count
        return {edge: self._sums[edge][0] / self._sums[edge][1] if edge in self._sums else 0.0 for edge in edges}

"""Selectivities of a topology: tuples that arrive over an edge for each tuple that its source processes.

They are the ratio of two sums over all tasks, smoothed alike. A smoothed load has means for each pair of tasks, which say
nothing for some windows after a change of parallelism: those of new pairs still rise, and those of pairs that are gone still
fall.

An edge over which tuples come in bursts, such as the results of windows of a minute, is smoothed over many of them: no single
load window says how many tuples arrive in the long run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from millrace.elastic.network import Edge
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load

KEEP = 0.5  # weight of the past against one more window
BURSTS_HALVED = 600.0  # seconds after which the past has half its weight, for an edge with bursts
BURSTS = 1.5  # bursts that have begun, weighted like the past: two, not long ago; a stream that begins is one


class Selectivities:
    """Those of one topology. A window in which a component processes nothing leaves its edges as they are."""

    def __init__(self) -> None:
        self._edges: dict[Edge, _Edge] = {}

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
                self._edges.setdefault(edge, _Edge()).learn(sent[edge], count, load.window_seconds)
        return {edge: self._edges[edge].selectivity if edge in self._edges else 0.0 for edge in edges}


class _Edge:
    """One edge: sums of what was sent and processed, with a short and a long memory."""

    def __init__(self) -> None:
        self._latest = self._long = (0.0, 0.0)
        self._bursts = 0.0
        self._silent = False  # nothing was sent in the last window

    def learn(self, sent: float, processed: float, seconds: float) -> None:
        keep = 0.5 ** (seconds / BURSTS_HALVED)
        self._bursts = keep * self._bursts + (self._silent and sent > 0)
        self._silent = sent <= 0
        self._latest = _added(self._latest, KEEP, sent, processed)
        self._long = _added(self._long, keep, sent, processed)

    @property
    def selectivity(self) -> float:
        sent, processed = self._long if self._bursts > BURSTS else self._latest
        return sent / processed


def _added(sums: tuple[float, float], keep: float, sent: float, processed: float) -> tuple[float, float]:
    return keep * sums[0] + sent, keep * sums[1] + processed

"""True processing rates of a topology's components: tuples per second of the time in which a task is busy.

They are kept over windows in which a component gets no tuples, so a branch that gets one now and then always has a rate. A task
that is busy for most of a window without finishing a tuple is in a long call: that time counts for the next tuples. A task that
is busy now and then polls an idle source or works on ticks, which says nothing about tuples.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from millrace.model.graph import TopologyGraph
from millrace.model.load import Load

KEEP = 0.5  # weight of the past against one more window with tuples
LONG_CALL = 0.5  # share of a window for which a task is busy in a call that has not returned


class ServiceRates:
    """Those of one topology."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}  # tuples processed, seconds for them
        self._busy: defaultdict[str, float] = defaultdict(float)  # seconds of long calls since the last tuple was finished

    def learn(self, graph: TopologyGraph, load: Load) -> Mapping[str, float]:
        """The rates after one more window, of all components that have ever processed a tuple."""
        spouts = {spout.name for spout in graph.spouts}
        processed: defaultdict[str, int] = defaultdict(int)
        for task, measured in load.tasks.items():
            tuples = measured.emitted if task.component in spouts else measured.executed
            processed[task.component] += tuples
            if tuples or measured.busy_seconds >= LONG_CALL * load.window_seconds:
                self._busy[task.component] += measured.busy_seconds
        for name, tuples in processed.items():
            if tuples > 0:
                before, seconds = self._sums.get(name, (0.0, 0.0))
                self._sums[name] = KEEP * before + tuples, KEEP * seconds + self._busy.pop(name, 0.0)
        return {name: tuples / seconds if seconds > 0 else math.inf for name, (tuples, seconds) in self._sums.items()}

"""Top_N: the most frequent words of a sliding window. Read → split → count → merge the rankings."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.settings import setting
from millrace.workloads.wordcount import Lines, Split

TOP = 10
WINDOW = 10
TICK_SECONDS = "topology.tick.tuple.freq.secs"

Ranking = list[tuple[str, int]]


def ranking(counts: dict[str, int], top: int) -> Ranking:
    """The `top` most frequent words, in alphabetical order among equals."""
    return heapq.nsmallest(top, counts.items(), key=lambda item: (-item[1], item[0]))


class RollingCount(Bolt):
    """Counts words over the last ticks and emits its ranking at each tick.

    | config | meaning |
    | --- | --- |
    | `top` | length of the ranking (default 10) |
    | `window` | ticks in the window (default 10) |

    Each word goes to one task, so the top N overall are among the top N of the tasks.
    """

    outputs: ClassVar[list[str]] = ["task", "words", "counts"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._top: int = setting(self, storm_conf, "top", int, TOP, least=1)
        window = setting(self, storm_conf, "window", int, WINDOW, least=1)
        self._past: deque[Counter[str]] = deque(maxlen=window)  # one for each tick; the last is being filled
        self._past.append(Counter())
        self._current = self._past[-1]
        self._totals: Counter[str] = Counter()

    def snapshot(self) -> Any:
        """The windows of the task; not by key, because a window is a number of the task's own ticks."""
        return [dict(counts) for counts in self._past]

    def restore(self, snapshot: Any) -> None:
        self._past.clear()
        self._past.extend(map(Counter, snapshot))
        self._current = self._past[-1]
        self._totals = sum(list(self._past)[:-1], Counter())

    def process(self, tup: Tuple) -> None:
        self._current[tup.values[0]] += 1

    def process_tick(self, tup: Tuple) -> None:
        self._totals.update(self._current)
        best = ranking(self._totals, self._top)
        self.emit((self.task_index, [word for word, _ in best], [count for _, count in best]))
        if len(self._past) == self._past.maxlen:
            self._totals.subtract(self._past[0])
            self._totals = +self._totals  # drops words that have left the window, to bound memory
        self._past.append(Counter())
        self._current = self._past[-1]


class MergeRanks(Bolt):
    """Merges the latest ranking of each counting task and emits the result at each tick.

    Config: `top` and `window` as for RollingCount; a task without a ranking for a whole window is left out.
    """

    outputs: ClassVar[list[str]] = ["words", "counts"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._top: int = setting(self, storm_conf, "top", int, TOP, least=1)
        self._window: int = setting(self, storm_conf, "window", int, WINDOW, least=1)
        self._newest: dict[int, tuple[int, Ranking]] = {}  # task -> tick of arrival, ranking
        self._tick = 0
        self.ranking: Ranking = []

    def snapshot(self) -> Any:
        return self._tick, self._newest, self.ranking

    def restore(self, snapshot: Any) -> None:
        self._tick, self._newest, self.ranking = snapshot

    def process(self, tup: Tuple) -> None:
        task, words, counts = tup.values
        self._newest[task] = self._tick, list(zip(words, counts, strict=True))

    def process_tick(self, tup: Tuple) -> None:
        self._tick += 1
        self._newest = {task: newest for task, newest in self._newest.items() if self._tick - newest[0] <= self._window}
        merged: Counter[str] = Counter()
        for _, ranks in self._newest.values():
            for word, count in ranks:
                merged[word] = max(merged[word], count)  # a word that moved to another task is in both rankings
        self.ranking = ranking(merged, self._top)
        self.emit(([word for word, _ in self.ranking], [count for _, count in self.ranking]))


class TopN(Topology):
    """Sl-Stream's first topology: 1 + 10 + 8 + 1 tasks."""

    config: ClassVar[dict[str, Any]] = {"zipf": 1.0, TICK_SECONDS: 1}
    read = Lines.spec(par=1)
    split = Split.spec(inputs={read: Grouping.SHUFFLE}, par=10)
    count = RollingCount.spec(inputs={split: Grouping.fields("word")}, par=8)
    merge = MergeRanks.spec(inputs={count: Grouping.GLOBAL}, par=1)


class WideTopN(Topology):
    """Sl-Stream's second topology: 4 + 3 + 3 + 1 tasks."""

    config: ClassVar[dict[str, Any]] = {"zipf": 1.0, TICK_SECONDS: 1}
    read = Lines.spec(par=4)
    split = Split.spec(inputs={read: Grouping.SHUFFLE}, par=3)
    count = RollingCount.spec(inputs={split: Grouping.fields("word")}, par=3)
    merge = MergeRanks.spec(inputs={count: Grouping.GLOBAL}, par=1)

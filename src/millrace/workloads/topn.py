"""Top_N: the most frequent words of a sliding window. Read → split → count → merge the rankings."""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.settings import setting
from millrace.workloads.audit import AuditSink, NumberedLines, SplitNumbered, true_counts
from millrace.workloads.wordcount import SEED, VOCABULARY, Lines, Split

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


class CountNumberedWords(Bolt):
    """Counts words in keyed state; emits every word with its number and its new count."""

    outputs: ClassVar[list[str]] = ["task", "position", "index", "word", "count"]
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        word = tup.values.word
        self.counts[word] = count = self.counts[word] + 1
        self.emit((*tup.values, count))


class MergeCounts(Bolt):
    """Keeps the ranking of all counts that it was sent, and passes the words on. Config: `top` as for RollingCount.

    A word's counts come in their order and only rise. So a word outside the ranking enters it with its newest count, and the
    words in the ranking suffice.
    """

    outputs: ClassVar[list[str]] = ["task", "position", "index", "word"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._top: int = setting(self, storm_conf, "top", int, TOP, least=1)
        self._best: dict[str, int] = {}

    @property
    def ranking(self) -> Ranking:
        return ranking(self._best, self._top)

    def snapshot(self) -> Any:
        return self._best

    def restore(self, snapshot: Any) -> None:
        self._best = snapshot

    def process(self, tup: Tuple) -> None:
        task, position, index, word, count = tup.values
        self._best[word] = count
        if len(self._best) > self._top:
            self._best = dict(self.ranking)
        self.emit((task, position, index, word))


class AuditedTopN(Topology):
    """TopN with proof: the ranking of all words so far, and audit files in the directory `path`. The ranking of a sliding
    window depends on the time of its ticks, this one on the input alone. 1 + 10 + 8 + 1 tasks and a sink."""

    config: ClassVar[dict[str, Any]] = {"zipf": 1.0, "path": str(Path(tempfile.gettempdir()) / "millrace-topn")}
    read = NumberedLines.spec(par=1)
    split = SplitNumbered.spec(inputs={read: Grouping.SHUFFLE}, par=10)
    count = CountNumberedWords.spec(inputs={split: Grouping.fields("word")}, par=8)
    merge = MergeCounts.spec(inputs={count: Grouping.GLOBAL}, par=1)
    sink = AuditSink.spec(inputs={merge: Grouping.LOCAL_OR_SHUFFLE}, par=1)


class AuditedWideTopN(Topology):
    """WideTopN with proof, as AuditedTopN: 4 + 3 + 3 + 1 tasks and a sink."""

    config: ClassVar[dict[str, Any]] = AuditedTopN.config
    read = NumberedLines.spec(par=4)
    split = SplitNumbered.spec(inputs={read: Grouping.SHUFFLE}, par=3)
    count = CountNumberedWords.spec(inputs={split: Grouping.fields("word")}, par=3)
    merge = MergeCounts.spec(inputs={count: Grouping.GLOBAL}, par=1)
    sink = AuditSink.spec(inputs={merge: Grouping.LOCAL_OR_SHUFFLE}, par=1)


def true_ranking(expected: Mapping[int, int], top: int = TOP, *, seed: int = SEED, words: int = VOCABULARY,
                 zipf: float = 1.0) -> Ranking:
    """The true ranking of the words in the lines that the spouts have sent. `expected` as for `audit`."""
    return ranking(true_counts(expected, seed=seed, words=words, zipf=zipf), top)

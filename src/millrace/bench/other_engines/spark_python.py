"""Spark Structured Streaming on the word count, the counting in Python: the faster of its two stateful operators.

Both are tried with one size of a batch, the better one with others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING or __package__:
    from .reporting import Request, Throughput, parse_request, print_result
    from .spark_common import CORES, ROCKSDB, Counting, best_throughput, scratch_directory, spark_session
else:
    from reporting import Request, Throughput, parse_request, print_result
    from spark_common import CORES, ROCKSDB, Counting, best_throughput, scratch_directory, spark_session

BATCH_LINES = (200_000, 100_000, 400_000)
SHUFFLE_PARTITIONS = CORES
COUNTS = "word string, count long"
SETTING = f"local[{CORES}], text files in memory, one update a word and batch, the best of some sizes of a batch"


def _count(key: tuple[str], occurrences: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count one word: Spark calls this once for each word of a batch."""
    count = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in occurrences)
    state.update((count,))
    yield pd.DataFrame({"word": [key[0]], "count": [count]})


class Count(StatefulProcessor):
    """The same for the newer operator."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        before = self._count.get()
        count = (before[0] if before is not None else 0) + sum(len(frame) for frame in rows)
        self._count.update((count,))
        yield pd.DataFrame({"word": [key[0]], "count": [count]})

    def close(self) -> None:
        """There is nothing to close."""


def apply_in_pandas(words: DataFrame) -> DataFrame:
    grouped = words.groupBy("word")
    return grouped.applyInPandasWithState(_count, COUNTS, "count long", "update", GroupStateTimeout.NoTimeout)


def transform_in_pandas(words: DataFrame) -> DataFrame:
    return words.groupBy("word").transformWithStateInPandas(Count(), COUNTS, "update", "none")


# The newer one runs on no other store.
OPERATORS = {
    "applyInPandasWithState": Counting(apply_in_pandas, "value.groupState.count"),
    "transformWithStateInPandas": Counting(transform_in_pandas, "value.count", {"stateVarName": "count"}, ROCKSDB),
}


def measure(session: SparkSession, scratch: Path, request: Request) -> tuple[Throughput, list[dict[str, object]]]:
    first, *others = request.batch_lines or BATCH_LINES
    runs, trials = {}, []
    for name, counting in OPERATORS.items():
        runs[name], found = best_throughput(session, scratch / name, request, [first], counting)
        trials += [{"operator": name, **trial} for trial in found]
    name = max(runs, key=lambda name: runs[name].words_per_s)
    if not others:
        return runs[name], trials
    best, found = best_throughput(session, scratch / "others", request, others, OPERATORS[name])
    trials += [{"operator": name, **trial} for trial in found]
    return max(best, runs[name], key=lambda run: run.words_per_s), trials


def main() -> None:
    request = parse_request(__doc__ or "")
    if not request.lines:
        raise SystemExit("this engine has no latency run: give --lines")
    with scratch_directory() as scratch, spark_session(SHUFFLE_PARTITIONS, scratch) as session:
        throughput, trials = measure(session, scratch, request)
    print_result("spark_python", pyspark.__version__, SETTING, throughput, latency=None, trials=trials)


if __name__ == "__main__":
    main()

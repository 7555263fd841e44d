"""Structured Streaming on the word count, counting in Python: by `applyInPandasWithState`, or with `--transform` by
`transformWithStateInPandas`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyspark
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING or __package__:
    from .reporting import parse_request, print_result
    from .spark_common import CORES, ROCKSDB, Counting, measure, scratch_directory, source_of, spark_session
else:
    from reporting import parse_request, print_result
    from spark_common import CORES, ROCKSDB, Counting, measure, scratch_directory, source_of, spark_session

SHUFFLE_PARTITIONS = CORES
COUNTS = "word string, count long"


def _count(key: tuple[str], occurrences: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count one word: Spark calls this once for each word of a batch."""
    count = (state.get[0] if state.exists else 0) + sum(len(dataframe) for dataframe in occurrences)
    state.update((count,))
    yield pd.DataFrame({"word": [key[0]], "count": [count]})


class CountProcessor(StatefulProcessor):
    """Counts one word, for the newer operator."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        before = self._count.get()
        count = (before[0] if before is not None else 0) + sum(len(dataframe) for dataframe in rows)
        self._count.update((count,))
        yield pd.DataFrame({"word": [key[0]], "count": [count]})

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def apply_in_pandas(words: DataFrame) -> DataFrame:
    grouped = words.groupBy("word")
    return grouped.applyInPandasWithState(_count, COUNTS, "count long", "update", GroupStateTimeout.NoTimeout)


def transform_in_pandas(words: DataFrame) -> DataFrame:
    return words.groupBy("word").transformWithStateInPandas(CountProcessor(), COUNTS, "update", "none")


APPLY = Counting(apply_in_pandas, "value.groupState.count")
# It runs on no other store.
TRANSFORM = Counting(transform_in_pandas, "value.count", options={"stateVarName": "count"}, store=ROCKSDB)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--transform", action="store_true")
    options, others = parser.parse_known_args()
    request = parse_request(__doc__ or "", others)
    with scratch_directory() as scratch, spark_session(SHUFFLE_PARTITIONS, scratch) as session:
        results = measure(session, scratch, request, TRANSFORM if options.transform else APPLY)
    operator = "transformWithStateInPandas" if options.transform else "applyInPandasWithState"
    setting = f"local[{CORES}], {operator}, {source_of(request)}"
    print_result("spark_python", pyspark.__version__, setting, *results)


if __name__ == "__main__":
    main()

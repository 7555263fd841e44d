"""A word count that writes into a database and into Redis through the two-phase sinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.redis import RedisSink
from millrace.connectors.sql import SqlSink
from millrace.master.service import Master
from millrace.workloads.audit import NumberedLines, SplitNumbered, TallyNumbered
from millrace.workloads.wordcount import SEED, TABLE_LINES, VOCABULARY, table_words
from support.topologies.audited import SECONDS, StatefulStream

TABLE, LIST, COUNTER = "stored_words", "stored:words", "stored:counts"
SPOUTS = 2


class Ones(Bolt):
    """One row (word, 1) for each word: RedisSink adds them up."""

    outputs: ClassVar[list[str]] = ["word", "amount"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values.word, 1])


def stored_words(sql_url: str, redis_url: str) -> type[Topology]:
    class StoredWords(Topology):
        """Numbered words into a table and a Redis list, and their counts into a Redis hash."""

        config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once"}
        lines = NumberedLines.spec(par=SPOUTS)
        split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=2)
        count = TallyNumbered.spec(inputs={split: Grouping.fields("word")}, par=2)
        rows = SqlSink.spec(inputs={count: Grouping.SHUFFLE}, config={"url": sql_url, "table": TABLE}, par=2)
        listed = RedisSink.spec(inputs={count: Grouping.SHUFFLE}, config={"url": redis_url, "key": LIST, "mode": "list"}, par=2)
        ones = Ones.spec(inputs={count: Grouping.SHUFFLE})
        added = RedisSink.spec(inputs={ones: Grouping.fields("word")},
                               config={"url": redis_url, "key": COUNTER, "mode": "counter"}, par=2)

    return StoredWords


class StoredStream(StatefulStream):
    """Submits `stored_words`."""

    def __init__(self, master: Master, directory: Path, sql_url: str, redis_url: str, **options: Any) -> None:
        self.topology = stored_words(sql_url, redis_url)
        super().__init__(master, directory, "stored", **options)

    def until(self, condition: Callable[[], bool], seconds: float = 2 * SECONDS) -> None:
        super().until(condition, seconds)  # every wave waits for both servers


def true_rows(positions: Mapping[int, int]) -> Counter[tuple[int, int, int, str]]:
    """(spout task, position, index, word) of every word of the lines that the spouts have sent."""
    table = table_words(SEED, VOCABULARY, 0.0)
    return Counter((task, position, index, word) for task, end in positions.items() for position in range(end)
                   for index, word in enumerate(table[(position * SPOUTS + task) % TABLE_LINES]))

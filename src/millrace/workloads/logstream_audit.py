"""Log Stream with proof: every row of its two tables carries the number of its request, and is compared with the log.

The rows of `log_index` have the number already. Those of `rule_counts` get it here, beside the count, which depends on the
order in which requests reach the counter.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.workloads.audit import AuditResult
from millrace.workloads.logstream import (
    FIRST_SECOND,
    REQUESTS_PER_SECOND,
    TABLE_REQUESTS,
    Indexer,
    LogDatabase,
    LogLines,
    LogStream,
    RuleCounter,
    Rules,
    draw_requests,
    judge,
)

INDEX_TABLE, COUNT_TABLE = "log_index", "rule_counts"
COLUMNS = {INDEX_TABLE: ("number", "term", "rule"), COUNT_TABLE: ("number", "minute", "rule")}


class NumberedRuleCounter(RuleCounter):
    """Emits the number of the request with each count."""

    outputs: ClassVar[list[str]] = ["number", "minute", "rule", "count"]

    def process(self, tup: Tuple) -> None:
        minute, rule = tup.values[1] // 60, tup.values[5]
        minutes = self.counts[rule]
        minutes[minute] = count = minutes.get(minute, 0) + 1
        self.emit((tup.values[0], minute, rule, count))


class AuditedLogStream(Topology):
    """LogStream with numbered counts: 5 + 5 + 5 + 5 + 2 + 2 tasks. Settings: those of LogStream."""

    config: ClassVar[dict[str, Any]] = LogStream.config
    lines = LogLines.spec(par=5)
    rules = Rules.spec(inputs={lines: Grouping.SHUFFLE}, par=5)
    indexer = Indexer.spec(inputs={rules: Grouping.SHUFFLE}, par=5)
    counter = NumberedRuleCounter.spec(inputs={rules: Grouping.fields("rule")}, par=5)
    index_store = LogDatabase.spec(inputs={indexer: Grouping.SHUFFLE}, par=2, config={"table": INDEX_TABLE})
    count_store = LogDatabase.spec(inputs={counter: Grouping.SHUFFLE}, par=2, config={"table": COUNT_TABLE})


def audit_log_stream(directory: str | Path, expected: Mapping[int, int], seed: int = 1) -> dict[str, AuditResult]:
    """Compares both tables in `directory`, in SQLite or in files, with the log. Every number counts rows. `expected`: the
    number of positions that each task of the spout, by index, has sent."""
    requests = draw_requests(seed)

    def index_rows(number: int) -> Counter[Any]:
        request = requests[number % TABLE_REQUESTS]
        rule = judge(request)
        return Counter((number, term, rule) for term in request.path.strip("/").split("/") if rule != "normal")

    def count_rows(number: int) -> Counter[Any]:
        return Counter([(number, _minute(number), judge(requests[number % TABLE_REQUESTS]))])

    path = Path(directory)
    return {INDEX_TABLE: _compare(_stored(path, INDEX_TABLE), expected, index_rows),
            COUNT_TABLE: _compare(_stored(path, COUNT_TABLE), expected, count_rows)}


def true_rule_counts(expected: Mapping[int, int], seed: int = 1) -> dict[str, dict[int, int]]:
    """The number of requests of each rule in each minute, as the counter's state has it."""
    requests, counts = draw_requests(seed), defaultdict[str, Counter[int]](Counter)
    for number in _numbers(expected):
        counts[judge(requests[number % TABLE_REQUESTS])][_minute(number)] += 1
    return {rule: dict(minutes) for rule, minutes in counts.items()}


def _minute(number: int) -> int:
    return (FIRST_SECOND + number // REQUESTS_PER_SECOND) // 60


def _numbers(expected: Mapping[int, int]) -> list[int]:
    return [position * len(expected) + task for task, sent in expected.items() for position in range(sent)]


def _compare(stored: Counter[Any], expected: Mapping[int, int], rows_of: Callable[[int], Counter[Any]]) -> AuditResult:
    """Compares rows, of which the first column is the number of the request, with `rows_of` each number."""
    truth: Counter[Any] = Counter()
    for number in _numbers(expected):
        truth.update(rows_of(number))
    others = stored.keys() - truth.keys()
    sent = set(_numbers(expected))
    beyond = sum(stored[row] for row in others if row[0] not in sent and row in rows_of(row[0]))
    return AuditResult(tuples_in=truth.total(), tuples_out=stored.total(), lost=(truth - stored).total(),
                       repeated=(stored - truth).total() - sum(stored[row] for row in others),
                       wrong=sum(stored[row] for row in others) - beyond, beyond=beyond)


def _stored(directory: Path, table: str) -> Counter[Any]:
    database = directory / f"{table}.db"
    if database.exists():
        with closing(sqlite3.connect(database)) as connection:
            return Counter(connection.execute(f"select {', '.join(COLUMNS[table])} from {table}"))
    rows = [json.loads(line) for path in (directory / table).glob("part-*.jsonl") for line in path.read_text().splitlines()]
    return Counter(tuple(row[column] for column in COLUMNS[table]) for row in rows)

"""Proves that nothing was lost: every word carries its origin, and the sink's files are compared with the input.

`NumberedLines` gives each line its task and position, `SplitNumbered` each word its place in the line, `AuditSink` writes one
fixed-size record for each word, and `audit` compares all records with those that the seed implies.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.sinks import PartFileSink
from millrace.workloads.wordcount import SEED, TABLE_LINES, VOCABULARY, WORDS_PER_LINE, configured_table, table_words

RECORD = np.dtype([("task", "<u2"), ("position", "<u8"), ("index", "<u2"), ("crc", "<u4")])
_pack = struct.Struct("<HQHI").pack
_SLICE = 1 << 20  # records read at a time


class NumberedLines(GeneratorSpout):
    """Emits the lines of wordcount.Lines with their origin: `task` is the task's index. Config: that of Lines."""

    outputs: ClassVar[list[str]] = ["task", "position", "line"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._table = [" ".join(words) for words in configured_table(self, storm_conf)]

    def generate(self, position: int) -> tuple[Any, ...]:
        task = self.task_index
        return task, position, self._table[(position * self.parallelism + task) % TABLE_LINES]


class SplitNumbered(Bolt):
    """Splits a numbered line into numbered words."""

    outputs: ClassVar[list[str]] = ["task", "position", "index", "word"]

    def process(self, tup: Tuple) -> None:
        emit = self.emit
        task, position, line = tup.values
        for index, word in enumerate(line.split()):
            emit((task, position, index, word))


class AuditSink(PartFileSink):
    """Writes 16 bytes for each word: task, position, index and the CRC-32 of the word. Settings: see PartFileSink."""

    suffix: ClassVar[str] = ".audit"
    named_rows: ClassVar[bool] = False

    def encode(self, rows: list[Any]) -> bytes:
        crc32 = zlib.crc32
        return b"".join([_pack(task, position, index, crc32(word.encode())) for task, position, index, word in rows])


class Audited(Topology):
    """Numbered lines → words → audit files in the directory `path`."""

    config: ClassVar[dict[str, Any]] = {"path": str(Path(tempfile.gettempdir()) / "millrace-audit")}
    lines = NumberedLines.spec(par=2)
    split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=2)
    sink = AuditSink.spec(inputs={split: Grouping.fields("word")}, par=2)


class CountNumbered(Bolt):
    """Counts words without keyed state; emits every word with its number. Has no waves: it tests the delivery of tuples,
    TallyNumbered tests state."""

    outputs: ClassVar[list[str]] = ["task", "position", "index", "word"]

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def process(self, tup: Tuple) -> None:
        word = tup.values.word
        self.counts[word] = self.counts.get(word, 0) + 1
        self.emit(tup.values)


class AuditedWordCount(Topology):
    """Word count with proof: numbered lines → words → counts → audit files in the directory `path`."""

    config: ClassVar[dict[str, Any]] = {"path": str(Path(tempfile.gettempdir()) / "millrace-audit")}
    lines = NumberedLines.spec(par=2)
    split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=3)
    count = CountNumbered.spec(inputs={split: Grouping.fields("word")}, par=3)
    sink = AuditSink.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=3)


class TallyNumbered(Bolt):
    """Counts words in keyed state; emits every word with its number."""

    outputs: ClassVar[list[str]] = ["task", "position", "index", "word"]
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        self.counts[tup.values.word] += 1
        self.emit(tup.values)


class StatefulWordCount(Topology):
    """Word count with proof and with state: numbered lines → words → counts → audit files in the directory `path`."""

    config: ClassVar[dict[str, Any]] = {"path": str(Path(tempfile.gettempdir()) / "millrace-audit"),
                                        "topology.guarantee": "exactly-once"}
    lines = NumberedLines.spec(par=2)
    split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=3)
    count = TallyNumbered.spec(inputs={split: Grouping.fields("word")}, par=3)
    sink = AuditSink.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=3)


def true_counts(expected: Mapping[int, int], *, seed: int = SEED, words: int = VOCABULARY, zipf: float = 0.0) -> Counter[str]:
    """The true count of each word in the lines that the spouts have sent. `expected` as for `audit`."""
    table, par = table_words(seed, words, zipf), len(expected)
    lines: Counter[int] = Counter()
    for task, positions in expected.items():
        lines.update(Counter((np.arange(positions, dtype=np.int64) * par + task) % TABLE_LINES))
    counts: Counter[str] = Counter()
    for line, times in lines.items():
        for word in table[int(line)]:
            counts[word] += int(times)
    return counts


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The sink's records compared with the input. Every number counts words."""

    tuples_in: int  # expected words
    tuples_out: int  # records in the files
    lost: int  # expected words without a record
    repeated: int  # additional records of a word
    wrong: int  # records that match no line of the stream: unknown task, index beyond the line, another word
    beyond: int = 0  # correct records of positions beyond the expected ones
    torn_bytes: int = 0  # bytes of incomplete records at the ends of files: a process was killed while it wrote

    @property
    def complete(self) -> bool:
        """True if nothing is lost and nothing wrong (at least once)."""
        return not (self.lost or self.wrong or self.beyond)

    @property
    def exact(self) -> bool:
        """True if every word is there exactly once."""
        return self.complete and not self.repeated


def audit(directory: str | Path, expected: Mapping[int, int], words_per_line: int = WORDS_PER_LINE, *,
          seed: int = SEED, words: int = VOCABULARY, zipf: float = 0.0, parallelism: int | None = None) -> AuditResult:
    """Checks all part files in `directory`. `expected`: the number of positions that each spout task, by index, has sent.

    `parallelism` of the spout defaults to the number of tasks in `expected`.
    """
    if not 0 < words_per_line <= WORDS_PER_LINE:
        raise ValueError(f"words_per_line is {words_per_line}; the lines of the stream have {WORDS_PER_LINE} words")
    tasks = parallelism or len(expected)
    truth = np.array([[zlib.crc32(word.encode()) for word in line] for line in table_words(seed, words, zipf)], "<u4")
    return compare_records(directory, expected, words_per_line,
                           lambda records: (_is_true(records, truth, words_per_line, tasks), records["index"]))


def compare_records(directory: str | Path, expected: Mapping[int, int], per_position: int,
                    places: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]) -> AuditResult:
    """Compares the records in all part files of `directory` with the truth, which has `per_position` records for each of the
    `expected` positions. `places` returns, for an array of records, those that the truth can have, and their numbers among the
    records of their position."""
    seen = {task: np.zeros(positions * per_position, np.uint32) for task, positions in expected.items()}
    out = wrong = beyond = torn = 0
    for path in sorted(Path(directory).glob(f"part-*{AuditSink.suffix}")):
        torn += path.stat().st_size % RECORD.itemsize
        for records in _records(path):
            is_true, index = places(records)
            out += len(records)
            wrong += len(records) - int(np.count_nonzero(is_true))
            beyond += _mark(records[is_true], index[is_true], seen, per_position)
    return AuditResult(
        tuples_in=sum(len(marks) for marks in seen.values()), tuples_out=out,
        lost=sum(int(np.count_nonzero(marks == 0)) for marks in seen.values()),
        repeated=sum(int(marks[marks > 1].sum() - np.count_nonzero(marks > 1)) for marks in seen.values()),
        wrong=wrong, beyond=beyond, torn_bytes=torn)


def _records(path: Path) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        while len(records := np.fromfile(file, RECORD, _SLICE)):  # leaves out a torn record at the end
            yield records


def _is_true(records: np.ndarray, truth: np.ndarray, words_per_line: int, parallelism: int) -> np.ndarray:
    possible = (records["task"] < parallelism) & (records["index"] < words_per_line)
    line = (records["position"] * np.uint64(parallelism) + records["task"]) % np.uint64(TABLE_LINES)
    index = np.minimum(records["index"], words_per_line - 1)
    return possible & (truth[line.astype(np.int64), index] == records["crc"])


def _mark(records: np.ndarray, index: np.ndarray, seen: dict[int, np.ndarray], per_position: int) -> int:
    """Counts each record at its place in `seen`; returns the number of records without a place there."""
    placed = 0
    for task, marks in seen.items():
        mine = (records["task"] == task) & (records["position"] < len(marks) // per_position)
        np.add.at(marks, records["position"][mine].astype(np.int64) * per_position + index[mine], 1)
        placed += int(np.count_nonzero(mine))
    return len(records) - placed

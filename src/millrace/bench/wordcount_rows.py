"""The rows of the Word Count table: one program on one engine with one guarantee, each measured by the same rule.

Every row runs in its own process on two CPUs, reads the same files, keeps its counts in the engine's keyed state, drops its
updates at the sink, and has its counts compared, word by word, with independently computed counts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace.bench.other_engines.job import FILES, LINES_PER_FILE, WORDS_PER_LINE, write_corpus
from millrace.bench.other_engines.reporting import Rule, RunRequest
from millrace.bench.other_engines.run import run_child, run_other_engine
from millrace.bench.other_engines.spark_common import scratch_directory
from millrace.bench.topologies import BENCH_SEED
from millrace.checkout import project_root
from millrace.spark.session.java import ensure_java

WARM_UP_SECONDS = 4.0
ROUNDS = 2
CHECKPOINT_SECONDS = 1.0
LIMIT_SECONDS = 400.0  # for one run
LINES_PER_SECOND = 1000  # of a latency run
LATENCY_SECONDS = 5.0
# A trial only chooses the size of a batch; the figure is measured by the rule of its row.
TRIAL_WARM_UP_SECONDS = 2.0
TRIAL_SECONDS = 1.5
FASTER = 1.03  # times the best rate so far; less is noise
NOT_FASTER = 2  # sizes in a row that end the search: a single slow trial may be noise
LONGEST_BATCH_SECONDS = 15.0  # larger batches are not tried: a stream is not run like that, and a window has to end

AT_MOST_ONCE, AT_LEAST_ONCE, CHECKPOINTED = "at most once", "at least once", "checkpointed"
GROUPS = {
    AT_MOST_ONCE: "Nothing is checkpointed: a crash loses the counts.",
    AT_LEAST_ONCE: "Every line is acked when its words are counted; only Millrace has this guarantee here.",
    CHECKPOINTED: f"Counts and input positions are checkpointed: every {CHECKPOINT_SECONDS:g} s, or with each batch.",
}


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row. `sizes`: lines in a batch, rising; if there are several, they are tried until two in a row are no faster than
    the best so far, or a batch of the next size would take too long. `latency`: the program of its latency run, if it has one.
    """

    name: str
    group: str
    engine: str
    how: str
    sizes: tuple[int, ...] = (1,)
    other: str = ""  # name of another engine; empty: a program of Millrace
    latency: str = ""

    def with_size(self, lines: int) -> TableRow:
        return replace(self, sizes=(lines,))


_CALL, _CHUNK = "a Python call for every word, every update passed on", "a chunk of words a call, every update passed on"
_ARROW = "an Arrow batch a call, one update for each word and batch, every word shuffled"
_CALL_COMBINED = "a Python call for every word, words counted before the shuffle"
_COMBINED = "an Arrow batch a call, words counted before the shuffle"
_OPERATORS = "operators on batches, every update passed on"
_NATIVE = "split in Python, native count, one update for each word and commit"
# The same sizes for all rows of an engine that are searched, and for both engines on Spark.
_SPARK_SIZES = (500_000, 2_000_000, 8_000_000, 16_000_000, 32_000_000)
_BYTEWAX_SIZES = (5_000, 20_000, 80_000, 320_000)
_PATHWAY_SIZES = (15_000, 60_000, 240_000, 960_000)
_ARROW_SIZES = (12_500, 62_500, 125_000)  # they divide the lines of a file

ROWS = (
    TableRow("process", AT_MOST_ONCE, "Millrace, resident", _CALL, latency="latency_process"),
    TableRow("process_rows", AT_MOST_ONCE, "Millrace, resident", _CHUNK),
    TableRow("process_arrow", AT_MOST_ONCE, "Millrace, resident", _ARROW, (12_500,)),
    TableRow("bytewax_per_item", AT_MOST_ONCE, "Bytewax", _CALL, (10_000,), other="bytewax_per_item"),
    TableRow("bytewax", AT_MOST_ONCE, "Bytewax", _OPERATORS, _BYTEWAX_SIZES, other="bytewax", latency="bytewax"),
    TableRow("pathway", AT_MOST_ONCE, "Pathway", _NATIVE, _PATHWAY_SIZES, other="pathway", latency="pathway"),
    TableRow("process_acked", AT_LEAST_ONCE, "Millrace, resident", _CALL, latency="latency_process_acked"),
    TableRow("process_checkpointed", CHECKPOINTED, "Millrace, resident", _CALL, latency="latency_process_checkpointed"),
    TableRow("process_combined_checkpointed", CHECKPOINTED, "Millrace, resident", _CALL_COMBINED),
    TableRow("process_rows_checkpointed", CHECKPOINTED, "Millrace, resident", _CHUNK),
    TableRow("process_arrow_checkpointed", CHECKPOINTED, "Millrace, resident", _ARROW, (12_500,)),
    TableRow("process_arrow_combined_checkpointed", CHECKPOINTED, "Millrace, resident", _COMBINED, _ARROW_SIZES),
    TableRow("microbatch", CHECKPOINTED, "Millrace, microbatch", _CALL, (200_000,), latency="latency_microbatch"),
    TableRow("microbatch_arrow", CHECKPOINTED, "Millrace, microbatch", _ARROW, _SPARK_SIZES),
    TableRow("microbatch_arrow_files", CHECKPOINTED, "Millrace, microbatch", f"{_COMBINED}, files read by Spark", _SPARK_SIZES),
    TableRow("bytewax_per_item_checkpointed", CHECKPOINTED, "Bytewax", _CALL, (10_000,), other="bytewax_per_item"),
    TableRow("bytewax_checkpointed", CHECKPOINTED, "Bytewax", _OPERATORS, _BYTEWAX_SIZES, other="bytewax", latency="bytewax"),
    TableRow("pathway_checkpointed", CHECKPOINTED, "Pathway", f"{_NATIVE}, input logged", _PATHWAY_SIZES, other="pathway",
             latency="pathway"),
    TableRow("spark_sql", CHECKPOINTED, "Structured Streaming", "SQL, no Python, words counted before the shuffle",
             _SPARK_SIZES, other="spark_sql", latency="spark_sql"),
    TableRow("spark_python", CHECKPOINTED, "Structured Streaming", "applyInPandasWithState, one update for each word and batch",
             _SPARK_SIZES, other="spark_python", latency="spark_python"),
)
BY_NAME = {row.name: row for row in ROWS}


@contextmanager
def corpus_in_memory(files: int = FILES, lines_per_file: int = LINES_PER_FILE) -> Iterator[Path]:
    """The directory of the files that every engine reads, in memory if the machine has such a place."""
    with scratch_directory() as scratch:
        write_corpus(scratch / "corpus", BENCH_SEED, files, lines_per_file)
        yield scratch / "corpus"


def measure_row(row: TableRow, corpus: Path, rule: Rule, console: Console) -> dict[str, Any]:
    """Measure one row. `trials`: the batch sizes that were tried; `search_ended`: the reason why the search ended."""
    search = Search(row.sizes)
    while len(row.sizes) > 1 and not search.ended:
        trial = _run(row, _request(row, corpus, trial_rule(rule), search.next_size), console)
        search.note(trial["words_per_s"])
    result = _run(row, _request(row, corpus, rule, search.best_size), console)
    return {"name": row.name, "group": row.group, "how": row.how, **result, "engine": row.engine,
            "batch_lines": search.best_size, "trials": search.trials, "search_ended": search.ended}


def trial_rule(rule: Rule) -> Rule:
    return Rule(min(rule.warm_up, TRIAL_WARM_UP_SECONDS), min(rule.seconds, TRIAL_SECONDS), 1)


class Search:
    """Searches for the fastest of some rising sizes. `ended`: the reason why it has ended; empty: try `next_size`."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.trials: list[dict[str, Any]] = []
        self.ended = ""
        self._sizes = sizes
        self._fastest = 0

    @property
    def next_size(self) -> int:
        return self._sizes[len(self.trials)]

    @property
    def best_size(self) -> int:
        return self._sizes[self._fastest]

    def note(self, words_per_s: float) -> None:
        """Note the rate at `next_size`."""
        number = len(self.trials)
        self.trials.append({"batch_lines": self.next_size, "words_per_s": words_per_s})
        if words_per_s > FASTER * self.trials[self._fastest]["words_per_s"]:
            self._fastest = number
        if number - self._fastest >= NOT_FASTER:
            self.ended = f"{NOT_FASTER} sizes in a row were not faster"
        elif len(self.trials) == len(self._sizes):
            self.ended = "there is no larger size"
        elif self.next_size * WORDS_PER_LINE > LONGEST_BATCH_SECONDS * words_per_s:
            self.ended = f"a larger batch would take more than {LONGEST_BATCH_SECONDS:g} s"


def measure_latency(row: TableRow, corpus: Path, rule: Rule, console: Console) -> dict[str, Any]:
    """Measure the milliseconds from the time a line is due until it is visible, at a steady rate."""
    request = _request(row, corpus, Rule(rule.warm_up, LATENCY_SECONDS, 1), 1)
    return _run(replace(row, name=row.latency), replace(request, rate=LINES_PER_SECOND), console)


def _request(row: TableRow, corpus: Path, rule: Rule, size: int) -> RunRequest:
    return RunRequest(corpus, rule, size, checkpoint_seconds=CHECKPOINT_SECONDS if row.group == CHECKPOINTED else 0.0)


def _run(row: TableRow, request: RunRequest, console: Console) -> dict[str, Any]:
    size = f", {request.batch_lines:,} lines a batch" if request.batch_lines > 1 else ""
    console.print(f"{row.name}{f', {request.rate:g} lines/s' if request.rate else size} ...")
    if row.other:
        return run_other_engine(row.other, request, root=project_root(), java_home=ensure_java(), report=console.print,
                                time_limit=LIMIT_SECONDS)
    settings = json.dumps({**asdict(request), "corpus": str(request.corpus)})
    return run_child(row.name, [sys.executable, "-m", "millrace.bench.wordcount_child", row.name, settings], dict(os.environ),
                     LIMIT_SECONDS)

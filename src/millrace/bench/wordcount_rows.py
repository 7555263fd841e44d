"""The rows of the Word Count table: one program on one engine with one guarantee, each measured by the same rule.

Every row runs in a process of its own on two cores, reads the same files, keeps its counts in the engine's keyed state, drops
its updates at the sink, and has its counts compared, word by word, with counts computed apart.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace.bench.other_engines.job import FILES, LINES_PER_FILE, write_corpus
from millrace.bench.other_engines.reporting import Rule, RunRequest
from millrace.bench.other_engines.run import run_child, run_other_engine
from millrace.bench.other_engines.spark_common import scratch_directory
from millrace.bench.topologies import BENCH_SEED
from millrace.checkout import project_root
from millrace.spark.session.java import ensure_java

WARM_UP_SECONDS = 5.0
ROUNDS = 3
CHECKPOINT_SECONDS = 1.0
LIMIT_SECONDS = 400.0  # for one run
LINES_PER_SECOND = 1000  # of a latency run
LATENCY_SECONDS = 5.0
NOT_FASTER = 2  # sizes in a row that end the search: a single slow trial may be noise

AT_MOST_ONCE, AT_LEAST_ONCE, CHECKPOINTED = "at most once", "at least once", "checkpointed"
GROUPS = {
    AT_MOST_ONCE: "Nothing is checkpointed: a crash loses the counts.",
    AT_LEAST_ONCE: "Every line is acked when its words are counted; only Millrace has this guarantee here.",
    CHECKPOINTED: f"Counts and input positions are checkpointed: every {CHECKPOINT_SECONDS:g} s, or with each batch.",
}


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row. `sizes`: lines in a batch, rising; with more than one they are tried until two in a row are not faster than the
    best before them. `latency`: the program of its latency run, if it has one."""

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
_COMBINED = "an Arrow batch a call, words counted before the shuffle"
_OPERATORS = "operators on batches, every update passed on"
_NATIVE = "split in Python, native count, one update for each word and commit"
_SPARK_SIZES = (1_000_000, 2_000_000, 4_000_000, 8_000_000)

ROWS = (
    TableRow("process", AT_MOST_ONCE, "Millrace, resident", _CALL, latency="latency_process"),
    TableRow("process_rows", AT_MOST_ONCE, "Millrace, resident", _CHUNK),
    TableRow("process_arrow", AT_MOST_ONCE, "Millrace, resident", _ARROW, (12_500,)),
    TableRow("bytewax_per_item", AT_MOST_ONCE, "Bytewax", _CALL, (10_000,), other="bytewax_per_item"),
    TableRow("bytewax", AT_MOST_ONCE, "Bytewax", _OPERATORS, (10_000, 20_000, 40_000), other="bytewax", latency="bytewax"),
    TableRow("pathway", AT_MOST_ONCE, "Pathway", _NATIVE, (30_000, 60_000, 120_000), other="pathway", latency="pathway"),
    TableRow("process_acked", AT_LEAST_ONCE, "Millrace, resident", _CALL, latency="latency_process_acked"),
    TableRow("process_checkpointed", CHECKPOINTED, "Millrace, resident", _CALL, latency="latency_process_checkpointed"),
    TableRow("process_rows_checkpointed", CHECKPOINTED, "Millrace, resident", _CHUNK),
    TableRow("process_arrow_checkpointed", CHECKPOINTED, "Millrace, resident", _ARROW, (12_500,)),
    TableRow("process_arrow_combined_checkpointed", CHECKPOINTED, "Millrace, resident", _COMBINED, (12_500, 25_000, 62_500)),
    TableRow("microbatch", CHECKPOINTED, "Millrace, microbatch", _CALL, (200_000,)),
    TableRow("microbatch_arrow", CHECKPOINTED, "Millrace, microbatch", _ARROW, _SPARK_SIZES),
    TableRow("microbatch_arrow_files", CHECKPOINTED, "Millrace, microbatch", f"{_COMBINED}, files read by Spark", _SPARK_SIZES),
    TableRow("bytewax_per_item_checkpointed", CHECKPOINTED, "Bytewax", _CALL, (10_000,), other="bytewax_per_item"),
    TableRow("bytewax_checkpointed", CHECKPOINTED, "Bytewax", _OPERATORS, (10_000,), other="bytewax", latency="bytewax"),
    TableRow("pathway_checkpointed", CHECKPOINTED, "Pathway", f"{_NATIVE}, input logged", (30_000,), other="pathway",
             latency="pathway"),
    TableRow("spark_sql", CHECKPOINTED, "Structured Streaming", "SQL, no Python, words counted before the shuffle",
             _SPARK_SIZES, other="spark_sql", latency="spark_sql"),
    TableRow("spark_python", CHECKPOINTED, "Structured Streaming", "applyInPandasWithState, one update for each word and batch",
             (500_000,), other="spark_python"),
)
BY_NAME = {row.name: row for row in ROWS}


@contextmanager
def corpus_in_memory(files: int = FILES, lines_per_file: int = LINES_PER_FILE) -> Iterator[Path]:
    """The directory of the files that every engine reads, in memory if the machine has such a place."""
    with scratch_directory() as scratch:
        write_corpus(scratch / "corpus", BENCH_SEED, files, lines_per_file)
        yield scratch / "corpus"


def measure_row(row: TableRow, corpus: Path, rule: Rule, console: Console) -> dict[str, Any]:
    """Measure one row. `trials`: the sizes of a batch that were tried; `still_rising`: the last of them was the fastest, so a
    larger one may be faster still."""
    trials: list[dict[str, Any]] = []
    fastest = 0
    for number, size in enumerate(row.sizes if len(row.sizes) > 1 else ()):
        trial = _run(row, _request(row, corpus, replace(rule, rounds=1), size), console)
        trials.append({"batch_lines": size, "words_per_s": trial["words_per_s"]})
        if trial["words_per_s"] > trials[fastest]["words_per_s"]:
            fastest = number
        if number - fastest >= NOT_FASTER:
            break
    size = row.sizes[fastest]
    result = _run(row, _request(row, corpus, rule, size), console)
    return {"name": row.name, "group": row.group, "how": row.how, **result, "engine": row.engine, "batch_lines": size,
            "trials": trials, "still_rising": bool(trials) and fastest == len(trials) - 1}


def measure_latency(row: TableRow, corpus: Path, rule: Rule, console: Console) -> dict[str, Any]:
    """Milliseconds from due to visible at a steady rate."""
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

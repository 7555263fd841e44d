"""`millrace bench wordcount`: words per second, latency and the cost of a hop, beside other engines in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.api.topology import Topology
from millrace.bench.other_engines.reporting import Rule
from millrace.bench.other_engines.run import EngineFailed, on_two_cpus
from millrace.bench.other_engines.spark_common import scratch_directory
from millrace.bench.results import keep
from millrace.bench.topologies import LocalHop, RemoteHop
from millrace.bench.topology_runs import end_run, resident_engine, start_run
from millrace.bench.wordcount_rows import (
    BY_NAME,
    GROUPS,
    LINES_PER_SECOND,
    ROUNDS,
    ROWS,
    WARM_UP_SECONDS,
    TableRow,
    corpus_in_memory,
    measure_latency,
    measure_row,
)
from millrace.config import AT_MOST_ONCE, GUARANTEE
from millrace.errors import MillraceError

HOP_SECONDS = 2.5  # at least: the workers report every second
# Pairs with the same guarantee, and the price of ours. The tables say which of them are also the same kind of program.
RATIOS = {
    "process_to_bytewax_per_item": ("process", "bytewax_per_item"),
    "process_to_bytewax": ("process", "bytewax"),
    "rows_to_bytewax": ("process_rows", "bytewax"),
    "process_to_pathway": ("process", "pathway"),
    "acked_to_process": ("process_acked", "process"),
    "exactly_once_to_process": ("process_checkpointed", "process"),
    "process_checkpointed_to_bytewax_per_item": ("process_checkpointed", "bytewax_per_item_checkpointed"),
    "rows_checkpointed_to_bytewax": ("process_rows_checkpointed", "bytewax_checkpointed"),
    "process_checkpointed_to_pathway": ("process_checkpointed", "pathway_checkpointed"),
    "arrow_to_spark_sql": ("process_arrow_combined_checkpointed", "spark_sql"),
    "microbatch_arrow_files_to_spark_sql": ("microbatch_arrow_files", "spark_sql"),
    "microbatch_arrow_to_spark_python": ("microbatch_arrow", "spark_python"),
    "microbatch_to_spark_python": ("microbatch", "spark_python"),
    "microbatch_to_resident": ("microbatch", "process_checkpointed"),
}


QUICK = Rule(warm_up=0.5, seconds=0.5, rounds=1)
QUICK_FILES, QUICK_LINES = 2, 5_000  # of the corpus; a batch is one file


def run_wordcount(seconds: float, others: bool, live: bool, quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the object of `bench wordcount --json`. `quick`: little input and one size of a batch, to see that it runs.
    `only`: rows to measure; empty: all."""
    chosen = chosen_rows(others, only)
    console, began = Console(stderr=not live), time.monotonic()
    rule = QUICK if quick else Rule(WARM_UP_SECONDS, seconds, ROUNDS)
    console.print("Word Count on two CPUs, one engine after the other; nothing else should run on this machine.")
    console.print(f"Every row: {rule.warm_up:g} s of warm-up, then the best of {rule.rounds} windows of {rule.seconds:g} s.")
    with on_two_cpus() as cpus, scratch_directory() as scratch, resident_engine(scratch) as engine:
        hops = {"inside_a_worker": _hop(engine, LocalHop, rule, console),
                "to_another_worker": _hop(engine, RemoteHop, rule, console)}
    rows = [row.with_size(QUICK_LINES) if quick else row for row in chosen]
    with corpus_in_memory(*((QUICK_FILES, QUICK_LINES) if quick else ())) as corpus:
        measured, failed = attempt(rows, lambda row: measure_row(row, corpus, rule, console), console)
        latency, failed_latency = attempt([row for row in rows if row.latency],
                                          lambda row: measure_latency(row, corpus, rule, console), console)
    words = {name: row["words_per_s"] for name, row in measured.items()}
    took = round(time.monotonic() - began, 1)
    result = {"rule": rule_of(rule), "cpus": cpus, "words_per_s": words, "ratios": ratios(words),
              "latency_ms": percentiles(latency), "hop_us": hops, "rows": list(measured.values()), "latency": latency,
              "seconds": took,
              "failed": failed | {f"latency of {name}": error for name, error in failed_latency.items()}}
    print_words(console, list(measured.values()))
    for title in ("latency_ms", "hop_us", "ratios"):
        console.print(f"{title}: {result[title]}")
    console.print(f"took {took / 60:.1f} minutes; kept in {keep('wordcount', result, quick or bool(only))}")
    return result


def chosen_rows(others: bool, only: Sequence[str]) -> list[TableRow]:
    """The rows to measure. `others`: also those of other engines, which may be named all the same."""
    unknown = [name for name in only if name not in BY_NAME]
    if unknown:
        raise MillraceError(f"there is no row {', '.join(unknown)}; the rows are {', '.join(BY_NAME)}")
    return [row for row in ROWS if (row.name in only if only else others or not row.other)]


def attempt(rows: Sequence[TableRow], measure: Callable[[TableRow], dict[str, Any]],
            console: Console) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Measure each row. Returns the results and the errors by name: one row that fails does not cost the others."""
    results, errors = {}, {}
    began = time.monotonic()
    for number, row in enumerate(rows, 1):
        console.print(f"{number} of {len(rows)}, after {time.monotonic() - began:.0f} s: {row.name}", markup=False)
        try:
            results[row.name] = measure(row)
        except EngineFailed as error:
            errors[row.name] = str(error)
            console.print(f"{row.name} failed: {error}", style="red", markup=False)
    return results, errors


def rule_of(rule: Rule) -> dict[str, float]:
    return {"warm_up_seconds": rule.warm_up, "window_seconds": rule.seconds, "best_of": rule.rounds}


def percentiles(latency: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    return {name: {"p50": result["p50_ms"], "p99": result["p99_ms"]} for name, result in latency.items()}


def ratios(words: dict[str, float]) -> dict[str, float]:
    """The rate of the first of each pair over that of the second, where both were measured."""
    return {name: round(words[ours] / words[theirs], 3) for name, (ours, theirs) in RATIOS.items()
            if words.get(ours) and words.get(theirs)}


def _hop(engine: Any, topology: type[Topology], rule: Rule, console: Console) -> dict[str, float]:
    """Microseconds from `emit` in one task to `process` in the next, single tuples."""
    console.print(f"one hop, {topology.__name__} ...")
    running = start_run(engine, topology, {GUARANTEE.key: AT_MOST_ONCE, "rate": LINES_PER_SECOND}, rule.warm_up)
    time.sleep(max(HOP_SECONDS, rule.seconds))
    custom = running.measured(lambda observed: [task.custom for task in observed.tasks.values()
                                                if task.custom.get("hop_p50_us")])
    end_run(running)
    if len(custom) != 1:
        raise MillraceError(f"{topology.__name__}: one bolt task should have had all tuples, not {len(custom)}")
    return {"p50": custom[0]["hop_p50_us"], "p99": custom[0]["hop_p99_us"]}


def print_words(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print the table, one part for each guarantee."""
    table = Table(title="words per second: same files, same warm-up, best of the same number of windows, counts checked",
                  title_justify="left")
    for name in ("engine", "row", "words/s", "setting"):
        table.add_column(name, justify="right" if name == "words/s" else "left")
    for group, meaning in GROUPS.items():
        members = [row for row in rows if row["group"] == group]
        if members:
            table.add_section()
            table.add_row(group, "", "", meaning)
        for row in members:
            table.add_row(f"{row['engine']} {row['version']}", row["name"], f"{row['words_per_s']:,.0f}", row["setting"])
    console.print(table)

"""`millrace bench engines`: Word Count on both engines and on Structured Streaming, a change of parallelism, and skewed keys.

The words are rows of `bench wordcount`, measured by the same code. Every engine runs in its own process, one after the other,
on two cores with all its files in memory.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace.bench.other_engines import spark_rescale
from millrace.bench.other_engines.job import FILES, LINES_PER_FILE
from millrace.bench.other_engines.reporting import Rule
from millrace.bench.other_engines.run import run_child, script_environment
from millrace.bench.results import keep
from millrace.bench.wordcount import print_words, ratios, rule_of
from millrace.bench.wordcount_rows import BY_NAME, ROUNDS, WARM_UP_SECONDS, corpus_in_memory, measure_row
from millrace.errors import MillraceError
from millrace.spark.session.java import ensure_java

PARTS = ("words", "rescale", "skew")
ENGINES = ("process_checkpointed", "microbatch", "microbatch_arrow", "microbatch_arrow_files", "spark_sql", "spark_python")
LIMIT_SECONDS = 600.0  # for one engine
GAPS = ("microbatch_gap_ms", "spark_restart_gap_ms", "microbatch_first_gap_ms", "spark_restart_first_gap_ms")
SCALED = 4  # counting tasks after the first change; two before


@dataclass(frozen=True, slots=True)
class Amounts:
    """The amount of work of one run of this benchmark."""

    rule: Rule
    files: int
    lines_per_file: int
    rescale_lines: int  # in a batch
    rounds: int  # changes of parallelism
    batches: int  # before and after each
    skew_words: int  # in a batch, for each spout task
    exponents: tuple[float, ...]  # of Zipf's law; the first is the figure


FULL = Amounts(Rule(WARM_UP_SECONDS, 4.0, ROUNDS), FILES, LINES_PER_FILE, rescale_lines=120_000, rounds=5, batches=10,
               skew_words=10_000, exponents=(1.5,))
QUICK = Amounts(Rule(0.5, 0.5, 1), 2, 5_000, rescale_lines=10_000, rounds=2, batches=2, skew_words=2_000, exponents=(1.5,))


def run_engines(live: bool, quick: bool = False, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Returns the object of `bench engines --json`; with some of the `parts` only theirs."""
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise MillraceError(f"there is no part {', '.join(unknown)} of this benchmark: there are {', '.join(PARTS)}")
    console, amounts = Console(stderr=not live), QUICK if quick else FULL
    console.print("On two cores, one engine after the other; nothing else should run on this machine.")
    result: dict[str, Any] = {}
    details: dict[str, Any] = {"quick": quick}
    if "words" in parts:
        details["words"] = {name: measure(name, amounts, console) for name in ENGINES}
        result["rule"] = rule_of(amounts.rule)
        result["words_per_s"] = {name: row["words_per_s"] for name, row in details["words"].items()}
        result["ratios"] = ratios(result["words_per_s"])
        print_words(console, list(details["words"].values()))
    if "rescale" in parts:
        details["rescale"] = _rescale(amounts, console)
        details["rescale"]["gaps"] = gaps = rescale_gaps(**details["rescale"])
        result["rescale"] = {key: gaps[key] for key in GAPS}
        _print_rescale(console, gaps)
    if "skew" in parts:
        console.print("skewed keys ...")
        details["skew"] = _on_millrace("skew", batches=amounts.batches, words=amounts.skew_words, exponents=amounts.exponents)
        result["skew_batch_ratio"] = details["skew"]["skew_batch_ratio"]
        _print_skew(console, details["skew"]["cases"])
    result["details"] = details
    console.print(f"kept in {keep('engines', result, quick)}")
    return result


def measure(name: str, amounts: Amounts, console: Console) -> dict[str, Any]:
    """Measure one row; a quick run tries one size of a batch only."""
    row = BY_NAME[name].with_size(amounts.files * amounts.lines_per_file) if amounts is QUICK else BY_NAME[name]
    with corpus_in_memory(amounts.files, amounts.lines_per_file) as corpus:
        return measure_row(row, corpus, amounts.rule, console)


def _rescale(amounts: Amounts, console: Console) -> dict[str, Any]:
    console.print("another parallelism while it runs ...")
    with corpus_in_memory(lines_per_file=amounts.rescale_lines // 2) as corpus:
        ours = _on_millrace("rescale", corpus=str(corpus), rounds=amounts.rounds, batches=amounts.batches,
                            batch_lines=amounts.rescale_lines)
        console.print("the same by stopping and restarting Structured Streaming ...")
        spark = _restarted_spark(corpus, amounts)
    return {"microbatch": ours, "spark": spark}


def rescale_spark(amounts: Amounts) -> dict[str, Any]:
    """Structured Streaming that is stopped, repartitioned and started again, by itself."""
    with corpus_in_memory(lines_per_file=amounts.rescale_lines // 2) as corpus:
        return _restarted_spark(corpus, amounts)


def _restarted_spark(corpus: Path, amounts: Amounts) -> dict[str, Any]:
    options = {"corpus": corpus, "batch-lines": amounts.rescale_lines, "batches": amounts.batches, "rounds": amounts.rounds,
               "partitions": SCALED}
    command = [sys.executable, str(Path(spark_rescale.__file__)),
               *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
    return run_child("spark_rescale", command, script_environment(os.environ, ensure_java()), LIMIT_SECONDS)


def _on_millrace(part: str, **settings: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "millrace.bench.engines_child", part, json.dumps(settings)]
    return run_child(part, command, dict(os.environ), LIMIT_SECONDS)


def rescale_gaps(microbatch: dict[str, Any], spark: dict[str, Any]) -> dict[str, Any]:
    """The longest time without output, less the usual time between two batches: the median of all changes, and the first one,
    when processes have to start and code is compiled."""
    ours = [gap - usual for gap, usual in zip(microbatch["gaps_ms"], microbatch["usual_ms"], strict=True)]
    return {"microbatch_gap_ms": _positive(statistics.median(ours)), "microbatch_first_gap_ms": _positive(ours[0]),
            "microbatch_usual_ms": round(statistics.median(microbatch["usual_ms"])), **spark_gaps(spark),
            "microbatch_slow_batches": sum(microbatch["slow_batches"])}


def spark_gaps(spark: dict[str, Any]) -> dict[str, int]:
    """The same of Structured Streaming alone."""
    theirs = [gap - spark["usual_ms"] for gap in spark["gaps_ms"]]
    return {"spark_restart_gap_ms": _positive(statistics.median(theirs)), "spark_restart_first_gap_ms": _positive(theirs[0]),
            "spark_usual_ms": spark["usual_ms"]}


def _positive(milliseconds: float) -> int:
    return max(0, round(milliseconds))


def _print_rescale(console: Console, gaps: dict[str, Any]) -> None:
    console.print(f"another parallelism: {gaps['microbatch_gap_ms']} ms without output, {gaps['microbatch_first_gap_ms']} ms "
                  f"at the first change; Structured Streaming, restarted: {gaps['spark_restart_gap_ms']} ms, "
                  f"{gaps['spark_restart_first_gap_ms']} ms at the first")


def _print_skew(console: Console, cases: list[dict[str, Any]]) -> None:
    for case in cases:
        console.print(f"Zipf {case['zipf']}: a batch takes {case['after_ms']} ms instead of {case['before_ms']} ms "
                      f"({case['skew_batch_ratio']}); the hottest of two tasks has {case['rebalanced']:.1%} of the "
                      f"words instead of {case['hashed']:.1%}, by Spark's hash it would have {case['hashed_by_spark']:.1%}")

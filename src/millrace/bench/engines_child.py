"""The parts of `millrace bench engines` that run on Millrace alone, each in its own process:

    python -m millrace.bench.engines_child PART '{"batches": 10, ...}'

prints one JSON object as its last line.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millrace.api.grouping import stable_hash
from millrace.bench.batch_records import RecordedBatches, batches_of_size, ended
from millrace.bench.other_engines.job import Corpus
from millrace.bench.other_engines.reporting import check_counts
from millrace.bench.skew_topologies import TABLE_WORDS, SkewedWork, zipf_words
from millrace.bench.stored_counts import store_of, stored_counts, stored_positions
from millrace.bench.topologies import WordsRescaled
from millrace.bench.topology_runs import microbatch_engine
from millrace.master.batch_log import BatchRecord
from millrace.spark.microbatch import MicrobatchEngine

WARM_UP_BATCHES = 4
SLOW = 2.0  # a batch is slow if it takes this many times the usual time
SCALED = (4, 2)  # counting tasks, in turn; it begins with the last
SPOUT_TASKS = 2
ARROW_LINES = 20_000  # maximum in an Arrow batch
PERIOD_SECONDS = 1.0  # of the scheduler that balances


def measure_rescale(corpus: str, rounds: int, batches: int, batch_lines: int) -> dict[str, Any]:
    """Measure how long nothing is committed when the number of counting tasks changes."""
    lines = Corpus.at(Path(corpus))
    arrow_lines = min(ARROW_LINES, lines.lines_per_file)
    config = {**batches_of_size(batch_lines // SPOUT_TASKS), "corpus": corpus, "batch": arrow_lines}
    changes = []
    with microbatch_engine() as engine:
        running = engine.submit(WordsRescaled, "rescaled", config=config)
        recorded = RecordedBatches(engine, running)
        recorded.wait(lambda records: len(records) >= WARM_UP_BATCHES + batches)
        for turn in range(rounds):
            version, requested = recorded.records[-1].plan_version, time.time()
            running.scale({"count": SCALED[turn % len(SCALED)]})
            recorded.wait(partial(_are_scaled, version, batches))
            changes.append(rescale_figures(recorded.records, version, requested, batches))
        recorded.end()
        store = store_of(engine.master.settings)
        read = [position * arrow_lines for position in stored_positions(store, "rescaled", "lines")]
        checked = check_counts(stored_counts(store, "rescaled"), lines.counts(read))
    names = {"gaps_ms": "longest_ms", "usual_ms": "usual_ms", "slow_batches": "slow_batches", "batch_ms": "batch_ms"}
    return {name: [change[field] for change in changes] for name, field in names.items()} | checked


def _are_scaled(version: int, batches: int, records: list[BatchRecord]) -> bool:
    return sum(record.plan_version > version for record in records) >= batches


def measure_skew(batches: int, words: int, exponents: list[float]) -> dict[str, Any]:
    """Measure a batch with the key groups as they are hashed to tasks, and after a scheduler has redistributed them; for words
    by Zipf's law with each of these exponents."""
    cases = []
    for exponent in exponents:
        with microbatch_engine() as engine:
            cases.append({"zipf": exponent, "hashed_by_spark": spark_share(engine.spark, exponent),
                          **_skew_case(engine, batches, {**batches_of_size(words), "zipf": exponent})})
    return {"skew_batch_ratio": cases[0]["skew_batch_ratio"], "cases": cases}


def _skew_case(engine: MicrobatchEngine, batches: int, config: dict[str, Any]) -> dict[str, Any]:
    recorded = RecordedBatches(engine, engine.submit(SkewedWork, "skewed", config=config))
    recorded.wait(lambda records: len(records) >= WARM_UP_BATCHES + batches)
    before, share_before = recorded.records[-batches:], _hottest_share(engine, config["zipf"])
    engine.set_scheduler("balance", period=PERIOD_SECONDS, cool_down=PERIOD_SECONDS)
    first = before[-1].plan_version
    recorded.wait(lambda records: len(settled(records, first)) >= batches)
    after, share_after = settled(recorded.records, first), _hottest_share(engine, config["zipf"])
    decisions = engine.master.call(lambda: engine.master.scheduling.past(20))
    recorded.end()
    store = store_of(engine.master.settings)
    truth = skewed_truth(stored_positions(store, "skewed", "words"), config["zipf"])
    checked = check_counts(stored_counts(store, "skewed"), truth)
    reasons = [decision["reason"] for decision in decisions if decision["outcome"] == "enacted"]
    return {**skew_figures(before, after), "hashed": share_before, "rebalanced": share_after, "decisions": reasons, **checked}


def skewed_truth(positions: Sequence[int], exponent: float) -> Counter[str]:
    """The counts of the words that the spout tasks have sent. `positions`: the number of words of each task."""
    table = zipf_words(exponent)
    return Counter(table[(position * len(positions) + task) % TABLE_WORDS]
                   for task, sent in enumerate(positions) for position in range(sent))


def _hottest_share(engine: MicrobatchEngine, exponent: float) -> float:
    """The share of all words that goes to the task with the most of them, under the plan."""
    owners = engine.master.call(lambda: engine.master.state.topologies["skewed"].key_groups["count"])
    return largest_share(owners[stable_hash(word) % len(owners)] for word in zipf_words(exponent))


def largest_share(tasks: Iterable[int]) -> float:
    counts = Counter(tasks)
    return round(max(counts.values()) / counts.total(), 3)


def spark_share(spark: SparkSession, exponent: float) -> float:
    """The share of the hottest partition under Spark's hash."""
    words = spark.createDataFrame([(word,) for word in zipf_words(exponent)], "word string")
    return largest_share(row[0] for row in words.selectExpr("pmod(hash(word), 2)").collect())


def rescale_figures(records: Sequence[BatchRecord], version: int, requested: float, batches: int) -> dict[str, Any]:
    """Compute the figures of one change of parallelism. `version`: that of the plan before it. The longest time without a
    commit lies between the last commit before the change was requested and the last of the first `batches` after it took
    effect."""
    gaps = [(after, ended(after) - ended(before)) for before, after in pairwise(records)]
    usual = statistics.median([gap for record, gap in gaps if ended(record) < requested][-batches:])
    since = [(record, gap) for record, gap in gaps if ended(record) >= requested]
    scaled = [gap for record, gap in since if record.plan_version > version][:batches]
    until = [gap for record, gap in since if record.plan_version <= version]
    return {"longest_ms": round(max(until + scaled) * 1e3), "usual_ms": round(usual * 1e3),
            "slow_batches": sum(gap > SLOW * usual for gap in scaled), "batch_ms": [round(gap * 1e3) for gap in scaled]}


def skew_figures(before: Sequence[BatchRecord], after: Sequence[BatchRecord]) -> dict[str, Any]:
    """Compute the figures of a balanced skew. A batch is closed after the chunk that fills it, so its tuples vary a little: the
    ratio is that of the times per tuple."""
    each = [statistics.median(record.seconds / record.tuples_in for record in records) for records in (before, after)]
    return {"skew_batch_ratio": round(each[1] / each[0], 3),
            "before_ms": round(statistics.median(record.seconds for record in before) * 1e3),
            "after_ms": round(statistics.median(record.seconds for record in after) * 1e3),
            "tuples_in_a_batch": sorted({record.tuples_in for record in (*before, *after)})}


def settled(records: Sequence[BatchRecord], first: int) -> list[BatchRecord]:
    """The batches under the newest plan, if that is not the `first` one, without the batch in which it took effect."""
    newest = records[-1].plan_version
    return [record for record in records if record.plan_version == newest][1:] if newest != first else []


PARTS: dict[str, Callable[..., dict[str, Any]]] = {"rescale": measure_rescale, "skew": measure_skew}


def main() -> None:
    part, settings = sys.argv[1:]
    print(json.dumps(PARTS[part](**json.loads(settings))), flush=True)


if __name__ == "__main__":
    main()

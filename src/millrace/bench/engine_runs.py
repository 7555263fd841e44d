"""The parts of `millrace bench engines` that run on Millrace. Each is run in a process of its own, as other engines are:

    python -m millrace.bench.engine_runs PART '{"seconds": 5, ...}'

prints one JSON object as its last line.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millrace.api.grouping import stable_hash
from millrace.api.topology import Topology
from millrace.bench.engine_topologies import SkewedWork, TallyOnly, WordCountTallyBench, tally_of, zipf_words
from millrace.bench.faults import stored_counts
from millrace.bench.other_engines.job import WORDS_PER_LINE
from millrace.bench.other_engines.spark_common import FASTEST, LinkedFiles, file_stream, scratch_directory
from millrace.bench.topologies import SEED, WordCountBench
from millrace.bench.wordcount import counted, end_run, start_run
from millrace.config import BATCH_INTERVAL, BATCH_SECONDS, BATCH_TUPLES, CHECKPOINTS, EXACTLY_ONCE, GUARANTEE
from millrace.errors import MillraceError
from millrace.master.batch_log import BatchRecord
from millrace.master.load.observed import rate_between
from millrace.runtime.checkpoints.checkpoints import Checkpoints
from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from millrace.spark.engine import ResidentEngine, RunningTopology
from millrace.spark.microbatch import MicrobatchEngine

MASTER = "local[2]"
TOPOLOGIES: dict[str, type[Topology]] = {"microbatch": WordCountBench, "microbatch_arrow": WordCountTallyBench}
WARM_UP_BATCHES = 4
WARM_UP_SECONDS = 3.0
LIMIT_SECONDS = 120.0  # for what is waited for
NEVER_SECONDS = 600.0  # batches are closed by their tuples alone
SLOW = 2.0  # times the usual time makes a slow batch
SCALED = (4, 2)  # tasks that count, by turns; it begins with the last
PERIOD_SECONDS = 1.0  # of the scheduler that balances


def measure_resident(seconds: float) -> dict[str, Any]:
    """Word Count, a call for every word, exactly-once as on the other engine."""
    with scratch_directory() as scratch, ResidentEngine(MASTER, 2, name=_name(), settings=_settings(scratch)) as engine:
        running = start_run(engine, WordCountBench, {GUARANTEE.key: EXACTLY_ONCE}, WARM_UP_SECONDS)
        before = running.measured(counted)
        time.sleep(seconds)
        rate = rate_between(before, running.measured(counted))
        end_run(running)
        check_counts(engine.master.settings, running.name)
    return {"words_per_s": round(rate)}


def measure_words(which: str, seconds: float, trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Words a second of the same, or in Arrow batches, batch by batch; the best of some sizes of a batch."""
    found = []
    with _engine() as engine:
        for number, trial in enumerate(trials):
            found.append({**trial, **_trial(engine, which, f"words-{number}", seconds, trial)})
    best = max(found, key=lambda one: float(one["words_per_s"]))
    return {"words_per_s": best["words_per_s"], "best": best, "trials": found}


def measure_files(lines: int, sizes: list[int]) -> dict[str, Any]:
    """In Arrow batches, on the text files that Structured Streaming gets, read by it; the best of the same sizes of a batch,
    of which the first is run once before, uncounted, as there."""
    found = []
    with scratch_directory() as scratch, _engine() as engine:
        for number, size in enumerate([sizes[0], *sizes]):
            found.append({"batch_lines": size, **_files_trial(engine, scratch, f"files-{number}", lines, size)})
    best = max(found[1:], key=lambda one: float(one["words_per_s"]))
    return {"words_per_s": best["words_per_s"], "best": best, "trials": found[1:]}


def _files_trial(engine: MicrobatchEngine, scratch: Path, name: str, lines: int, size: int) -> dict[str, Any]:
    given = LinkedFiles(scratch / name, SEED, size)
    batches = 1 + max(1, round(lines / size))
    given.add(batches)
    topology = tally_of(file_stream(engine.spark, given.directory))
    seen = Batches(engine, engine.submit(topology, name, config={BATCH_INTERVAL.key: 0.0}))
    seen.wait(lambda records: sum(record.tuples_in > 0 for record in records) >= batches)
    records = [record for record in seen.records if record.tuples_in]
    seen.end()
    found = sum(stored_counts(_store(engine.master.settings), name).values())
    _check(name, found, sum(record.tuples_in for record in records) * WORDS_PER_LINE)
    return {"words_per_s": round(lines_per_second(records) * WORDS_PER_LINE), **shape_of(records[1:])}


def _trial(engine: MicrobatchEngine, which: str, name: str, seconds: float, trial: dict[str, Any]) -> dict[str, Any]:
    batches = Batches(engine, engine.submit(TOPOLOGIES[which], name, config=_batched(trial)))
    records = batches.measured(seconds)
    batches.end()
    check_counts(engine.master.settings, name, "lines", trial.get("batch", 1) * WORDS_PER_LINE)
    return {"words_per_s": round(lines_per_second(records) * WORDS_PER_LINE), **shape_of(records[1:])}


def measure_rescale(rounds: int, batches: int, trial: dict[str, Any]) -> dict[str, Any]:
    """How long nothing is committed when the number of counting tasks changes."""
    found = []
    with _engine() as engine:
        running = engine.submit(TallyOnly, "rescaled", config=_batched(trial))
        seen = Batches(engine, running)
        seen.wait(lambda records: len(records) >= WARM_UP_BATCHES + batches)
        for turn in range(rounds):
            version, asked = seen.records[-1].plan_version, time.time()
            running.scale("count", SCALED[turn % len(SCALED)])
            seen.wait(partial(_are_scaled, version, batches))
            found.append(rescale_figures(seen.records, version, asked, batches))
        seen.end()
        check_counts(engine.master.settings, "rescaled", "lines", trial["batch"] * WORDS_PER_LINE)
    return {"gaps_ms": [one["longest_ms"] for one in found], "usual_ms": [one["usual_ms"] for one in found],
            "slow_batches": [one["slow_batches"] for one in found], "batch_ms": [one["batch_ms"] for one in found]}


def _are_scaled(version: int, batches: int, records: list[BatchRecord]) -> bool:
    return sum(record.plan_version > version for record in records) >= batches


def measure_skew(batches: int, trial: dict[str, Any], exponents: list[float]) -> dict[str, Any]:
    """Seconds of a batch with the key groups as they are hashed to tasks, and when a scheduler has shared them out anew; for
    words by Zipf's law with each of these exponents."""
    found = []
    for exponent in exponents:
        with _engine() as engine:
            found.append({"zipf": exponent, "hashed_by_spark": spark_share(engine.spark, exponent),
                          **_skew_of(engine, batches, {**_batched(trial), "zipf": exponent})})
    return {"skew_batch_ratio": found[0]["skew_batch_ratio"], "cases": found}


def _skew_of(engine: MicrobatchEngine, batches: int, config: dict[str, Any]) -> dict[str, Any]:
    seen = Batches(engine, engine.submit(SkewedWork, "skewed", config=config))
    seen.wait(lambda records: len(records) >= WARM_UP_BATCHES + batches)
    before, at_first = seen.records[-batches:], _hottest_share(engine, config["zipf"])
    engine.set_scheduler("balance", period=PERIOD_SECONDS, cool_down=PERIOD_SECONDS)
    first = before[-1].plan_version
    seen.wait(lambda records: len(settled(records, first)) >= batches)
    after, in_the_end = settled(seen.records, first), _hottest_share(engine, config["zipf"])
    decisions = engine.master.call(lambda: engine.master.scheduling.past(20))
    seen.end()
    check_counts(engine.master.settings, "skewed", "words", 1)
    told = [decision["reason"] for decision in decisions if decision["outcome"] == "enacted"]
    return {**skew_figures(before, after), "hashed": at_first, "shared_out": in_the_end, "decisions": told}


def _hottest_share(engine: MicrobatchEngine, exponent: float) -> float:
    """The part of all words that goes to the task with the most of them, by the plan."""
    owners = engine.master.call(lambda: engine.master.state.topologies["skewed"].key_groups["count"])
    return largest_share(owners[stable_hash(word) % len(owners)] for word in zipf_words(exponent))


def largest_share(tasks: Iterable[int]) -> float:
    counts = Counter(tasks)
    return round(max(counts.values()) / counts.total(), 3)


def spark_share(spark: SparkSession, exponent: float) -> float:
    """The same by the partitions that Spark's own hash gives them to."""
    words = spark.createDataFrame([(word,) for word in zipf_words(exponent)], "word string")
    return largest_share(row[0] for row in words.selectExpr("pmod(hash(word), 2)").collect())


class Batches:
    """The batches of a running topology, as the master has noted them."""

    def __init__(self, engine: MicrobatchEngine, running: RunningTopology) -> None:
        self._engine, self._running = engine, running

    @property
    def records(self) -> list[BatchRecord]:
        found: list[BatchRecord] = self._engine.master.call(self._noted)
        return found

    def _noted(self) -> list[BatchRecord]:
        log = self._engine.master.batches.get(self._running.name)
        return list(log.records) if log is not None else []

    def wait(self, enough: Callable[[list[BatchRecord]], bool]) -> None:
        seen = self.records
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (seen and enough(seen)):
            if self._running.status == "ended" or time.monotonic() > deadline:
                raise MillraceError(f"{self._running.name} did not come as far as it should within {LIMIT_SECONDS:g} s; "
                                    f"{len(seen)} batches, and the master says: {self._engine.status()['events'][-3:]}")
            time.sleep(0.05)
            seen = self.records

    def measured(self, seconds: float) -> list[BatchRecord]:
        """The batches of so many seconds after the first ones, and the one before."""
        self.wait(lambda records: len(records) >= WARM_UP_BATCHES)
        until = time.monotonic() + seconds
        first = self.records[-1].batch
        self.wait(lambda records: records[-1].batch > first and time.monotonic() >= until)
        return [record for record in self.records if record.batch >= first and record.tuples_in]

    def end(self) -> None:
        end_run(self._running)


def ended(record: BatchRecord) -> float:
    return record.started + record.seconds


def lines_per_second(records: Sequence[BatchRecord]) -> float:
    """From the end of the first, which is not counted, to the end of the last."""
    return sum(record.tuples_in for record in records[1:]) / (ended(records[-1]) - ended(records[0]))


def shape_of(records: Sequence[BatchRecord]) -> dict[str, Any]:
    """What the batches were like, on average: how long they took, how long Spark says its tasks ran, and how long ours did."""
    count = len(records)
    return {"batches": count, "stages": records[-1].stages, "lines_in_a_batch": sum(r.tuples_in for r in records) // count,
            "batch_ms": round(sum(r.seconds for r in records) / count * 1e3),
            "spark_run_ms": round(sum(r.spark_run_seconds for r in records) / count * 1e3),
            "own_busy_ms": round(sum(r.own_busy_seconds for r in records) / count * 1e3),
            "shuffle_kb": sum(r.spark_shuffle_bytes for r in records) // count // 1024}


def rescale_figures(records: Sequence[BatchRecord], version: int, asked: float, batches: int) -> dict[str, Any]:
    """`version`: of the plan before. The longest time without a commit is looked for from the last one before it was asked for
    to the last of the first `batches` after it took effect."""
    gaps = [(after, ended(after) - ended(before)) for before, after in pairwise(records)]
    usual = statistics.median([gap for record, gap in gaps if ended(record) < asked][-batches:])
    since = [(record, gap) for record, gap in gaps if ended(record) >= asked]
    scaled = [gap for record, gap in since if record.plan_version > version][:batches]
    until = [gap for record, gap in since if record.plan_version <= version]
    return {"longest_ms": round(max(until + scaled) * 1e3), "usual_ms": round(usual * 1e3),
            "slow_batches": sum(gap > SLOW * usual for gap in scaled), "batch_ms": [round(gap * 1e3) for gap in scaled]}


def skew_figures(before: Sequence[BatchRecord], after: Sequence[BatchRecord]) -> dict[str, Any]:
    """A batch is closed after the chunk that fills it, so its tuples vary a little: the ratio is of the time for each."""
    each = [statistics.median(record.seconds / record.tuples_in for record in records) for records in (before, after)]
    return {"skew_batch_ratio": round(each[1] / each[0], 3),
            "before_ms": round(statistics.median(record.seconds for record in before) * 1e3),
            "after_ms": round(statistics.median(record.seconds for record in after) * 1e3),
            "tuples_in_a_batch": sorted({record.tuples_in for record in (*before, *after)})}


def settled(records: Sequence[BatchRecord], first: int) -> list[BatchRecord]:
    """The batches by the newest plan, if that is not the `first` one; but for the one in which it took effect."""
    newest = records[-1].plan_version
    return [record for record in records if record.plan_version == newest][1:] if newest != first else []


def check_counts(settings: dict[str, Any], name: str, source: str = "lines", words: int = WORDS_PER_LINE) -> None:
    """Do the counts in the last checkpoint add up to the words that the spouts have sent by then? `words`: in a tuple."""
    store = _store(settings)
    manifest = Checkpoints(store, name).latest()
    if manifest is None:
        raise MillraceError(f"there is no checkpoint of {name!r}: whether it has counted right is not known")
    sent = sum(record.position or 0 for record in manifest.records if record.component == source) * words
    _check(name, sum(stored_counts(store, name).values()), sent)


def _store(settings: dict[str, Any]) -> CheckpointStore:
    return open_store(str(CHECKPOINTS.of(settings)))


def _check(name: str, found: int, sent: int) -> None:
    if found != sent:
        raise MillraceError(f"the counts of {name} add up to {found:,} words, and {sent:,} were sent: its figures mean nothing")


@contextmanager
def _engine() -> Iterator[MicrobatchEngine]:
    with scratch_directory() as scratch, \
            MicrobatchEngine(MASTER, 1, name=_name(), settings=_settings(scratch),
                             spark_settings={"spark.local.dir": str(scratch / "local"),
                                             "spark.driver.memory": FASTEST["spark.driver.memory"]}) as engine:
        yield engine


def _name() -> str:
    return f"bench-{os.getpid()}"


def _settings(scratch: Path) -> dict[str, Any]:
    return {CHECKPOINTS.key: str(scratch / "checkpoints"), "history.url": "none"}


def _batched(trial: dict[str, Any]) -> dict[str, Any]:
    """Batch after batch, each closed by its number of tuples."""
    given = {BATCH_INTERVAL.key: 0.0, BATCH_SECONDS.key: NEVER_SECONDS, BATCH_TUPLES.key: trial["tuples"]}
    return given | ({"batch": trial["batch"]} if "batch" in trial else {})


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "resident": measure_resident, "words": measure_words, "files": measure_files, "rescale": measure_rescale,
    "skew": measure_skew}


def main() -> None:
    part, settings = sys.argv[1:]
    print(json.dumps(PARTS[part](**json.loads(settings))), flush=True)


if __name__ == "__main__":
    main()

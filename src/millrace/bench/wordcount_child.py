"""Word Count on Millrace, one run in its own process, as the other engines are run:

    python -m millrace.bench.wordcount_child PROGRAM '{"corpus": "/dev/shm/corpus", "batch_lines": 5000, ...}'

prints one JSON object as its last line, with the fields that the scripts of the other engines print.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import millrace
from millrace.api.topology import Topology
from millrace.bench.batch_records import RecordedBatches, batches_of_size, ended, mean_batch
from millrace.bench.other_engines.job import WORDS_PER_LINE, Corpus
from millrace.bench.other_engines.reporting import (
    LatencyMeter,
    Rule,
    RunRequest,
    WindowMeter,
    check_counts,
    latency_fields,
    throughput_fields,
)
from millrace.bench.other_engines.spark_common import CorpusLinks, file_stream, files_per_batch, scratch_directory
from millrace.bench.stored_counts import newest_manifest, store_of, stored_counts, stored_positions
from millrace.bench.topologies import (
    WordsByArrow,
    WordsByChunk,
    WordsByTuple,
    WordsCombined,
    WordsCombinedByTuple,
    WordsDue,
    WordsTimed,
    words_of_dataframe,
)
from millrace.bench.topology_runs import MASTER, end_run, microbatch_engine, resident_engine, start_run, window_rates
from millrace.config import AT_LEAST_ONCE, AT_MOST_ONCE, BATCH_INTERVAL, CHECKPOINTS, EXACTLY_ONCE, GUARANTEE, WAVE_INTERVAL
from millrace.errors import MillraceError
from millrace.master.batch_log import BatchRecord
from millrace.spark.microbatch import MicrobatchEngine

TOPOLOGIES: dict[str, type[Topology]] = {"process": WordsByTuple, "process_rows": WordsByChunk, "process_arrow": WordsByArrow,
                                         "process_combined": WordsCombinedByTuple, "process_arrow_combined": WordsCombined}
# The component whose tuples give the rate, and the number of words that one of its tuples stands for. The sink gets an update
# for every word, but from an Arrow batch only one for each different word; words combined before the shuffle are single words
# nowhere after it.
COUNTED_AT = {"process": ("drop", 1), "process_rows": ("drop", 1), "process_arrow": ("count", 1),
              "process_combined": ("split", WORDS_PER_LINE), "process_arrow_combined": ("split", WORDS_PER_LINE)}
IN_BATCHES = (WordsByArrow, WordsCombined)  # of Arrow: their size is `batch_lines`
SPOUT_TASKS = 2
REPORT_SECONDS = 60.0
SPARE_SECONDS = 1.0  # after the last line of a latency run is due
ARROW_LINES = 12_500  # maximum in an Arrow batch on the microbatch engine
NAME = "words"
RunResult = dict[str, Any]


def measure_resident(request: RunRequest, program: str, guarantee: str) -> RunResult:
    """Words per second on the resident engine."""
    topology = TOPOLOGIES[program]
    with scratch_directory() as scratch, resident_engine(scratch) as engine:
        config = _resident_config(request, guarantee, scratch)
        if topology in IN_BATCHES:
            config["batch"] = request.batch_lines
        running = start_run(engine, topology, config, request.rule.warm_up)
        figures = throughput_fields(window_rates(running, request.rule, *COUNTED_AT[program]), request.rule)
        end_run(running)
        if guarantee == EXACTLY_ONCE:
            lines_in_a_tuple = request.batch_lines if topology in IN_BATCHES else 1
            checked = _check_stored(engine.master.settings, running.name, request, lines_in_a_tuple)
        else:
            checked = _check_reported(scratch, request)
    shape = f", {request.batch_lines:,} lines an Arrow batch" if topology in IN_BATCHES else ""
    return {**_version(f"2 workers on {MASTER}{shape}"), **figures, **checked}


def measure_latency(request: RunRequest, guarantee: str) -> RunResult:
    """Milliseconds from the moment a line is due until its last update is at the sink, on the resident engine."""
    with scratch_directory() as scratch, resident_engine(scratch) as engine:
        config = {**_resident_config(request, guarantee, scratch), "rate": request.rate, "limit": request.paced_lines}
        running = start_run(engine, WordsTimed, config, request.paced_lines / request.rate + SPARE_SECONDS)
        end_run(running)
        checked = _check_reported(scratch, request, tasks=6)
        started = [report["started"] for report in _reports(scratch, "CorpusLines")]
        arrivals = [tuple(arrival) for report in _reports(scratch, "TimedDrop") for arrival in report["arrivals"]]
        latencies = due_to_visible(started, arrivals, request)
    return {**_version(f"2 workers on {MASTER}"), **latency_fields(latencies, request.rate), **checked}


def due_to_visible(started: list[float], arrivals: list[tuple[float, int]], request: RunRequest) -> list[float]:
    """Latencies of the lines that were due after the warm-up, by the rule of LatencyMeter: when the sinks have had `n` words,
    the first `n / 10` lines are delivered. `started`: when the timetable of each spout task began."""
    tasks = len(started)
    due = sorted(start + line * tasks / request.rate for task, start in enumerate(started)
                 for line in range((request.paced_lines + tasks - 1 - task) // tasks))
    first = min(started) + request.rule.warm_up
    latencies, words, through = [], 0, 0
    for at, updates in sorted(arrivals):
        words += updates
        while (through + 1) * WORDS_PER_LINE <= words:
            if due[through] >= first:
                latencies.append(at - due[through])
            through += 1
    return latencies


def _resident_config(request: RunRequest, guarantee: str, scratch: Path) -> dict[str, Any]:
    reports = scratch / "reports"
    reports.mkdir()
    config: dict[str, Any] = {GUARANTEE.key: guarantee, "corpus": str(request.corpus), "report": str(reports)}
    return config | ({WAVE_INTERVAL.key: request.checkpoint_seconds} if guarantee == EXACTLY_ONCE else {})


def _check_stored(settings: dict[str, Any], name: str, request: RunRequest, lines_in_a_tuple: int) -> RunResult:
    """Compare the counts in the last checkpoint with those of the lines that the spouts had sent by then."""
    store = store_of(settings)
    lines = [position * lines_in_a_tuple for position in stored_positions(store, name, "lines")]
    return check_counts(stored_counts(store, name), Corpus.at(request.corpus).counts(lines))


def _check_reported(scratch: Path, request: RunRequest, tasks: int = 4) -> RunResult:
    """Compare the counts that the tasks had at their end with those of the lines that the spouts had sent."""
    _await_reports(scratch, tasks)
    counts: Counter[str] = Counter()
    for report in _reports(scratch, ""):
        counts.update(report.get("counts", {}))
    lines = [report["lines"] for report in _reports(scratch, "CorpusLines")]
    return check_counts(counts, Corpus.at(request.corpus).counts(lines))


def _await_reports(scratch: Path, tasks: int) -> None:
    """Wait until this many tasks have written their reports: the master forgets a topology before its tasks close."""
    deadline = time.monotonic() + REPORT_SECONDS
    while len(_reports(scratch, "")) < tasks:
        if time.monotonic() > deadline:
            raise MillraceError(f"fewer than {tasks} tasks have reported within {REPORT_SECONDS:g} s after their end")
        time.sleep(0.05)


def _reports(scratch: Path, component: str) -> list[RunResult]:
    """The reports of a component's tasks, in the order of the tasks."""
    return [json.loads(path.read_text()) for path in sorted((scratch / "reports").glob(f"{component}*.json"))]


def measure_microbatch(request: RunRequest, program: str) -> RunResult:
    """Words per second on the microbatch engine, with lines read by a Millrace spout."""
    topology, arrow = TOPOLOGIES[program], TOPOLOGIES[program] in IN_BATCHES
    arrow_lines = min(ARROW_LINES, Corpus.at(request.corpus).lines_per_file)
    config = {**batches_of_size(request.batch_lines // SPOUT_TASKS), "corpus": str(request.corpus), "batch": arrow_lines}
    with microbatch_engine() as engine:
        batches = _MeasuredBatches(engine, topology, config, request.rule)
        batches.wait(batches.note)
        figures = batches.finish(request)
        checked = _check_stored(engine.master.settings, NAME, request, arrow_lines if arrow else 1)
    return {**figures, **checked}


def measure_dataframe(request: RunRequest) -> RunResult:
    """Words per second on the microbatch engine, with the files read by Spark as for its own queries."""
    with scratch_directory() as scratch, microbatch_engine() as engine:
        corpus = Corpus.at(request.corpus)
        links, size = CorpusLinks(scratch / "lines", corpus), files_per_batch(corpus, request.batch_lines)
        links.keep_ahead(0, size)
        topology = words_of_dataframe(file_stream(engine.spark, links.directory, size))
        batches = _MeasuredBatches(engine, topology, {BATCH_INTERVAL.key: 0.0}, request.rule)

        def measured(records: list[BatchRecord]) -> bool:
            links.keep_ahead(lines_in(records) // corpus.lines_per_file, size)
            return batches.note(records)

        batches.wait(measured)
        recorded = batches.records
        figures = batches.finish(request)
        store = store_of(engine.master.settings)
        # Batches that were committed since: each has a wave and the same number of files.
        later = newest_manifest(store, NAME).wave - recorded[-1].wave
        lines = lines_in(recorded) + later * size * corpus.lines_per_file
        read = links.counts_after(lines, Path(str(CHECKPOINTS.of(engine.master.settings))))
        checked = check_counts(stored_counts(store, NAME), read)
    return {**figures, **checked}


class _MeasuredBatches(RecordedBatches):
    """Batches with a meter. The clock starts with the first batch."""

    def __init__(self, engine: MicrobatchEngine, topology: type[Topology], config: dict[str, Any], rule: Rule) -> None:
        super().__init__(engine, engine.submit(topology, NAME, config=config))
        self._rule = rule
        self._meter: WindowMeter | None = None

    def note(self, records: list[BatchRecord]) -> bool:
        """Note the last batch. Returns True if every window is measured."""
        self._meter = self._meter or WindowMeter(self._rule, records[0].started)
        self._meter.note(lines_in(records) * WORDS_PER_LINE, ended(records[-1]))
        return self._meter.done

    def finish(self, request: RunRequest) -> RunResult:
        """End the topology and return its figures: the master forgets its batches."""
        records = [record for record in self.records if record.tuples_in]
        self.end()
        assert self._meter is not None, "all windows are measured"
        setting = f"{MASTER}, {request.batch_lines:,} lines a batch"
        return {**_version(setting), **self._meter.as_fields(), **mean_batch(records[1:] or records)}


def measure_microbatch_latency(request: RunRequest) -> RunResult:
    """Milliseconds from the moment a line is due until the batch with its last update is committed, batches back to back."""
    seen: dict[int, BatchRecord] = {}  # the log keeps the last ones only

    def all_committed(records: list[BatchRecord]) -> bool:
        seen.update((record.batch, record) for record in records)
        return lines_in(seen.values()) >= request.paced_lines

    with microbatch_engine() as engine:
        start = time.time()
        config = {BATCH_INTERVAL.key: 0.0, "corpus": str(request.corpus), "rate": request.rate, "limit": request.paced_lines,
                  "start": start}
        batches = RecordedBatches(engine, engine.submit(WordsDue, NAME, config=config))
        batches.wait(all_committed)
        batches.end()
        checked = _check_stored(engine.master.settings, NAME, request, 1)
    meter, words = LatencyMeter(start, request.rate, request.rule.warm_up), 0
    for _, record in sorted(seen.items()):
        words += record.tuples_in * WORDS_PER_LINE
        meter.counted(words, ended(record))
    return {**_version(f"{MASTER}, batches back to back"), **meter.as_fields(), **checked}


def lines_in(records: Iterable[BatchRecord]) -> int:
    return sum(record.tuples_in for record in records)


def _version(setting: str) -> RunResult:
    return {"engine": "millrace", "version": getattr(millrace, "__version__", ""), "setting": setting}


PROGRAMS: dict[str, Callable[[RunRequest], RunResult]] = {
    "process": lambda request: measure_resident(request, "process", AT_MOST_ONCE),
    "process_rows": lambda request: measure_resident(request, "process_rows", AT_MOST_ONCE),
    "process_arrow": lambda request: measure_resident(request, "process_arrow", AT_MOST_ONCE),
    "process_acked": lambda request: measure_resident(request, "process", AT_LEAST_ONCE),
    "process_checkpointed": lambda request: measure_resident(request, "process", EXACTLY_ONCE),
    "process_combined_checkpointed": lambda request: measure_resident(request, "process_combined", EXACTLY_ONCE),
    "process_rows_checkpointed": lambda request: measure_resident(request, "process_rows", EXACTLY_ONCE),
    "process_arrow_checkpointed": lambda request: measure_resident(request, "process_arrow", EXACTLY_ONCE),
    "process_arrow_combined_checkpointed": lambda request: measure_resident(request, "process_arrow_combined", EXACTLY_ONCE),
    "microbatch": lambda request: measure_microbatch(request, "process"),
    "microbatch_arrow": lambda request: measure_microbatch(request, "process_arrow"),
    "microbatch_arrow_files": measure_dataframe,
    "latency_microbatch": measure_microbatch_latency,
    "latency_process": lambda request: measure_latency(request, AT_MOST_ONCE),
    "latency_process_acked": lambda request: measure_latency(request, AT_LEAST_ONCE),
    "latency_process_checkpointed": lambda request: measure_latency(request, EXACTLY_ONCE),
}


def main() -> None:
    program, settings = sys.argv[1], json.loads(sys.argv[2])
    if program not in PROGRAMS:
        raise MillraceError(f"there is no program {program!r}; there are {', '.join(PROGRAMS)}")
    settings["corpus"], settings["rule"] = Path(settings["corpus"]), Rule(**settings["rule"])
    print(json.dumps(PROGRAMS[program](RunRequest(**settings))), flush=True)


if __name__ == "__main__":
    main()

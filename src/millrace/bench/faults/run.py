"""A run of `bench faults`: a word count near saturation on Spark executors, faults on it, faults on drivers, the comparison.

The highest rate is measured first. A fault counts only if it had an effect, which is proved by a change that the master or the
operating system shows. After each fault, or after some in a row, waves must be committed again. In the end the sink's files and
the counts in the last checkpoint are compared with the lines that the spouts have sent.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace.bench.backpressure import wave_under_backpressure
from millrace.bench.faults import batches, drivers, resident
from millrace.bench.faults.batches import BatchSoak
from millrace.bench.faults.comparison import broken_promise, compared
from millrace.bench.faults.resident import ResidentSoak
from millrace.bench.faults.sabotage import SabotagedWordCount
from millrace.bench.faults.soak import NAME, Soak, figures_of
from millrace.bench.faults.surroundings import TakenAway
from millrace.bench.other_engines.reporting import Rule
from millrace.bench.results import keep
from millrace.bench.topology_runs import end_run, resident_engine, start_run, window_rates
from millrace.config import (
    AT_LEAST_ONCE,
    BATCH_TUPLES,
    CHECKPOINTS,
    EXACTLY_ONCE,
    GUARANTEE,
    HISTORY,
    MICROBATCH,
    NODE_BY,
    RESIDENT,
    WAVE_INTERVAL,
)
from millrace.errors import MillraceError
from millrace.runtime.checkpoints.store import open_store
from millrace.spark.engine import ResidentEngine
from millrace.spark.microbatch import MicrobatchEngine
from millrace.spark.running_topology import RunningTopology
from millrace.workloads.wordcount import WORDS_PER_LINE

MASTERS = {RESIDENT: ("local-cluster[2,3,700]", 4), MICROBATCH: ("local-cluster[2,2,1024]", 2)}  # with their slots
DRIVER_MASTERS = {RESIDENT: ("local[2]", 2), MICROBATCH: ("local[2]", 1)}
SATURATION = {RESIDENT: Rule(warm_up=5.0, seconds=5.0, rounds=2), MICROBATCH: Rule(warm_up=15.0, seconds=10.0, rounds=2)}
SHARE = 0.8  # of the highest rate
DRIVER_SHARE = 0.4  # of the highest rate: Java starts on the same cores
INTERVAL_SECONDS = 1.0
SLOW_ROWS_MS = (1, 10, 100)
SEED_SECONDS = 6  # at least, for one seed: enough for a fault
NOT_MEASURED = {"driver_restart_ms": None, "wave_under_backpressure_ms": None, "latency_under_backpressure_ms": None,
                "backpressure_error": None}
BATCH_LINES = 5_000  # of one spout task in a batch: short batches recover sooner


def saturation(engine: ResidentEngine | MicrobatchEngine, directory: Path, config: dict[str, Any], rule: Rule) -> float:
    """The highest rate of the same word count on these workers, in lines per second."""
    running = start_run(engine, SabotagedWordCount, {**config, "path": str(directory)}, rule.warm_up)
    rate = max(window_rates(running, rule)) / WORDS_PER_LINE
    end_run(running)
    shutil.rmtree(directory)
    if not rate:
        raise MillraceError(f"no word was counted in {rule.seconds:g} s: this machine is too busy to measure anything")
    return rate


def run_faults(minutes: float, seeds: Sequence[int], guarantee: str, engine: str, live: bool) -> dict[str, Any]:
    """Returns the object of `bench faults --json`.

    `minutes`: the time that was asked for, divided equally between the `seeds`, each with its own plan of faults; `seed`: the
    first of them. `seconds`: the time that the faults took, as the run continues until each kind of fault had an effect, up to
    a limit; `kinds_without_effect`: kinds that had none even so, those of the driver included. `saturation`: the highest rate,
    in lines per second; `rate`: the share of it that the run had. `faults`: those that had an effect.
    `longest_gap_ms`: the longest time without a word at the sink, by the workers' reports, without requested pauses.
    Exactly once, words become visible with the waves: `longest_uncommitted_ms` is the longest time from one commit to the next.
    `kinds`: for each kind of fault how many had an effect, the longest time without a word at the sink (median and worst) and
    the time until two more waves were committed (median), of the faults that came alone. For those of the driver, the rows that
    count are visible ones, and the time is that to the first new row, from the kill or from the start of the second driver;
    `driver_restart_ms` is its median after a kill.
    `wave_under_backpressure_ms`: milliseconds to a committed wave before a sink that takes 1, 10 or 100 ms for a row, and
    `latency_under_backpressure_ms` the latency of tuples meanwhile; measured exactly once on the resident engine, else null.
    `backpressure_error`: why they could not be measured there. `recovery_ms`: the worst of these times. `drivers`: the rate of
    the part with faults of the driver, its comparison, and `overtaken_ended_ms`, the time from the start of a second driver to
    the end of the first (median). `stuck`: why the run ended early; the figures until then are kept.
    """
    if guarantee not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise MillraceError(f"--guarantee {guarantee}: faults lose nothing only with {EXACTLY_ONCE} or {AT_LEAST_ONCE}")
    if engine not in MASTERS:
        raise MillraceError(f"--engine {engine}: there is no such engine; choose one of {', '.join(MASTERS)}")
    if 60 * minutes < SEED_SECONDS * len(seeds):
        raise MillraceError(f"--minutes {minutes:g} for {len(seeds)} seeds: each needs {SEED_SECONDS} s at least; ask for "
                            f"{SEED_SECONDS * len(seeds) / 60:g} minutes or for fewer seeds")
    console = Console(stderr=not live)
    console.print(f"{engine}, {guarantee}, seeds {', '.join(map(str, seeds))}: {minutes:g} minutes of faults on Spark "
                  f"{MASTERS[engine][0]}", markup=False)
    result: dict[str, Any] = {"engine": engine, "guarantee": guarantee, "minutes": minutes, "seed": seeds[0],
                              "seeds": list(seeds), "stuck": None, **NOT_MEASURED}
    with tempfile.TemporaryDirectory(prefix="millrace-faults-") as base:
        _run_parts(Path(base), result, console)
    _print(console, result)
    return result


def _run_parts(base: Path, result: dict[str, Any], console: Console) -> None:
    """The three parts of a run. An error in one of them ends the run, but the figures until then are kept."""
    engine, guarantee = result["engine"], result["guarantee"]
    try:
        _run_soak(base, result, console)
        drivers.run_driver_faults(base, *DRIVER_MASTERS[engine], round(DRIVER_SHARE * result["saturation"]), result, console)
    except MillraceError as error:
        if "faults" not in result:  # it did not even start: there is nothing to keep
            raise
        result["stuck"] = str(error)
        return
    if (engine, guarantee) == (RESIDENT, EXACTLY_ONCE):
        try:
            result.update(_under_backpressure(base))
        except (MillraceError, OSError) as error:
            result["backpressure_error"] = f"{type(error).__name__}: {error}"


def _run_soak(base: Path, result: dict[str, Any], console: Console) -> None:
    """Faults on a running topology. The figures go into `result`, even if it gets stuck; then nothing is compared."""
    kind, guarantee = result["engine"], result["guarantee"]
    store, output = TakenAway(base), base / "output"
    settings = {NODE_BY.key: "executor", HISTORY.key: "none", CHECKPOINTS.key: str(store.path)}
    config = {GUARANTEE.key: guarantee, WAVE_INTERVAL.key: INTERVAL_SECONDS, BATCH_TUPLES.key: BATCH_LINES}
    master, slots = MASTERS[kind]
    make = ResidentEngine if kind == RESIDENT else MicrobatchEngine
    with make(master, slots, name=f"faults-{os.getpid()}", settings=settings) as engine:
        highest = saturation(engine, base / "saturation", config, SATURATION[kind])
        rate = round(SHARE * highest)
        result.update(saturation=round(highest), rate=rate)
        console.print(f"highest rate {highest:,.0f} lines/s; the run has {SHARE:.0%} of it: {rate:,} lines/s")
        running = engine.submit(SabotagedWordCount, NAME, {**config, "path": str(output), "rate": rate})
        if not running.wait_running():
            raise MillraceError(f"the topology did not start; last events: {engine.status()['events'][-3:]}")
        soak, proofs = _soak(engine, running, store, rate, console)
        try:
            soak.run(result["seeds"], result["minutes"] * 60)
            expected = soak.drain()
        finally:
            result.update(figures_of(soak, proofs))
        running.kill(wait=0)
    result.update(compared(output, open_store(str(store.path)), expected))


def _under_backpressure(base: Path) -> dict[str, Any]:
    """The time to a committed wave, and the latency of tuples, before a sink that takes 1, 10 and 100 ms for a row."""
    with resident_engine(base / "backpressure") as engine:
        measured = {str(ms): wave_under_backpressure(ms, engine, base / f"slow-{ms}") for ms in SLOW_ROWS_MS}
    return {"wave_under_backpressure_ms": {ms: of["wave_ms"] for ms, of in measured.items()},
            "latency_under_backpressure_ms": {ms: {"p50": of["latency_p50_ms"], "p99": of["latency_p99_ms"]}
                                              for ms, of in measured.items()}}


def _soak(engine: ResidentEngine | MicrobatchEngine, running: RunningTopology, store: TakenAway, rate: int,
          console: Console) -> tuple[Soak, dict[str, str]]:
    if isinstance(engine, ResidentEngine):
        return ResidentSoak(engine, running, store, rate, console), dict(resident.PROOFS)
    return BatchSoak(engine, running, console), dict(batches.PROOFS)


def broken_promises(result: dict[str, Any]) -> str:
    """Results of all parts that the guarantee forbids; empty if it was kept."""
    broken = [broken_promise(result)]
    if not result["stuck"]:
        in_drivers = broken_promise({**result["drivers"]["compared"], "guarantee": result["guarantee"], "stuck": None})
        broken.append(f"with faults of the driver: {in_drivers}" if in_drivers else "")
        broken.append(f"before a slow sink: {error}" if (error := result["backpressure_error"]) else "")
    return "; ".join(filter(None, broken))


def _print(console: Console, result: dict[str, Any]) -> None:
    if result["stuck"]:
        console.print(f"stuck: {result['stuck']}", markup=False)
    else:
        for part, text in ((result, ""), (result["drivers"]["compared"], "with faults of the driver: ")):
            console.print(f"{text}{part['tuples_in']:,} words in, {part['tuples_out']:,} out: {part['lost']} lost, "
                          f"{part['repeated']} repeated; of {part['words']:,} counts {part['counts_wrong']} differ from the "
                          f"truth, {part['counts_less']} are less")
        console.print(f"{sum(result['faults'].values())} faults with an effect, {sum(result['without_effect'].values())} "
                      f"without; longest gap at the sink {result['longest_gap_ms']:,} ms, between two commits "
                      f"{result['longest_uncommitted_ms']:,} ms; a killed driver's first new row after "
                      f"{result['driver_restart_ms']:,} ms")
        if result["backpressure_error"]:
            console.print(f"before a slow sink: {result['backpressure_error']}", markup=False)
    name = f"faults-{result['guarantee']}" if result["engine"] == RESIDENT else f"faults-microbatch-{result['guarantee']}"
    console.print(f"kept in {keep(name, result)}")

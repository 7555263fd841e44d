"""The highest rate that the word count of `bench handover` sustains: measured at full speed, then confirmed by timetables."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from millrace.bench.handover.figures import Case
from millrace.bench.handover.sink_log import SinkLog, await_closed
from millrace.bench.handover.timetable import PRIMING, Timetable
from millrace.bench.handover.words import SPOUTS, WordsHandedOver
from millrace.bench.other_engines.reporting import Rule
from millrace.bench.topology_runs import END_SECONDS, end_run, window_rates
from millrace.config import WAVE_INTERVAL
from millrace.control.topology_status import ENDED
from millrace.errors import MillraceError
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology
from millrace.workloads.wordcount import WORDS_PER_LINE

WORDS_TOPOLOGY = "words"
MB = 1_000_000
INTERVAL_SECONDS = 1.0
LEAD_SECONDS = 1.0  # from now to the beginning or the end of a timetable, so that every spout knows it in time
SUSTAINED_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)  # of the rate at full speed, where chunks are larger
SUSTAINED_RUNS = 2
READY_SECONDS = 120.0  # until the state is set up and committed
PRIMED_WORDS = SPOUTS * PRIMING * WORDS_PER_LINE
SUSTAINED_MS = 500.0  # p99 of the worst window: beyond it the words are falling behind the timetable


@dataclass(frozen=True, slots=True)
class Lengths:
    """Seconds of the parts of a run. `saturation`: how the rate at full speed is measured."""

    saturation: Rule
    warm_up: float
    before: float


def saturation(engine: ResidentEngine, scratch: Path, tasks: int, rule: Rule) -> float:
    """The rate at full speed, in lines per second."""
    with directories(scratch) as (output, logs):
        Timetable(time.monotonic(), 1.0, SPOUTS).write(logs)  # only so that the sinks log, which takes time
        running = start_case(engine, Case("", tasks, 0), output, logs, rate=0.0)
        time.sleep(rule.warm_up)
        rate = max(window_rates(running, rule)) / WORDS_PER_LINE
        end_run(running)
        await_closed(logs)
    if not rate:
        raise MillraceError(f"no word was counted in {rule.seconds:g} s: this machine is too busy to measure anything")
    return rate


def sustained_rate(engine: ResidentEngine, scratch: Path, case: Case, highest: float, lengths: Lengths,
                   console: Console) -> float:
    """The highest of some shares of the rate at full speed at which words keep up with the timetable, in lines per second; the
    least of them if they never do. They must keep up twice, because other work on the machine comes and goes."""
    for share in SUSTAINED_SHARES:
        for _ in range(SUSTAINED_RUNS):
            late = lateness_ms(engine, scratch, case, share * highest, lengths)
            console.print(f"at {share * highest:,.0f} lines/s with {case.parallelism['count']} tasks of a bolt and "
                          f"{case.state_mb} MB of state, the worst p99 is {late:,.0f} ms")
            if late > SUSTAINED_MS:
                break
        else:
            return share * highest
    console.print(f"words are later than {SUSTAINED_MS:g} ms even at {SUSTAINED_SHARES[-1]:.0%} of the rate at full speed: "
                  "other work keeps this machine busy, and the figures will show it", style="yellow")
    return SUSTAINED_SHARES[-1] * highest


def lateness_ms(engine: ResidentEngine, scratch: Path, case: Case, rate: float, lengths: Lengths) -> float:
    """The p99 latency in the worst window of a run by a timetable, after its warm-up."""
    with directories(scratch) as (output, logs):
        running = start_case(engine, case, output, logs, rate)
        try:
            await_state(engine, running)
            timetable = Timetable(time.monotonic() + LEAD_SECONDS, rate, SPOUTS)
            timetable.write(logs)
            steady = timetable.start + lengths.warm_up
            sleep_until(steady + lengths.before)
        finally:
            end_in_any_case(running)
        worst = SinkLog.read(logs).worst_ms(steady, steady + lengths.before)
        return math.inf if worst is None else worst


def start_case(engine: ResidentEngine, case: Case, output: Path, logs: Path, rate: float) -> RunningTopology:
    config = {WAVE_INTERVAL.key: INTERVAL_SECONDS, "path": str(output), "log": str(logs), "rate": rate,
              "notes": case.state_mb * MB // max(1, case.noted_tasks), "noted_tasks": case.noted_tasks}
    running = engine.submit(WordsHandedOver, WORDS_TOPOLOGY, config, case.parallelism, resume=False)
    if not running.wait_running():
        raise MillraceError(f"{running.name} did not start: {engine.status()['events'][-3:]}")
    return running


def await_state(engine: ResidentEngine, running: RunningTopology) -> None:
    """Wait until the priming lines are processed, and the state that they have set up is in a committed wave."""
    def waves() -> int:
        of_topology = engine.master.state.topology(WORDS_TOPOLOGY).waves
        return of_topology.committed if of_topology is not None else 0

    if not engine.master.wait_until(lambda: running.observed().total("sink", "executed") >= PRIMED_WORDS, READY_SECONDS):
        raise MillraceError(f"the first lines were not processed within {READY_SECONDS:g} s; {last_events(engine)}")
    begun = engine.master.call(waves)
    if not engine.master.wait_until(lambda: waves() >= begun + 2, READY_SECONDS):  # one may have been in progress
        raise MillraceError(f"no wave was committed within {READY_SECONDS:g} s; {last_events(engine)}")


def last_events(engine: ResidentEngine) -> str:
    return "last events:\n" + "\n".join(event["text"] for event in list(engine.master.events)[-10:])


def end_in_any_case(running: RunningTopology) -> None:
    if running.status != ENDED:
        running.kill(wait=0)
        running.wait(END_SECONDS)


def sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


@contextmanager
def directories(scratch: Path) -> Iterator[tuple[Path, Path]]:
    """Directories for the sinks' files and for the timetable and the logs of one run."""
    base = Path(tempfile.mkdtemp(dir=scratch))
    (base / "logs").mkdir()
    try:
        yield base / "output", base / "logs"
    finally:
        shutil.rmtree(base, ignore_errors=True)

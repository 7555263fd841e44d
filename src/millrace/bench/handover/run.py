"""A run of `bench handover`: the highest sustained rate first, then one topology for each case, moved under a share of it.

The source is open-loop: a timetable says when each line is due, whatever the topology does. In the end the sinks' files, the
counts and the size of the state in the last checkpoint are compared with the lines of the timetable.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace.bench.handover.capacity import (
    LEAD_SECONDS,
    MB,
    PRIMED_WORDS,
    WORDS_TOPOLOGY,
    Lengths,
    await_state,
    directories,
    end_in_any_case,
    last_events,
    saturation,
    sleep_until,
    start_case,
    sustained_rate,
)
from millrace.bench.handover.figures import Case, Periods, parallelism_with, pause_to_rollback, run_figures, runs_table, targets
from millrace.bench.handover.sink_log import SinkLog
from millrace.bench.handover.timetable import Timetable
from millrace.bench.handover.watched import COUNTING, WatchedMove
from millrace.bench.handover.words import SPOUTS
from millrace.bench.other_engines.reporting import Rule
from millrace.bench.other_engines.spark_common import scratch_directory
from millrace.bench.results import keep
from millrace.bench.stored_counts import newest_manifest, store_of
from millrace.bench.topology_runs import end_run
from millrace.config import CHECKPOINTS, EXACTLY_ONCE, HISTORY, NODE_BY
from millrace.control.moves import BY_HANDOVER, BY_ROLLBACK
from millrace.errors import MillraceError
from millrace.runtime.checkpoints.store import CheckpointStore
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology
from millrace.state.task_state import stored_entries
from millrace.workloads.audit import AuditResult, audit, true_counts
from millrace.workloads.notes import NOTE_BYTES

MASTER, SLOTS = "local-cluster[2,3,700]", 4
TASKS, STATE_MB = (1, 16), (0, 1, 10, 100)
QUICK_TASKS, QUICK_STATE_MB = (1, 4), (0, 1)
GROUPS = 8
GROUPS_STATE_MB, QUICK_GROUPS_STATE_MB = 100, 1  # of the task whose key groups move
SHARE, QUICK_SHARE = 0.8, 0.2  # of the highest rate
DRAIN_SECONDS = 300.0  # until everything that was late is processed
SETTLE_SECONDS = 1.0  # after the last move: words that it has delayed arrive


def lengths_for(seconds: float, quick: bool) -> Lengths:
    return Lengths(Rule(1.0, 1.0, 1), 1.0, 1.0) if quick else Lengths(Rule(5.0, 5.0, 2), 5.0, seconds)


def run_handover(seconds: float, tasks: Sequence[int], state_mb: Sequence[int], live: bool,
                 quick: bool = False) -> dict[str, Any]:
    """Returns the object of `bench handover --json`.

    `saturation`: the highest rate in lines/s that the topology sustains with the largest state, by the tasks of a bolt; runs
    have the `share` of it.
    `runs`: one for each number of `tasks` that move in one plan, each size of their state (`state_mb`, of all of them together;
    0: stateless tasks move) and each strategy. `lost`, `repeated`: words in the sinks' files, compared with the timetable;
    `replayed`: words that came to the sinks again. `longest_gap_ms`, `usual_gap_ms`: the longest time without a word at the
    sinks, during the move and before it. `pause_ms`: see `WatchedMove`. `throughput_ratio`: words per second at the sinks,
    during the move to before. `p99_before_ms`, `p99_during_ms`: from the time that a line is due to its words' arrival, in the
    worst window of 250 ms. During the move means from its request until a second after its end.
    `pause_to_rollback`: the pause of one task with the largest state, as a share of that of the topology in a roll-back.
    In the last run, key groups of a counting task with state move. Its `staying_groups` has gaps and latencies of the words in
    the key groups of that task that stay.
    `timelines`: words and latencies in windows of 250 ms, by run. `failed`: the runs without figures, with the reason.
    """
    _check(tasks, state_mb)
    console, began = Console(stderr=not live), time.monotonic()
    lengths, share = lengths_for(seconds, quick), QUICK_SHARE if quick else SHARE
    cases = [Case(strategy, moved, size) for moved in tasks for size in state_mb for strategy in (BY_HANDOVER, BY_ROLLBACK)]
    cases.append(Case(BY_HANDOVER, 0, QUICK_GROUPS_STATE_MB if quick else GROUPS_STATE_MB, GROUPS))
    result: dict[str, Any] = {"guarantee": EXACTLY_ONCE, "master": MASTER, "slots": SLOTS, "share": share, "saturation": {},
                              "seconds_before": lengths.before, "runs": [], "timelines": [], "failed": {}}
    console.print(f"{len(cases)} runs on Spark {MASTER}, {share:.0%} of the highest rate; nothing else should run on this "
                  "machine.", markup=False)
    with scratch_directory() as scratch, _engine(scratch) as engine:
        for of_a_bolt, largest in sorted(_largest(cases).items()):
            highest = saturation(engine, scratch, of_a_bolt, lengths.saturation)
            if not quick:
                highest = sustained_rate(engine, scratch, largest, highest, lengths, console)
            result["saturation"][str(of_a_bolt)] = round(highest)
            console.print(f"highest rate with {of_a_bolt} tasks of a bolt: {highest:,.0f} lines/s")
        for number, case in enumerate(cases, 1):
            console.print(f"{number} of {len(cases)}, after {time.monotonic() - began:.0f} s: {case} ...", markup=False)
            _measure_or_note(engine, scratch, case, lengths, result, console)
    result["pause_to_rollback"] = pause_to_rollback(result["runs"])
    result["seconds"] = round(time.monotonic() - began, 1)
    console.print(runs_table(result["runs"]))
    console.print(f"took {result['seconds'] / 60:.1f} minutes; kept in {keep('handover', result, quick)}")
    return result


def _largest(cases: Sequence[Case]) -> dict[int, Case]:
    """The case with the most state, by the tasks of a bolt: all of them get a rate that it sustains."""
    return {parallelism_with(case.tasks): case for case in sorted(cases, key=lambda case: case.state_mb)}


def _check(tasks: Sequence[int], state_mb: Sequence[int]) -> None:
    if wrong := [number for number in tasks if number < 1]:
        raise MillraceError(f"--tasks {wrong[0]}: at least one task must move")
    if wrong := [size for size in state_mb if size < 0]:
        raise MillraceError(f"--state-mb {wrong[0]}: a size is 0, for stateless tasks, or more")


def _engine(scratch: Path) -> ResidentEngine:
    settings = {NODE_BY.key: "executor", HISTORY.key: "none", CHECKPOINTS.key: str(scratch / "checkpoints")}
    return ResidentEngine(MASTER, SLOTS, name=f"handover-{os.getpid()}", settings=settings)


def faulty_runs(result: Mapping[str, Any]) -> str:
    """Runs without figures and runs that lost or repeated words; empty if there are none."""
    wrong = [f"{run['strategy']} of {run['moved_tasks']} tasks with {run['state_mb']} MB: {run['lost']} lost, "
             f"{run['repeated']} repeated" for run in result["runs"] if run["lost"] or run["repeated"]]
    return "; ".join([*wrong, *(f"{name}: {error}" for name, error in result["failed"].items())])


# -- one run -----------------------------------------------------------------------------------------------------------


def _measure_or_note(engine: ResidentEngine, scratch: Path, case: Case, lengths: Lengths, result: dict[str, Any],
                     console: Console) -> None:
    """Measure a case; an error costs only this one."""
    rate = result["share"] * result["saturation"][str(parallelism_with(case.tasks))]
    try:
        figures, timeline = measure(engine, scratch, case, rate, lengths)
    except MillraceError as error:
        result["failed"][str(case)] = str(error)
        console.print(f"{case} failed: {error}", style="red", markup=False)
        return
    result["runs"].append(figures)
    result["timelines"].append(timeline)
    console.print(f"pause {figures['pause_ms']:,g} ms, longest gap {figures['longest_gap_ms']:,} ms, usually "
                  f"{figures['usual_gap_ms']:,} ms; {figures['lost']} lost, {figures['repeated']} repeated")


def measure(engine: ResidentEngine, scratch: Path, case: Case, rate: float,
            lengths: Lengths) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The figures of a case and its timeline."""
    with directories(scratch) as (output, logs):
        running = start_case(engine, case, output, logs, rate)
        try:
            owners = engine.master.call(lambda: engine.master.state.topology(WORDS_TOPOLOGY).key_groups[COUNTING])
            timetable, periods, move = _move_under_load(engine, running, case, logs, rate, lengths)
            _finish(engine, running, timetable)
        finally:
            end_in_any_case(running)
        log, audited = SinkLog.read(logs), audit(output, timetable.positions())
        _check_output(audited, log)
        _check_state(store_of(engine.master.settings), timetable, case)
        return (run_figures(case, periods, log, audited, PRIMED_WORDS, move, owners),
                log.timeline(periods.steady, periods.settled, periods.began))


def _move_under_load(engine: ResidentEngine, running: RunningTopology, case: Case, logs: Path, rate: float,
                     lengths: Lengths) -> tuple[Timetable, Periods, WatchedMove]:
    """Let the lines come by a timetable and move the tasks. Returns the timetable with its end."""
    await_state(engine, running)
    timetable = Timetable(time.monotonic() + LEAD_SECONDS, rate, SPOUTS)
    timetable.write(logs)
    steady = timetable.start + lengths.warm_up
    sleep_until(steady + lengths.before)
    state = engine.master.state
    topology = state.topology(WORDS_TOPOLOGY)
    places = engine.master.call(lambda: {task: place.slot for task, place in topology.places.items()})
    move = WatchedMove(engine.master, WORDS_TOPOLOGY, targets(places, case.moved(), list(state.workers)), case.strategy,
                       owners=case.moved_groups(topology.key_groups[COUNTING]))
    move.run()
    settled = move.ended + SETTLE_SECONDS
    sleep_until(settled)
    timetable = timetable.ending(time.monotonic() + LEAD_SECONDS)
    timetable.write(logs)
    return timetable, Periods(steady, move.began, settled), move


def _finish(engine: ResidentEngine, running: RunningTopology, timetable: Timetable) -> None:
    """Wait until the spouts have sent every line, and everything is processed and committed."""
    sent = timetable.positions()

    def all_sent() -> bool:
        positions = engine.master.state.topology(WORDS_TOPOLOGY).positions
        return {task.index: position for task, position in positions.items() if task.component == "lines"} == sent

    if not engine.master.wait_until(all_sent, DRAIN_SECONDS):
        raise MillraceError(f"not all lines were sent within {DRAIN_SECONDS:g} s after the end of the timetable; "
                            f"{last_events(engine)}")
    end_run(running)
    if running.uncommitted:
        raise MillraceError(f"not everything is committed: {running.uncommitted}")


# -- the truth ---------------------------------------------------------------------------------------------------------


def _check_output(audited: AuditResult, log: SinkLog) -> None:
    """Refuse output that no line of the timetable explains, and logs that do not cover the output."""
    if audited.wrong or audited.torn_bytes:
        raise MillraceError(f"the sinks' files have {audited.wrong} wrong records and {audited.torn_bytes} bytes of torn ones")
    least = audited.tuples_in - audited.lost - PRIMED_WORDS
    if log.words < least:
        raise MillraceError(f"the sinks' logs have {log.words:,} words, fewer than the {least:,} in their files")


def _check_state(store: CheckpointStore, timetable: Timetable, case: Case) -> None:
    """Compare the counts and the size of the notes in the last checkpoint with the timetable."""
    counts, notes = stored_state(store, WORDS_TOPOLOGY)
    truth = true_counts(timetable.positions())
    wrong = sum(counts[word] != truth[word] for word in counts.keys() | truth.keys())
    if wrong:
        raise MillraceError(f"{wrong} of {len(truth)} counts in the last checkpoint differ from the truth")
    tasks = max(1, case.noted_tasks)
    declared = case.state_mb * MB // tasks // NOTE_BYTES * tasks * NOTE_BYTES
    if notes != declared:
        raise MillraceError(f"the last checkpoint has {notes:,} bytes of notes instead of {declared:,}")


def stored_state(store: CheckpointStore, topology: str) -> tuple[Counter[str], int]:
    """The counts in the newest checkpoint, and the bytes of the notes."""
    checkpoints, counts, notes = Checkpoints(store, topology), Counter[str](), 0
    for group, chain in newest_manifest(store, topology).chains("count").items():
        entries = stored_entries(group, checkpoints.read_chain(chain), "count")
        counts.update(entries.get("counts", ({}, {}))[0])
        notes += sum(len(note) for note in entries.get("notes", ({}, {}))[0].values())
    return counts, notes

"""One run of `bench elastic`: a topology under a load, its numbers of tasks as they change, and the truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millrace.bench.elastic.figures import HandChange, LoopDecision, Par, SeenPar, Times, change_spans
from millrace.bench.elastic.loop_access import LoopGoal, loop_decisions
from millrace.bench.elastic.measured_load import LoadTimetable, MeasuredElasticLoad, MeasuredLoad
from millrace.bench.handover.capacity import directories, end_in_any_case, last_events, sleep_until
from millrace.bench.migration.arrivals import LoggedArrivals
from millrace.bench.topology_runs import end_run
from millrace.config import WAVE_INTERVAL
from millrace.control.migrations import COMPLETED
from millrace.errors import MillraceError
from millrace.model.plan import fewest_group_moves
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology
from millrace.workloads.elastic import LoadAudit, audit_load

ELASTIC_TOPOLOGY = "elastic"
LEAD_SECONDS = 2.0  # until the first tuple is due: all tasks run by then
START_SECONDS = 60.0
LOOK_SECONDS = 0.1
SCALE_SECONDS = 120.0
DRAIN_SECONDS = 300.0  # until everything that was late is processed
INTERVAL_SECONDS = 1.0  # of waves


@dataclass(frozen=True)
class ElasticRun:
    """A run that has ended. `seen`: the numbers of tasks, each with the time since when it had them. `spans`: the times in
    which they changed, as the engine has recorded them, and shortly after."""

    timetable: LoadTimetable
    log: LoggedArrivals
    audited: LoadAudit
    seen: Sequence[SeenPar]
    decisions: Sequence[LoopDecision] = ()
    changes: Sequence[HandChange] = ()
    spans: Sequence[Times] = ()

    @property
    def lost(self) -> int:
        return self.audited.rows.lost

    @property
    def repeated(self) -> int:
        return self.audited.rows.repeated


def run_load(engine: ResidentEngine, scratch: Path, load: MeasuredLoad, par: Par, goal: LoopGoal | None = None,
             changes: Sequence[tuple[float, Par]] = ()) -> ElasticRun:
    """Run a topology under the load, from these numbers of tasks on. `goal`: of the elastic loop, which changes them.
    `changes`: they are changed by hand, each so many seconds after the first tuple is due."""
    with directories(scratch) as (output, logs):
        begin, time_of_day = time.monotonic() + LEAD_SECONDS, time.time() + LEAD_SECONDS
        config = {**load.config, WAVE_INTERVAL.key: INTERVAL_SECONDS, "begin": time_of_day, "path": str(output),
                  "log": str(logs)}
        running = engine.submit(MeasuredElasticLoad, ELASTIC_TOPOLOGY, config, dict(par), resume=False)
        timetable, made, decided = LoadTimetable(load, begin), [], []
        try:
            if not running.wait_running(START_SECONDS):
                raise MillraceError(f"the topology did not start within {START_SECONDS:g} s; {last_events(engine)}")
            watch = ParWatch(engine)
            watch.look()
            if goal is not None:
                goal.begin(running)
            for at, wanted in changes:
                watch.until(begin + at)
                made.append(change_by_hand(engine, running, wanted))
            watch.until(timetable.end)
            if goal is not None:
                decided = loop_decisions(goal.end(running), begin - time_of_day, watch.seen[0].par)
            _finish(engine, running, load)
            spans = change_spans(running.migrations(), begin - time_of_day)
        finally:
            end_in_any_case(running)
        log = LoggedArrivals.read(logs, timetable)
        audited = audit_load(output, {0: load.tuples}, load.pattern, load.keys)
    _check(audited, log)
    return ElasticRun(timetable, log, audited, watch.seen, decided, made, spans)


@dataclass
class ParWatch:
    """Looks at the numbers of tasks of the bolts again and again. `seen`: each with the time when it was first seen."""

    engine: ResidentEngine
    clock: Callable[[], float] = time.monotonic
    seen: list[SeenPar] = field(default_factory=list)

    def until(self, at: float) -> None:
        while True:
            self.look()
            if (left := at - self.clock()) <= 0:
                return
            sleep_until(self.clock() + min(left, LOOK_SECONDS))

    def look(self) -> None:
        par = par_of(self.engine)
        if not self.seen or self.seen[-1].par != par:
            self.seen.append(SeenPar(self.clock(), par))


def par_of(engine: ResidentEngine) -> dict[str, int]:
    """The numbers of tasks of the bolts."""
    state = engine.master.state
    par: dict[str, int] = engine.master.call(lambda: {component.name: component.par for component in
                                                      state.topology(ELASTIC_TOPOLOGY).graph.components
                                                      if component.kind == "bolt"})
    return par


def change_by_hand(engine: ResidentEngine, running: RunningTopology, par: Par) -> HandChange:
    """Change the numbers of tasks and wait until that is done."""
    master, before = engine.master, par_of(engine)
    owners: dict[str, tuple[int, ...]] = master.call(lambda: dict(master.state.topology(ELASTIC_TOPOLOGY).key_groups))
    minimum = sum(fewest_group_moves(groups, par[name]) for name, groups in owners.items() if name in par)
    began = time.monotonic()
    record = running.scale(par, SCALE_SECONDS)
    ended = time.monotonic()
    if record is None or record["outcome"] != COMPLETED:
        raise MillraceError(f"the change to {dict(par)} was not completed: {(record or {}).get('reason', 'no record')}; "
                            f"{last_events(engine)}")
    moved = sum(len(move["groups"]) for move in record["moved"])
    return HandChange(before, par, began, ended, moved, minimum)


def _finish(engine: ResidentEngine, running: RunningTopology, load: MeasuredLoad) -> None:
    """Wait until the source has sent everything, and all is processed and committed."""
    def all_sent() -> bool:
        return list(engine.master.state.topology(ELASTIC_TOPOLOGY).positions.values()) == [load.tuples]

    if not engine.master.wait_until(all_sent, DRAIN_SECONDS):
        raise MillraceError(f"not everything was processed within {DRAIN_SECONDS:g} s after the end of the load; "
                            f"{last_events(engine)}")
    end_run(running)
    if running.uncommitted:
        raise MillraceError(f"not everything is committed: {running.uncommitted}")


def _check(audited: LoadAudit, log: LoggedArrivals) -> None:
    """Refuse output that the load does not explain, and a log that does not cover the output."""
    rows = audited.rows
    if rows.wrong or rows.torn_bytes:
        raise MillraceError(f"the sink's files have {rows.wrong} wrong records and {rows.torn_bytes} bytes of torn ones")
    if not (rows.lost or rows.repeated) and (audited.wrong_counts or audited.disordered):
        raise MillraceError(f"every tuple is there once, but {audited.wrong_counts} keys have wrong counts and "
                            f"{audited.disordered} tuples came in the wrong order")
    if log.rows < rows.tuples_in - rows.lost:
        raise MillraceError(f"the sink's log has {log.rows:,} tuples, fewer than the {rows.tuples_in - rows.lost:,} in its "
                            "files")

"""One run of `bench migration`: a topology under the load of a timetable, its migrations, and the comparison with the truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace.bench.handover.capacity import LEAD_SECONDS, MB, directories, end_in_any_case, sleep_until
from millrace.bench.handover.timetable import Timetable
from millrace.bench.migration.arrivals import LoggedArrivals
from millrace.bench.migration.cases import KEYED, REDEPLOYED, Delays, MigrationCase
from millrace.bench.migration.figures import MigrationSpan, RunFigures, migration_figures
from millrace.bench.migration.places import SLOTS, places_after, places_before
from millrace.bench.topology_runs import end_run
from millrace.config import ACKERS, AT_LEAST_ONCE, GUARANTEE, MESSAGE_TIMEOUT, WAVE_INTERVAL
from millrace.control.migrations import COMPLETED
from millrace.control.moves import BY_HANDOVER
from millrace.errors import MillraceError
from millrace.model.graph import TaskId
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology

MEASURED_TOPOLOGY = "measured"
NOTED_TASKS = 8  # counting tasks of the workload with keyed state
START_SECONDS = 60.0
WARM_UP_SECONDS = 2.0
READY_SECONDS = 120.0  # until rows come to the sinks and waves are committed
MIGRATION_SECONDS = 600.0
DRAIN_SECONDS = 300.0  # until everything that was late is processed
REPORT_SECONDS = 10.0  # until the last reports of workers are in the record
SETTLE_SECONDS = 2.0  # after a re-deployment, at least
LOOK_SECONDS = 0.5
Timeline = list[dict[str, Any]]


def measure(engine: ResidentEngine, scratch: Path, case: MigrationCase, delays: Delays,
            redeployments: int) -> tuple[RunFigures, Timeline]:
    """The figures of a case and its timeline. `redeployments`: in the experiments with several."""
    _await_workers(engine)
    delays = delays.of(case)
    with directories(scratch) as (output, logs):
        running = engine.submit(case.workload.topology, MEASURED_TOPOLOGY, topology_config(case, delays, output, logs),
                                resume=False)
        try:
            if not running.wait_running(START_SECONDS):
                raise MillraceError(f"the topology did not start within {START_SECONDS:g} s; {_last_events(engine)}")
            run = MeasuredRun(engine, running, case, delays, logs)
            run.place()
            run.load()
            records, span = run.migrate(redeployments if case.workload.kind == REDEPLOYED else 1)
            run.finish()
        finally:
            end_in_any_case(running)
        log, audited = LoggedArrivals.read(logs, run.timetable), case.workload.truth(output, run.timetable.positions())
        if audited.wrong:
            raise MillraceError(f"the sinks' files have {audited.wrong} rows that the source has never sent")
        figures = migration_figures(case, span, log, audited, [_final(engine, record) for record in records],
                                    run.moved_tasks)
        return figures, log.timeline(span.steady, span.settled, span.began) if log.rows else []


def topology_config(case: MigrationCase, delays: Delays, output: Path, logs: Path) -> dict[str, Any]:
    workload = case.workload
    config = {GUARANTEE.key: case.guarantee, WAVE_INTERVAL.key: delays.wave_interval,
              MESSAGE_TIMEOUT.key: delays.message_timeout, "path": str(output), "log": str(logs), "rate": workload.rate,
              "source_tasks": workload.source_tasks}
    if case.guarantee == AT_LEAST_ONCE:
        config[ACKERS.key] = 1
    if case.state_mb:
        config["notes"] = case.state_mb * MB // NOTED_TASKS
    return config


class MeasuredRun:
    """A running topology of a case."""

    def __init__(self, engine: ResidentEngine, running: RunningTopology, case: MigrationCase, delays: Delays,
                 logs: Path) -> None:
        self._engine, self._running, self._case, self._delays, self._logs = engine, running, case, delays, logs
        self._graph = engine.master.call(lambda: engine.master.state.topology(MEASURED_TOPOLOGY).graph)
        self._slots = sorted(engine.master.state.workers)
        self._places = places_before(self._graph, case.workload)
        self._steady = 0.0
        self.moved_tasks = 0  # by each migration
        self.timetable = Timetable(0.0, case.workload.rate, case.workload.source_tasks, priming=0)

    def place(self) -> None:
        """Bring every task to its first place. No tuple has been sent yet."""
        if self._now_at() != self._by_slot(self._places):
            self._rebalance(self._places, BY_HANDOVER, {})

    def load(self) -> None:
        """Let tuples come by the timetable, until there is a wave to restore and the stream was measured for a while."""
        self.timetable = Timetable(time.monotonic() + LEAD_SECONDS, self.timetable.rate, self.timetable.tasks, priming=0)
        self.timetable.write(self._logs)
        self._await("no row came to the sinks", lambda: self._arrivals().rows > 0)
        if self._graph.waves:
            needed = self._committed() + 2 if self._case.workload.kind == KEYED else 1  # one in progress may lack the notes
            self._await("no wave was committed", lambda: self._committed() >= needed)
        warm = self.timetable.start + WARM_UP_SECONDS + 2 * self._case.workload.path_seconds
        self._steady = max(time.monotonic(), warm)
        sleep_until(self._steady + self._delays.before)

    def migrate(self, times: int) -> tuple[list[dict[str, Any]], MigrationSpan]:
        """Migrate so many times. Returns the records and the times of the run."""
        records: list[dict[str, Any]] = []
        spans: list[tuple[float, float]] = []
        for number in range(times):
            began = time.monotonic()
            after = places_after(self._graph, self._case, self._places, number)
            records.append(self._rebalance(after, self._case.strategy, self._delays.parameters(self._case)))
            spans.append((began, ended := time.monotonic()))
            self.moved_tasks = sum(after[task] != slot for task, slot in self._places.items())
            self._places = after
            if self._case.workload.kind == REDEPLOYED:
                sleep_until(max(began + self._delays.period, ended + SETTLE_SECONDS))
        if self._case.workload.kind != REDEPLOYED:
            await_complete(self._running.migrations, records[0]["id"], self._delays.after + REPORT_SECONDS)
        return records, MigrationSpan(self._steady, tuple(spans), time.monotonic())

    def finish(self) -> None:
        """End the timetable, and wait until everything is processed and committed."""
        self.timetable = self.timetable.ending(time.monotonic() + LEAD_SECONDS)
        self.timetable.write(self._logs)
        sent = self.timetable.positions()
        source = self._case.workload.source
        self._await("not everything was processed", lambda: {
            task.index: position for task, position in self._running.positions().items() if task.component == source} == sent,
            DRAIN_SECONDS)
        end_run(self._running)
        if self._running.uncommitted:
            raise MillraceError(f"not everything is committed: {self._running.uncommitted}")

    def _rebalance(self, places: Mapping[TaskId, int], strategy: str, parameters: Mapping[str, float]) -> dict[str, Any]:
        wanted = self._by_slot(places)
        placement: dict[TaskId | str, int] = dict(wanted.items())
        record = self._running.rebalance(placement, strategy, parameters, MIGRATION_SECONDS)
        if record["outcome"] != COMPLETED:
            raise MillraceError(f"the migration by {strategy} was {record['outcome']}: {record['reason']}")
        now = self._now_at()
        if wrong := [str(task) for task, slot in wanted.items() if now.get(task) != slot]:
            raise MillraceError(f"{', '.join(wrong)} did not arrive by {strategy}; {_last_events(self._engine)}")
        return record

    def _by_slot(self, places: Mapping[TaskId, int]) -> dict[TaskId, int]:
        """Places by the slots of this engine."""
        return {task: self._slots[worker] for task, worker in places.items()}

    def _now_at(self) -> dict[TaskId, int]:
        topology = self._engine.master.state.topology(MEASURED_TOPOLOGY)
        places: dict[TaskId, int] = self._engine.master.call(
            lambda: {task: place.slot for task, place in topology.places.items()})
        return places

    def _committed(self) -> int:
        waves = self._engine.master.state.topology(MEASURED_TOPOLOGY).waves
        assert waves is not None
        return int(waves.committed)

    def _arrivals(self) -> LoggedArrivals:
        return LoggedArrivals.read(self._logs, self.timetable)

    def _await(self, failure: str, condition: Any, seconds: float = READY_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise MillraceError(f"{failure} within {seconds:g} s; {_last_events(self._engine)}")
            time.sleep(LOOK_SECONDS)


def await_complete(records: Callable[[], Sequence[Mapping[str, Any]]], number: int, seconds: float,
                   clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Wait until the record of a migration is complete, which it is once the rate is stable or was watched for long enough.
    Returns False if it is not after so many seconds."""
    deadline = clock() + seconds
    while not any(record["complete"] for record in records() if record["id"] == number):
        if clock() >= deadline:
            return False
        sleep(LOOK_SECONDS)
    return True


def _await_workers(engine: ResidentEngine) -> None:
    """Wait for the workers that an earlier run has restarted."""
    if not engine.master.wait_until(lambda: len(engine.master.state.workers) >= SLOTS, START_SECONDS):
        raise MillraceError(f"only {len(engine.master.state.workers)} of {SLOTS} workers are there; {_last_events(engine)}")


def _final(engine: ResidentEngine, record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a migration with its final figures: they are final once the topology has ended."""
    found: dict[str, Any] = engine.master.call(lambda: engine.master.scheduling.migrations.one(record["id"]))
    return found


def _last_events(engine: ResidentEngine) -> str:
    return "last events:\n" + "\n".join(event["text"] for event in list(engine.master.events)[-10:])


def faulty(runs: Sequence[RunFigures]) -> list[str]:
    """The runs that lost rows, or repeated some against their guarantee."""
    return [f"{run['strategy']} on {run['workload']}: {run['lost']} lost, {run['repeated']} repeated" for run in runs
            if run["lost"] or (run["repeated"] and run["guarantee"] != AT_LEAST_ONCE)]

"""The cases of `bench migration`: workloads, the strategies that run on each, and the papers' delays by a time scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.api.topology import Topology
from millrace.bench.migration.measured import (
    MeasuredEvents,
    MeasuredEventSink,
    MeasuredLogStream,
    MeasuredNotes,
    MeasuredTopN,
    MeasuredWordCount,
)
from millrace.config import AT_LEAST_ONCE, EXACTLY_ONCE, GUARANTEE
from millrace.control.strategies.catalogue import STRATEGIES, strategy_named
from millrace.errors import BadParameter, UnknownName
from millrace.model.graph import graph_of
from millrace.workloads.audit import AuditResult, audit
from millrace.workloads.dataflows.shapes import (
    DATAFLOWS,
    EVENTS_PER_SECOND,
    LONG_LINEAR,
    SINK_NAME,
    SOURCE_NAME,
    TASK_SECONDS,
    Dataflow,
)
from millrace.workloads.dataflows.topologies import dataflow_topology
from millrace.workloads.dataflows.truth import audit_events
from millrace.workloads.logstream_audit import audit_log_stream

SCALED, REDEPLOYED, KEYED = "scaled", "redeployed", "keyed"  # kinds of experiments
SCALE_IN, SCALE_OUT = "in", "out"
LINES_PER_SECOND = 200.0  # with ten words each, in small chunks to 24 tasks: a part of what two cores can do
REQUESTS_PER_SECOND = 1000.0
TOPN_LINES_PER_SECOND = 200.0  # one task merges all words
NOTES_LINES_PER_SECOND = 200.0

TASKS_MOVED = (1, 2, 4, 8, 16)
STATE_MB = (1, 10, 100)
QUICK_TASKS_MOVED, QUICK_STATE_MB = (4,), (1,)

DEFAULT_SCALE, QUICK_SCALE = 0.1, 0.05
LEAST_SCALE, MOST_SCALE = 0.02, 10.0
LEAST_WINDOW = 3.0  # seconds: in less time, a slow stream has no rate

Truth = Callable[[Path, Mapping[int, int]], AuditResult]


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload. `rate`: tuples per second of the source; `path_seconds`: that a tuple takes from source to sink, at least.
    `truth`: compares the sinks' files, in a directory, with the positions of the source's tasks. `dataflow`, `scaling`: of the
    experiments of the DCR and CCR paper. `most_moved`: tasks that a re-deployment can move, at most."""

    name: str
    kind: str
    topology: type[Topology]
    rate: float
    source: str
    source_tasks: int
    sinks: tuple[str, ...]
    truth: Truth
    path_seconds: float = 0.0
    dataflow: Dataflow | None = None
    scaling: str = ""
    most_moved: int = max(TASKS_MOVED)


def _scaled(dataflow: Dataflow, name: str, scaling: str) -> Workload:
    longest = max(len(trail) for trail in dataflow.trails())
    topology = dataflow_topology(dataflow, source=MeasuredEvents, sink=MeasuredEventSink)
    return Workload(f"{name}-{scaling}", SCALED, topology, EVENTS_PER_SECOND, SOURCE_NAME, 1, (SINK_NAME,),
                    lambda directory, sent: audit_events(directory, dataflow, sent), longest * TASK_SECONDS, dataflow, scaling)


def _log_stream_truth(directory: Path, sent: Mapping[int, int]) -> AuditResult:
    """Both tables together."""
    tables = audit_log_stream(directory, sent).values()
    return AuditResult(sum(of.tuples_in for of in tables), sum(of.tuples_out for of in tables), sum(of.lost for of in tables),
                       sum(of.repeated for of in tables), sum(of.wrong for of in tables), sum(of.beyond for of in tables))


def _words(directory: Path, sent: Mapping[int, int]) -> AuditResult:
    return audit(directory, sent)


def _ranked_words(directory: Path, sent: Mapping[int, int]) -> AuditResult:
    return audit(directory, sent, zipf=1.0)


WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in (
    *(_scaled(dataflow, dataflow.name.lower(), scaling) for scaling in (SCALE_IN, SCALE_OUT) for dataflow in DATAFLOWS),
    *(_scaled(LONG_LINEAR, "linear50", scaling) for scaling in (SCALE_IN, SCALE_OUT)),
    Workload("wordcount", REDEPLOYED, MeasuredWordCount, LINES_PER_SECOND, "lines", 2, ("sink",), _words),
    Workload("topn", REDEPLOYED, MeasuredTopN, TOPN_LINES_PER_SECOND, "read", 1, ("sink",), _ranked_words),
    Workload("logstream", REDEPLOYED, MeasuredLogStream, REQUESTS_PER_SECOND, "lines", 5, ("index_store", "count_store"),
             _log_stream_truth, most_moved=15),
    Workload("notes", KEYED, MeasuredNotes, NOTES_LINES_PER_SECOND, "lines", 1, ("sink",), _words),
)}
OF_KIND: Mapping[str, tuple[str, ...]] = {
    SCALED: ("dsm", "dcr", "ccr", "rollback", "layered", "handover"),
    REDEPLOYED: ("storm", "storm*", "tstorm", "nstorm", "nstorm+", "handover"),
    KEYED: ("layered", "handover"),
}
_RESTARTING, _MOVING = ("dsm", "dcr", "ccr", "handover"), ("storm*", "nstorm", "nstorm+", "handover")
# The workloads of a run of all, with their strategies. All else takes too long for it, and is measured on request.
FULL: Mapping[str, tuple[str, ...]] = {
    "linear-in": OF_KIND[SCALED], "grid-in": OF_KIND[SCALED], "linear50-in": ("dcr", "ccr", "handover"),
    **dict.fromkeys(("diamond-in", "star-in", "traffic-in", "linear-out", "grid-out"), _RESTARTING),
    "wordcount": OF_KIND[REDEPLOYED], "topn": _MOVING, "logstream": _MOVING, "notes": OF_KIND[KEYED]}
QUICK: Mapping[str, tuple[str, ...]] = {"linear-in": _RESTARTING, "wordcount": ("storm*", "nstorm", "handover"),
                                        "notes": ("layered", "handover")}
FULL_MOVES = {"topn": (4,), "logstream": (4,)}  # tasks moved in a run of all, where they are not all of `TASKS_MOVED`
SLOW_MOVES = dict.fromkeys(("storm", "storm*", "tstorm"), (1, 16))  # the same for strategies that take long

# Rows that a strategy has on a workload beside its usual ones, with so many tasks moved. The paper compares N-Storm and
# N-Storm+ with the same cycles. Only the papers' own delays compare a strategy that waits for them with one that waits for the
# start of processes.
SAME_CYCLES, PAPERS_DELAYS = "long cycles", "scale 1"
VARIANTS = {("nstorm+", "wordcount"): (16, SAME_CYCLES), ("nstorm", "wordcount"): (1, PAPERS_DELAYS),
            ("dsm", "grid-out"): (0, PAPERS_DELAYS), ("ccr", "grid-out"): (0, PAPERS_DELAYS)}
CYCLES = ("supervisor_cycle", "worker_cycle")
UNSCALED = ("drain",)  # the time that a task has to process its queue, which a time scale does not shorten


@dataclass(frozen=True, slots=True)
class MigrationCase:
    """One run. `moved_tasks`: in each re-deployment; 0: all tasks but source and sink. `state_mb`: of all counting tasks
    together. `variant`: how it differs from the strategy's usual run; one of `VARIANTS`, or empty."""

    strategy: str
    workload: Workload
    moved_tasks: int = 0
    state_mb: int = 0
    variant: str = ""

    @property
    def guarantee(self) -> str:
        """The papers' own: N-Storm relies on the acker to replay what a stopped task has lost."""
        at_least = self.workload.kind == REDEPLOYED and not STRATEGIES[self.strategy].exactly_once
        return AT_LEAST_ONCE if at_least else EXACTLY_ONCE

    def __str__(self) -> str:
        tasks = f", {self.moved_tasks} task{'s' if self.moved_tasks > 1 else ''}" if self.moved_tasks else ""
        state = f", {self.state_mb} MB" if self.state_mb else ""
        return f"{row_name(self.strategy, self.variant)} on {self.workload.name}{tasks}{state}"


def row_name(strategy: str, variant: str) -> str:
    """The strategy as tables and messages show it."""
    return f"{strategy} ({variant})" if variant else strategy


# -- the papers' delays ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delays:
    """The papers' delays in seconds, multiplied by the time scale."""

    scale: float

    @property
    def wave_interval(self) -> float:
        return 30.0 * self.scale

    @property
    def message_timeout(self) -> float:
        return 30.0 * self.scale

    @property
    def window(self) -> float:
        """For which the rate must stay about the same, to be stable."""
        return max(LEAST_WINDOW, 60.0 * self.scale)

    @property
    def period(self) -> float:
        """Between two re-deployments."""
        return 60.0 * self.scale

    @property
    def before(self) -> float:
        """Measured before the first migration."""
        return min(20.0, max(3.0, 60.0 * self.scale))

    @property
    def after(self) -> float:
        """For which the stream is watched after a migration, at most."""
        return max(20.0, 540.0 * self.scale)

    def of(self, case: MigrationCase) -> Delays:
        """The delays of a case, which may have the papers' own."""
        return Delays(1.0) if case.variant == PAPERS_DELAYS else self

    def parameters(self, case: MigrationCase) -> dict[str, float]:
        """The parameters of a case's strategy, all of which are delays."""
        papers = dict(STRATEGIES[case.strategy].parameters)
        if case.variant == SAME_CYCLES:
            papers.update((name, STRATEGIES["nstorm"].parameters[name]) for name in CYCLES)
        return {name: value if name in UNSCALED else round(value * self.of(case).scale, 6) for name, value in papers.items()}


def check_scale(scale: float) -> Delays:
    """With less than the least scale, tuples would be replayed before they could be processed."""
    if not LEAST_SCALE <= scale <= MOST_SCALE:
        raise BadParameter(f"--time-scale {scale:g}: must be at least {LEAST_SCALE:g} and at most {MOST_SCALE:g}; with 1, "
                           f"delays are the papers' own, and {DEFAULT_SCALE:g} is the default")
    return Delays(scale)


# -- the choice --------------------------------------------------------------------------------------------------------


def chosen_workloads(names: Sequence[str]) -> list[Workload]:
    """The workloads by their names. A dataflow's name without a direction stands for both."""
    found: dict[str, Workload] = {}
    for name in names:
        matching = [workload for workload in WORKLOADS.values()
                    if name in (workload.name, workload.name.removesuffix(f"-{workload.scaling}"))]
        if not matching:
            known = dict.fromkeys(workload.name.removesuffix(f"-{workload.scaling}") for workload in WORKLOADS.values())
            raise UnknownName(f"--workloads {name}: there is no such workload; there are {', '.join(known)}, and a dataflow's "
                              "name may end in -in or -out")
        found.update((workload.name, workload) for workload in matching)
    return list(found.values())


def chosen_cases(strategies: Sequence[str] = (), workloads: Sequence[str] = (), quick: bool = False) -> list[MigrationCase]:
    """The cases to run. Without a choice, those of a run of all. Workloads that are chosen have all strategies of their kind
    and all numbers of moved tasks. If both are chosen, all strategies run on all workloads."""
    for name in strategies:
        strategy_named(name)
    of_all = QUICK if quick else FULL
    chosen = chosen_workloads(workloads) if workloads else [workload for name, workload in WORKLOADS.items() if name in of_all]
    cases = [case for workload in chosen for strategy in _strategies_on(workload, strategies, bool(workloads), quick)
             for case in _cases_of(strategy, workload, bool(workloads), quick)]
    if not cases:
        raise BadParameter(f"--strategies {' '.join(strategies)}: no workload runs with them by default; name some with "
                           "--workloads")
    for case in cases:
        _check_waves(case)
    return cases


def _check_waves(case: MigrationCase) -> None:
    """Raise `BadParameter` if the strategy needs waves, and the workload takes none."""
    graph = graph_of(case.workload.topology, config={GUARANTEE.key: case.guarantee})
    if STRATEGIES[case.strategy].needs_waves and not graph.waves:
        known = ", ".join(name for name, workload in WORKLOADS.items() if case.strategy in OF_KIND[workload.kind])
        raise BadParameter(f"--strategies {case.strategy}: it restores the state of a wave, and {case.workload.name} keeps no "
                           f"state; name other --workloads: {known}")


def _strategies_on(workload: Workload, strategies: Sequence[str], named: bool, quick: bool) -> list[str]:
    of_all = QUICK if quick else FULL
    usual = OF_KIND[workload.kind] if named and not quick else of_all.get(workload.name, OF_KIND[workload.kind])
    return [name for name in dict.fromkeys(strategies or usual) if named or name in usual]


def _cases_of(strategy: str, workload: Workload, named: bool, quick: bool) -> list[MigrationCase]:
    if workload.kind == KEYED:
        return [MigrationCase(strategy, workload, state_mb=size) for size in (QUICK_STATE_MB if quick else STATE_MB)]
    moved = [0] if workload.kind == SCALED else _moved_tasks(strategy, workload, named, quick)
    cases = [MigrationCase(strategy, workload, tasks) for tasks in moved]
    if (strategy, workload.name) in VARIANTS and not quick:
        tasks, variant = VARIANTS[strategy, workload.name]
        cases.append(MigrationCase(strategy, workload, tasks, variant=variant))
    return cases


def _moved_tasks(strategy: str, workload: Workload, named: bool, quick: bool) -> tuple[int, ...]:
    """The numbers of tasks that re-deployments move, one for each run."""
    if quick:
        return QUICK_TASKS_MOVED
    if named:
        return tuple(tasks for tasks in TASKS_MOVED if tasks <= workload.most_moved)
    return FULL_MOVES.get(workload.name, SLOW_MOVES.get(strategy, TASKS_MOVED))

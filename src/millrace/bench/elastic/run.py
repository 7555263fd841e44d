"""`bench elastic`: a step and a sine under the elastic loop, changes of parallelism by hand, and other engines beside them.

The source is open-loop, and tasks wait instead of computing, so that more of them help on any machine. Every run is compared
with its load, tuple by tuple.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace.bench.elastic import figures
from millrace.bench.elastic.driving import ElasticRun, run_load
from millrace.bench.elastic.figures import Par
from millrace.bench.elastic.loop_access import ERSTREAM, PREDICTIVE, SINE_POLICY, ElasticControl, LoopGoal, control_of
from millrace.bench.elastic.measured_load import MeasuredLoad
from millrace.bench.elastic.others import gap_rows, measured_spark
from millrace.bench.elastic.report import elastic_summary
from millrace.bench.other_engines.spark_common import scratch_directory
from millrace.bench.results import keep
from millrace.config import CHECKPOINTS, EXACTLY_ONCE, HISTORY, LOAD_PERIOD, NODE_BY
from millrace.errors import MillraceError
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology

STEP, SINE, RESCALE, OTHERS = "step", "sine", "rescale", "others"
ELASTIC_PARTS = (STEP, SINE, RESCALE, OTHERS)
MASTER, SLOTS = "local-cluster[2,3,700]", 4
T_MAX_MS = 300.0
BASE_RATE, PEAK_RATE = 60.0, 180.0
SINE_RATE, SINE_PEAK = 100.0, 180.0
SERVICE_SECONDS, COUNT_SECONDS = 0.05, 0.025
RESCALE_RATE, RESCALE_SERVICE_SECONDS = 200.0, 0.002
FIRST_PAR: Par = {"service": 2, "count": 2, "sink": 1}
ELASTIC_PAR: Par = {"service": 6, "count": 4, "sink": 1}  # enough for the base rate
CHANGES: tuple[Par, ...] = ({"count": 4}, {"service": 4, "count": 8}, {"service": 3, "count": 3}, {"service": 2, "count": 2})
WATCH_SECONDS, QUICK_SECONDS = 120.0, 8.0
WINDOW_SECONDS = 2.0  # of the load monitor


@dataclass(frozen=True, slots=True)
class ElasticLengths:
    """Seconds of the parts. `after`: watched after the step. `before`: it. `trial`: of a run with fixed parallelism, the first
    quarter of which does not count. `period`: of the sine; `periods`: their number, of which the first does not count.
    `between`: changes by hand."""

    after: float
    before: float
    trial: float
    period: float
    periods: int
    between: float

    @classmethod
    def of(cls, seconds: float) -> ElasticLengths:
        return cls(seconds, seconds / 2, max(5.0, seconds / 5), seconds, 2, max(2.0, seconds / 15))


@dataclass
class Bench:
    """One call of the benchmark, with the result so far."""

    engine: ResidentEngine
    scratch: Path
    lengths: ElasticLengths
    goal: LoopGoal  # under the step
    sine_goal: LoopGoal
    console: Console
    result: dict[str, Any]

    def elastic(self, load: MeasuredLoad, goal: LoopGoal) -> ElasticRun:
        return self._noted(run_load(self.engine, self.scratch, load, ELASTIC_PAR, goal))

    def fixed(self, load: MeasuredLoad, par: Par, changes: Sequence[tuple[float, Par]] = ()) -> ElasticRun:
        return self._noted(run_load(self.engine, self.scratch, load, par, changes=changes))

    def _noted(self, run: ElasticRun) -> ElasticRun:
        self.result["lost"] += run.lost
        self.result["repeated"] += run.repeated
        return run


def run_elastic(seconds: float = WATCH_SECONDS, t_max_ms: float = T_MAX_MS, model: str | None = None,
                parts: Sequence[str] = ELASTIC_PARTS, live: bool = True, quick: bool = False,
                control: Callable[[RunningTopology], ElasticControl] = control_of) -> dict[str, Any]:
    """Returns the object of `bench elastic --json`.

    `steps`: the decisions of the elastic loop around a step to three times the rate; the latency of each is predicted by its
    model and measured at the sink, from the time that a tuple is due: `measured_ms` with the backlog of the time before it,
    `settled_ms` when that is gone, and `error` is the prediction's to the latter. `decisions`: those from the step until the
    mean latency is back under T_max; None if it never was. `oscillations`: changes after the step that go back on an earlier
    one.
    `instances_over_minimum`: the share of instances in the end beyond the fewest that would do, which are found by trial.
    `longest_gap_ms`, `usual_gap_ms`: at the sink during the changes after the step, as the engine has recorded them, and at the
    same rate outside of all changes.
    `p99_ratio_to_fixed`, `throughput_ratio_to_fixed`: under a sine, of the elastic loop to as many instances as it had on
    average. `key_groups_moved`, `key_groups_minimum`: of all changes by hand, which `rescales` has one by one; `gaps` has their
    gap beside those of other engines. `lost`, `repeated`: tuples of all runs. `failed`: parts without figures, with the reason.
    """
    if unknown := sorted(set(parts) - set(ELASTIC_PARTS)):
        raise MillraceError(f"there is no part {', '.join(unknown)} of this benchmark: there are {', '.join(ELASTIC_PARTS)}")
    console, began = Console(stderr=not live), time.monotonic()
    result = _empty(model or ERSTREAM, model or PREDICTIVE, t_max_ms, seconds)
    console.print(f"On Spark {MASTER}; nothing else should run on this machine.", markup=False)
    if set(parts) - {OTHERS}:
        with scratch_directory() as scratch, _engine(scratch) as engine:
            bench = Bench(engine, scratch, ElasticLengths.of(seconds), LoopGoal(result["model"], t_max_ms, control),
                          LoopGoal(result["sine_model"], t_max_ms, control, SINE_POLICY), console, result)
            for name, measure in ((STEP, measure_step), (SINE, measure_sine), (RESCALE, measure_rescales)):
                if name in parts:
                    _measure_or_note(name, partial(measure, bench), result, console)
    if OTHERS in parts:
        console.print("stopping, repartitioning and starting Structured Streaming ...")
        _measure_or_note(OTHERS, lambda: result.update(spark_restart=measured_spark(quick)), result, console)
    result["gaps"] = gap_rows(result["rescales"], result["spark_restart"])
    result["seconds"] = round(time.monotonic() - began, 1)
    for line in elastic_summary(result):
        console.print(line, markup=False, highlight=False)
    console.print(f"took {result['seconds'] / 60:.1f} minutes; kept in {keep('elastic', result, quick)}")
    return result


def _empty(model: str, sine_model: str, t_max_ms: float, seconds: float) -> dict[str, Any]:
    unknown = dict.fromkeys(("decisions", "oscillations", "recovered_s", "share_over_t_max", "longest_gap_ms", "usual_gap_ms",
                             "instances", "fewest_instances", "instances_over_minimum", "sine", "p99_ratio_to_fixed",
                             "throughput_ratio_to_fixed", "key_groups_moved", "key_groups_minimum", "spark_restart"))
    return {"guarantee": EXACTLY_ONCE, "master": MASTER, "slots": SLOTS, "model": model, "sine_model": sine_model,
            "t_max_ms": t_max_ms, "watched_s": seconds, "steps": [], "trials": [], "rescales": [], "lost": 0, "repeated": 0,
            "failed": {}, **unknown}


def _engine(scratch: Path) -> ResidentEngine:
    settings = {NODE_BY.key: "executor", HISTORY.key: "none", CHECKPOINTS.key: str(scratch / "checkpoints"),
                LOAD_PERIOD.key: WINDOW_SECONDS}
    return ResidentEngine(MASTER, SLOTS, name=f"elastic-{os.getpid()}", settings=settings)


def _measure_or_note(name: str, measure: Callable[[], None], result: dict[str, Any], console: Console) -> None:
    """Measure a part; an error costs only this one."""
    try:
        measure()
    except MillraceError as error:
        result["failed"][name] = str(error)
        console.print(f"{name} failed: {error}", style="red", markup=False)


def faulty_parts(result: Mapping[str, Any]) -> str:
    """Tuples that were lost or repeated, and parts without figures; empty if there are none."""
    wrong = [f"{result['lost']} tuples lost, {result['repeated']} repeated"] if result["lost"] or result["repeated"] else []
    return "; ".join([*wrong, *(f"{name}: {error}" for name, error in result["failed"].items())])


# -- parts -------------------------------------------------------------------------------------------------------------


def measure_step(bench: Bench) -> None:
    """Triple the rate, and find the fewest instances that would do at the new rate."""
    lengths, result = bench.lengths, bench.result
    load = MeasuredLoad.stepped(BASE_RATE, PEAK_RATE, lengths.before, lengths.before + lengths.after, SERVICE_SECONDS,
                                COUNT_SECONDS)
    bench.console.print(f"a step from {BASE_RATE:g} to {PEAK_RATE:g} tuples/s, T_max {bench.goal.t_max_ms:g} ms ...")
    run = bench.elastic(load, bench.goal)
    begin, end = run.timetable.begin, run.timetable.end
    step_at = begin + lengths.before
    windows = figures.in_windows(run.log, step_at, end)
    recovered = figures.recovered_at(windows, bench.goal.t_max_ms)
    after = [decision for decision in run.decisions if decision.at >= step_at]
    spans, calm = [span for span in run.spans if span[0] >= step_at], figures.calm_between(step_at, end, run.spans)
    settled = run.seen[-1]
    result.update(
        steps=figures.steps_of(run.decisions, run.log, begin, end),
        decisions=None if recovered is None else sum(decision.at < recovered for decision in after),
        recovered_s=None if recovered is None else round(recovered - step_at, 1),
        share_over_t_max=None if recovered is None else figures.share_over(
            [window for window in windows if window[0] >= recovered], bench.goal.t_max_ms),
        oscillations=figures.oscillations(_pars_since(run, step_at)),
        instances=settled.instances, **figures.gaps(run.log, spans, calm),
        step_timeline=run.log.timeline(begin, end, step_at))
    _find_fewest(bench, settled.par)


def _pars_since(run: ElasticRun, at: float) -> list[Par]:
    """The numbers of tasks at a time, and all after it."""
    before = [seen.par for seen in run.seen if seen.at <= at]
    return [*before[-1:], *(seen.par for seen in run.seen if seen.at > at)]


def _find_fewest(bench: Bench, start: Par) -> None:
    trial = bench.lengths.trial
    load = MeasuredLoad.steady(PEAK_RATE, trial, SERVICE_SECONDS, COUNT_SECONDS)
    result = bench.result

    def meets(par: Par) -> bool:
        run = bench.fixed(load, par)
        latency = figures.mean_ms(run.log, run.timetable.begin + trial / 4, run.timetable.end)
        met = latency is not None and latency <= bench.goal.t_max_ms
        result["trials"].append({"par": dict(par), "measured_ms": latency, "met": met})
        bench.console.print(f"{sum(par.values())} instances, {dict(par)}: {latency} ms", highlight=False)
        return met

    fewest = figures.fewest_by_trial(start, load.busy(PEAK_RATE), meets)
    if fewest is None:
        raise MillraceError(f"no fixed parallelism up to twice that of the elastic loop has {bench.goal.t_max_ms:g} ms on this "
                            "machine: set a larger --t-max-ms")
    result["fewest_instances"] = sum(fewest.values())
    result["instances_over_minimum"] = figures.over_minimum(sum(start.values()), sum(fewest.values()))


def measure_sine(bench: Bench) -> None:
    """A rate that swings, under the elastic loop and with as many instances as that had on average."""
    period, periods = bench.lengths.period, bench.lengths.periods
    load = MeasuredLoad.swinging(SINE_RATE, SINE_PEAK, period, period * periods, SERVICE_SECONDS, COUNT_SECONDS)
    bench.console.print(f"a sine of {SINE_RATE:g} tuples/s on average and {SINE_PEAK:g} at most, {periods} periods, scaled by "
                        f"{bench.sine_goal.model} ...")
    elastic = bench.elastic(load, bench.sine_goal)
    begin, end = elastic.timetable.begin + period, elastic.timetable.end
    average = figures.average_par(elastic.seen, begin, end)
    par = figures.rounded_par(average)
    bench.console.print(f"the same with {par} ...")
    fixed = bench.fixed(load, par)
    rows = {}
    for name, run in (("elastic", elastic), ("fixed", fixed)):
        begin, end = run.timetable.begin + period, run.timetable.end
        rows[name] = {"instances": round(sum((average if name == "elastic" else par).values()), 2),
                      "p99_ms": figures.p99_ms(run.log, begin, end), "mean_ms": figures.mean_ms(run.log, begin, end),
                      "tuples_per_s": round(run.log.rows_between(begin, end) / (end - begin), 1),
                      "changes": len(run.seen) - 1}
    bench.result.update(
        sine=rows, p99_ratio_to_fixed=figures.ratio(rows["elastic"]["p99_ms"], rows["fixed"]["p99_ms"]),
        throughput_ratio_to_fixed=figures.ratio(rows["elastic"]["tuples_per_s"], rows["fixed"]["tuples_per_s"]))


def measure_rescales(bench: Bench) -> None:
    """Changes of parallelism by hand."""
    between, result = bench.lengths.between, bench.result
    warm_up = between
    seconds = warm_up + (len(CHANGES) + 1) * between
    load = MeasuredLoad.steady(RESCALE_RATE, seconds, RESCALE_SERVICE_SECONDS, RESCALE_SERVICE_SECONDS)
    bench.console.print(f"changes by hand at {RESCALE_RATE:g} tuples/s ...")
    run = bench.fixed(load, FIRST_PAR, [(warm_up + number * between, par) for number, par in enumerate(CHANGES, 1)])
    steady = [run.timetable.begin + warm_up, *(change.ended + 1.0 for change in run.changes)]
    result["rescales"] = rows = [figures.change_figures(change, run.log, min(since, change.began - 1.0))
                                 for change, since in zip(run.changes, steady)]
    result["key_groups_moved"] = figures.total(rows, "key_groups_moved")
    result["key_groups_minimum"] = figures.total(rows, "key_groups_minimum")

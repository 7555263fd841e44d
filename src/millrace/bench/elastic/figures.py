"""The figures of `bench elastic`, computed from the sinks' log and from the numbers of tasks that were seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from millrace.bench.migration.arrivals import LoggedArrivals
from millrace.control.scaling import BY_SCALING

Par = Mapping[str, int]
WINDOW_SECONDS = 2.0  # in which the mean latency is compared with T_max
CALM_WINDOWS = 3  # in a row that must be under T_max
SETTLE_SECONDS = 5.0  # after a change, before its latency is measured
AFTER_SECONDS = 1.0  # after a change, in which gaps still count as its own
LEVEL = 1.25  # the backlog is gone from the first window that is at most so many times the median of those after it
Times = tuple[float, float]  # begin and end


@dataclass(frozen=True, slots=True)
class SeenPar:
    """The numbers of tasks from a time on, by the monotonic clock."""

    at: float
    par: Par

    @property
    def instances(self) -> int:
        return sum(self.par.values())


@dataclass(frozen=True, slots=True)
class LoopDecision:
    """A decision of the elastic loop that was carried out. `predicted_ms`: the latency that it expected."""

    at: float  # by the monotonic clock
    before: Par
    par: Par
    predicted_ms: float | None

    def __str__(self) -> str:
        changes = (f"{name} {self.before[name]} → {tasks}" for name, tasks in self.par.items() if tasks != self.before[name])
        return ", ".join(changes) or "nothing"


# -- latency -----------------------------------------------------------------------------------------------------------


def in_windows(log: LoggedArrivals, begin: float, end: float, seconds: float = WINDOW_SECONDS) -> list[tuple[float, float]]:
    """The beginning and the mean latency, in ms, of each whole window. A window in which nothing came has an infinite one."""
    starts = [begin + number * seconds for number in range(int((end - begin) / seconds + 1e-9))]
    means = [log.mean_latency(start, start + seconds) for start in starts]
    return [(start, math.inf if mean is None else mean * 1000) for start, mean in zip(starts, means)]


def recovered_at(windows: Sequence[tuple[float, float]], t_max_ms: float) -> float | None:
    """The beginning of the first windows in a row that are all under T_max; None if there are none."""
    for first in range(len(windows) - CALM_WINDOWS + 1):
        calm = windows[first:first + CALM_WINDOWS]
        if all(ms <= t_max_ms for _, ms in calm):
            return calm[0][0]
    return None


def share_over(windows: Sequence[tuple[float, float]], t_max_ms: float) -> float | None:
    """The share of the windows that are over T_max."""
    return round(sum(ms > t_max_ms for _, ms in windows) / len(windows), 3) if windows else None


def mean_ms(log: LoggedArrivals, begin: float, end: float) -> float | None:
    return _ms(log.mean_latency(begin, end))


def p99_ms(log: LoggedArrivals, begin: float, end: float) -> float | None:
    return _ms(log.latency_percentile(begin, end, 99.0))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


# -- decisions ---------------------------------------------------------------------------------------------------------


def steps_of(decisions: Sequence[LoopDecision], log: LoggedArrivals, begin: float, end: float) -> list[dict[str, Any]]:
    """The `steps` of `bench elastic --json`. The latency of a decision is measured at the sinks until the next one.
    `measured_ms`: from some seconds after it, with the tuples of the backlog that had grown before. `settled_ms`: from the time
    when the backlog is gone, and `error` by how much of it the prediction is off."""
    rows = []
    for decision, until in zip(decisions, [*(after.at for after in decisions[1:]), end]):
        settled = min(decision.at + SETTLE_SECONDS, (decision.at + until) / 2)
        gone = backlog_gone(in_windows(log, settled, until))
        level = None if gone is None else mean_ms(log, gone, until)
        predicted = None if decision.predicted_ms is None else round(decision.predicted_ms, 1)
        rows.append({"at_s": round(decision.at - begin, 1), "decision": str(decision), "predicted_ms": predicted,
                     "measured_ms": mean_ms(log, settled, until), "settled_ms": level,
                     "error": None if predicted is None or not level else round(predicted / level - 1, 3),
                     "instances": sum(decision.par.values())})
    return rows


def backlog_gone(windows: Sequence[tuple[float, float]]) -> float | None:
    """The beginning of the first window whose latency is about that of all windows after it, so that it does not fall any
    more; None if too few of them are left to tell."""
    for first, (start, ms) in enumerate(windows[:len(windows) - CALM_WINDOWS + 1]):
        if ms <= LEVEL * median(latency for _, latency in windows[first:]):
            return start
    return None


def oscillations(pars: Sequence[Par]) -> int:
    """Changes of a component's tasks that go back on the change before, over all components."""
    def turns(name: str) -> int:
        grew = [after[name] > before[name] for before, after in pairwise(pars) if after[name] != before[name]]
        return sum(first != last for first, last in pairwise(grew))

    return sum(turns(name) for name in (pars[0] if pars else ()))


def average_par(seen: Sequence[SeenPar], begin: float, end: float) -> dict[str, float]:
    """The tasks of each component on average over a time."""
    ends = [*(after.at for after in seen[1:]), math.inf]
    weights = [max(0.0, min(until, end) - max(each.at, begin)) for each, until in zip(seen, ends)]
    return {name: sum(weight * each.par[name] for weight, each in zip(weights, seen)) / sum(weights) for name in seen[0].par}


def rounded_par(average: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers of tasks with about the same sum, which is rounded: those with the largest remainders are rounded up. Each
    component has one task at least."""
    par = {name: max(1, math.floor(tasks)) for name, tasks in average.items()}
    missing = round(sum(average.values())) - sum(par.values())
    for name in sorted(average, key=lambda name: par[name] - average[name])[:max(0, missing)]:
        par[name] += 1
    return par


def over_minimum(instances: int, fewest: int) -> float:
    """The share of instances beyond the fewest that would do."""
    return round(instances / fewest - 1, 3)


# -- the fewest instances, by trial ------------------------------------------------------------------------------------


def fewest_by_trial(start: Par, busy: Mapping[str, float], meets: Callable[[Par], bool]) -> dict[str, int] | None:
    """The numbers of tasks with the smallest sum that meet the goal, found by trying those near `start`: with one instance
    fewer each time, or more until it is met. `busy`: tasks of each component that are busy on average; fewer do not keep up, so
    they are not tried. Components that `busy` does not name keep their tasks. None if even twice the tasks do not do."""
    tried: dict[tuple[int, ...], bool] = {}

    def does(par: Par) -> bool:
        key = tuple(par.values())
        if key not in tried:
            tried[key] = meets(par)
        return tried[key]

    best = {name: max(tasks, least_tasks(busy.get(name, 0.0))) for name, tasks in start.items()}
    limit = 2 * sum(best.values())
    while not does(best):
        if sum(best.values()) >= limit:
            return None
        busiest = max(busy, key=lambda name: busy[name] / best[name])
        best = {**best, busiest: best[busiest] + 1}
    while (smaller := next(filter(does, one_fewer(best, busy)), None)) is not None:
        best = smaller
    return best


def one_fewer(par: Par, busy: Mapping[str, float]) -> list[dict[str, int]]:
    """The numbers of tasks with one instance fewer: taken from one component, or two from one and one more for another. The
    most promising come first: those whose busiest component is the least busy."""
    taken = [{**par, name: par[name] - 1} for name in busy]
    swapped = [{**par, name: par[name] - 2, other: par[other] + 1} for name in busy for other in busy if other != name]
    possible = [each for each in [*taken, *swapped] if all(each[name] >= least_tasks(load) for name, load in busy.items())]
    return sorted(possible, key=lambda each: max(load / each[name] for name, load in busy.items()))


def least_tasks(busy: float) -> int:
    """The fewest tasks that keep up."""
    return math.floor(busy) + 1


# -- changes by hand ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandChange:
    """A change of parallelism that was requested: its record, and the least number of key groups that had to move for it."""

    before: Par
    after: Par
    began: float
    ended: float
    groups_moved: int
    groups_minimum: int

    @property
    def text(self) -> str:
        return ", ".join(f"{name} {self.before[name]} → {tasks}" for name, tasks in self.after.items())


def change_figures(change: HandChange, log: LoggedArrivals, steady: float) -> dict[str, Any]:
    """One of the `rescales`. `steady`: since when the stream is as before the change."""
    span = change.began, change.ended + AFTER_SECONDS
    return {"change": change.text, "seconds": round(change.ended - change.began, 2), "key_groups_moved": change.groups_moved,
            "key_groups_minimum": change.groups_minimum, **gaps(log, [span], [(steady, change.began)])}


def change_spans(rows: Iterable[Mapping[str, Any]], offset: float) -> list[Times]:
    """The times of the changes of parallelism among recorded migrations, by the monotonic clock, with those shortly after
    them. `offset`: of that clock to the time of day."""
    return [(row["at"] + offset, row["at"] + offset + row["phases_ms"]["done"] / 1000 + AFTER_SECONDS)
            for row in rows if row["strategy"] == BY_SCALING]


def calm_between(begin: float, end: float, spans: Iterable[Times]) -> list[Times]:
    """The times between these two that are outside of all spans."""
    calm, since = [], begin
    for first, last in sorted(spans):
        if since < min(first, end):
            calm.append((since, min(first, end)))
        since = max(since, last)
    return [*calm, (since, end)] if since < end else calm


def gaps(log: LoggedArrivals, spans: Sequence[Times], calm: Sequence[Times]) -> dict[str, int | None]:
    """The longest gap at the sinks in these times, and the usual one in as much calm time: the median of all calm times that
    are as long, or that of the longest one if none is."""
    if not spans or not calm or not log.rows:
        return {"longest_gap_ms": None, "usual_gap_ms": None}
    longest = max(log.longest_gap(begin, end) for begin, end in spans)
    seconds = min(max(end - begin for begin, end in spans), max(end - begin for begin, end in calm))
    usual = median(gap for begin, end in calm for gap in log.longest_gaps(begin, end, seconds))
    return {"longest_gap_ms": round(longest * 1000), "usual_gap_ms": round(usual * 1000)}


# -- all together ------------------------------------------------------------------------------------------------------


def total(rows: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """The sum of a figure over all rows; None if there are none."""
    return sum(row[name] for row in rows) if rows else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return round(ours / theirs, 3) if ours is not None and theirs else None

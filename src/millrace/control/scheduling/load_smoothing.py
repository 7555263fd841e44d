"""Smoothing of load: estimators turn the loads of single windows into the load that schedulers see.

An estimator holds the history of one topology; a frozen class with its parameters makes a fresh one for each topology. The
estimate is again a `Load` over the newest window's length, so a scheduler need not know whether it sees a sample or an
estimate.

All estimators that smooth follow three rules:

- Queue lengths, lags, latencies, frequent keys and `settling` are those of the newest sample: they describe the present.
- A task that is `settling` was started or moved within the window, so its sample covers only part of it. A task's rates, MHz
  and MB do not depend on its slot: the estimate from before the move still holds and is kept until a full window has been
  seen. A partial sample is used only while there is nothing better, and the first full window replaces it. The same holds
  for the traffic of a pair if either task is settling.
- A task that is not in the newest sample is gone, and so are its pairs; one that returns later starts afresh. A pair of
  present tasks without an entry had no traffic.

The load of a key group does not depend on where tasks are, so it is smoothed even if tasks are settling.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from millrace.errors import BadParameter, MillraceError, UnknownName
from millrace.model.graph import TaskId, resolve
from millrace.model.load import Load, TaskLoad
from millrace.schedulers.inputs.traffic import MOST
from millrace.schedulers.parameters import check_parameters, parameter, with_parameters

TaskPair = tuple[TaskId, TaskId]
LoadRow = tuple[float, ...]  # one value for each of COUNTERS, SECONDS and LEVELS; the first two are rates per second

COUNTERS = ("emitted", "transferred", "executed", "acked", "failed", "offered")
SECONDS = ("cpu_seconds", "busy_seconds", "routing_seconds", "blocked_seconds")
LEVELS = ("cpu_mhz", "memory_mb")
NOTHING = 1e-6  # tuples or seconds per second, MHz or MB: smaller values count as zero


class Estimator(Protocol):
    """Smooths the load of one topology."""

    def add(self, sample: Load) -> Load:
        """Add the load of one more window; returns the new estimate."""


class EstimatorParameters(Protocol):
    """A frozen dataclass whose fields are the parameters of an estimator."""

    def fresh(self) -> Estimator:
        """An estimator without history."""


@dataclass(frozen=True)
class Ewma:
    """Exponentially weighted moving average, as in T-Storm: Y = a·Y + (1 - a)·sample."""

    a: float = parameter(0.5, "Weight of the past; smaller values react faster, and 1 is refused: it would never react.",
                         low=0.0, high=1.0)

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.a >= 1:
            raise BadParameter(f"ewma: a = {self.a!r} would never learn anything new: it must be from 0 to below 1")

    def fresh(self) -> Estimator:
        return _Ewma(self.a)


@dataclass(frozen=True)
class TrimmedMean:
    """Mean of the last samples without the largest and the smallest, as in Sl-Stream: a single spike has no effect."""

    window: int = parameter(5, "Samples that the mean is taken over; with fewer than 3, none is left out.", low=1, high=1000)

    def __post_init__(self) -> None:
        check_parameters(self)

    def fresh(self) -> Estimator:
        return _TrimmedMean(self.window)


@dataclass(frozen=True)
class Last:
    """The newest sample, unsmoothed."""

    def fresh(self) -> Estimator:
        return _Last()


ESTIMATORS = {
    "ewma": "millrace.control.scheduling.load_smoothing:Ewma",
    "trimmed-mean": "millrace.control.scheduling.load_smoothing:TrimmedMean",
    "last": "millrace.control.scheduling.load_smoothing:Last",
}


def estimator_class(name: str) -> type[Any]:
    """The parameter class of that name: a built-in estimator, or a user's `module:Class`."""
    if name not in ESTIMATORS and ":" not in name:
        raise UnknownName(f"there is no estimator named {name!r}; there are {', '.join(ESTIMATORS)}, and your own as "
                          "module:Class")
    cls = resolve(ESTIMATORS.get(name, name))
    if not isinstance(cls, type) or not callable(getattr(cls, "fresh", None)):
        raise UnknownName(f"{name!r} is not a class with a method fresh() that makes an estimator")
    return cls


def make_estimator(name: str, parameters: Mapping[str, Any] | None = None) -> EstimatorParameters:
    """The estimator's parameters, checked; call `fresh()` on them once for each topology."""
    cls = estimator_class(name)
    try:
        made: EstimatorParameters = with_parameters(cls, parameters or {}, f"estimator {name!r}")
    except MillraceError:
        raise
    except Exception as error:  # a user's own __init__
        raise BadParameter(f"estimator {name!r} could not be made: {type(error).__name__}: {error}") from error
    return made


class _Last:
    def add(self, sample: Load) -> Load:
        return sample


class _Ewma:
    def __init__(self, a: float) -> None:
        self.a = a
        self.tasks: dict[TaskId, LoadRow] = {}
        self.pairs: dict[TaskPair, float] = {}
        self.sizes: dict[TaskPair, float] = {}  # bytes per second
        self.groups: dict[str, LoadRow] = {}
        self.known: set[TaskId] = set()  # tasks of which a full window has been seen
        self.newest = Load()

    def add(self, sample: Load) -> Load:
        if not _has_length(sample):
            return self.newest
        settling = set(sample.settling)
        self.known &= sample.tasks.keys()
        pairs = self._pairs(sample, sample.traffic, self.pairs, settling)  # before `known` is updated
        sizes = self._pairs(sample, sample.traffic_bytes, self.sizes, settling)
        self.tasks = {task: self._task(task, _row(sample, measured), settling) for task, measured in sample.tasks.items()}
        self.known |= sample.tasks.keys() - settling
        self.pairs, self.sizes = pairs, sizes
        self.groups = {name: self._groups(name, rates) for name, rates in _group_rates(sample).items()}
        self.newest = _load(sample, self.tasks, self.pairs, self.sizes, self.groups)
        return self.newest

    def _task(self, task: TaskId, new: LoadRow, settling: set[TaskId]) -> LoadRow:
        if task not in self.known:
            return new
        old = self.tasks[task]
        return old if task in settling else tuple(self._mixed(was, now) for was, now in zip(old, new))

    def _groups(self, component: str, new: LoadRow) -> LoadRow:
        old = self.groups.get(component, ())
        return tuple(map(self._mixed, old, new)) if len(old) == len(new) else new

    def _pairs(self, sample: Load, traffic: Mapping[TaskPair, float], past: Mapping[TaskPair, float],
               settling: set[TaskId]) -> dict[TaskPair, float]:
        rates: dict[TaskPair, float] = {}
        silent = [pair for pair in past if pair not in traffic and pair[0] in sample.tasks and pair[1] in sample.tasks]
        for pair in (*traffic, *silent):
            now = _clean(traffic.get(pair, 0.0) / sample.window_seconds)
            was = past.get(pair, 0.0)
            if pair[0] not in self.known or pair[1] not in self.known:
                value = now
            elif pair[0] in settling or pair[1] in settling:
                value = was
            else:
                value = self._mixed(was, now)
            if value > 0:
                rates[pair] = value
        return rates

    def _mixed(self, was: float, now: float) -> float:
        value = self.a * was + (1 - self.a) * now
        return 0.0 if now == 0 and value < NOTHING else value


class _TrimmedMean:
    def __init__(self, window: int) -> None:
        self.past: deque[_Window] = deque(maxlen=window)
        self.newest = Load()

    def add(self, sample: Load) -> Load:
        if not _has_length(sample):
            return self.newest
        rows = {task: _row(sample, measured) for task, measured in sample.tasks.items()}
        traffic, sizes = ({pair: _clean(amount / sample.window_seconds) for pair, amount in sent.items()}
                          for sent in (sample.traffic, sample.traffic_bytes))
        for window in self.past:
            window.whole &= rows.keys()  # a task that is gone and returns starts afresh
        self.past.append(_Window(rows, traffic, sizes, rows.keys() - set(sample.settling), _group_rates(sample)))
        tasks = {task: self._task(task, newest) for task, newest in rows.items()}
        pairs = self._pairs(rows, [window.traffic for window in self.past])
        self.newest = _load(sample, tasks, pairs, self._pairs(rows, [window.sizes for window in self.past]), self._groups())
        return self.newest

    def _task(self, task: TaskId, newest: LoadRow) -> LoadRow:
        rows = [window.tasks[task] for window in self.past if task in window.whole]
        return tuple(map(_trimmed_mean, zip(*rows))) if rows else newest

    def _groups(self) -> dict[str, LoadRow]:
        return {name: tuple(map(_trimmed_mean, zip(*(window.groups[name] for window in self.past if name in window.groups))))
                for name in self.past[-1].groups}

    def _pairs(self, rows: Mapping[TaskId, LoadRow], past: Sequence[Mapping[TaskPair, float]]) -> dict[TaskPair, float]:
        """Mean rate of each pair that had traffic in any window. Windows are selected by bit mask: there are many pairs."""
        newest = past[-1]
        whole = {task: sum(1 << bit for bit, window in enumerate(self.past) if task in window.whole) for task in rows}
        picked: dict[int, list[Mapping[TaskPair, float]]] = {}
        means: dict[TaskPair, float] = {}
        for pair in set().union(*past):
            source, target = pair
            if source not in whole or target not in whole:  # one of the tasks is gone: no mean to take
                means[pair] = newest.get(pair, 0.0)
                continue
            bits = whole[source] & whole[target]
            if bits not in picked:
                picked[bits] = [traffic for bit, traffic in enumerate(past) if bits >> bit & 1]
            rates = [traffic.get(pair, 0.0) for traffic in picked[bits]]
            means[pair] = _trimmed_mean(rates) if rates else newest.get(pair, 0.0)
        return means


@dataclass(slots=True)
class _Window:
    """One sample. `whole`: tasks for which it covers the full window."""

    tasks: Mapping[TaskId, LoadRow]
    traffic: Mapping[TaskPair, float]
    sizes: Mapping[TaskPair, float]
    whole: set[TaskId]
    groups: Mapping[str, LoadRow]


def _trimmed_mean(values: Sequence[float]) -> float:
    if len(values) < 3:
        return sum(values) / len(values)
    return sum(sorted(values)[1:-1]) / (len(values) - 2)


def _has_length(sample: Load) -> bool:
    """False for a window without a length, from which no rate can be computed."""
    return sample.window_seconds > 0 and math.isfinite(sample.window_seconds)


def _clean(value: float) -> float:
    """The value, limited to the range from 0 to `MOST`; NaN and infinity count as 0."""
    return min(max(value, 0.0), MOST) if math.isfinite(value) else 0.0


def _row(sample: Load, measured: TaskLoad) -> LoadRow:
    rates = (_clean(getattr(measured, name) / sample.window_seconds) for name in COUNTERS + SECONDS)
    return (*rates, *(_clean(getattr(measured, name)) for name in LEVELS))


def _group_rates(sample: Load) -> dict[str, LoadRow]:
    """Tuples per second for each key group."""
    seconds = sample.window_seconds
    return {name: tuple(_clean(count / seconds) for count in counts) for name, counts in sample.key_groups.items()}


def _load(sample: Load, tasks: Mapping[TaskId, LoadRow], pairs: Mapping[TaskPair, float], sizes: Mapping[TaskPair, float],
          groups: Mapping[str, LoadRow]) -> Load:
    """The estimate over the newest window's length; all other values are the sample's."""
    seconds = sample.window_seconds
    return Load(
        window_seconds=seconds,
        tasks={task: _task_load(sample.tasks[task], row, seconds) for task, row in tasks.items()},
        traffic={pair: rate * seconds for pair, rate in pairs.items() if rate > 0},
        traffic_bytes={pair: rate * seconds for pair, rate in sizes.items() if rate > 0},
        settling=sample.settling,
        key_groups={name: tuple(rate * seconds for rate in rates) for name, rates in groups.items()},
        heavy_keys=sample.heavy_keys,
    )


def _task_load(measured: TaskLoad, row: LoadRow, seconds: float) -> TaskLoad:
    values: dict[str, Any] = dict(zip(COUNTERS + SECONDS + LEVELS, row))
    for name in SECONDS:
        values[name] *= seconds
    for name in COUNTERS:
        values[name] = round(_clean(values[name] * seconds))  # a count is a whole number
    return replace(measured, **values)

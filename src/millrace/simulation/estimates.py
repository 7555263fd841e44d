"""The estimators of millrace.control.scheduling.load_smoothing over arrays, for thousands of tasks in every window.

The tasks of a simulation do not change, so each value has a fixed place in an array. The results are those of the real
estimators; a test compares them.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from millrace.control.scheduling.load_smoothing import NOTHING, EstimatorParameters, Ewma, Last, TrimmedMean
from millrace.errors import BadParameter
from millrace.schedulers.problem import Flags, Floats, Ints

TaskRows = NDArray[np.float64]  # one row for each measure, one column for each task


class ArrayEstimator(Protocol):
    """Smooths rates and levels of tasks and the rates of edges. `settling`: tasks whose window is not whole."""

    def add(self, tasks: TaskRows, edges: Floats, settling: Flags) -> tuple[TaskRows, Floats]:
        """Add one window; returns the new estimate."""


def array_estimator(parameters: EstimatorParameters, source: Ints, target: Ints) -> ArrayEstimator:
    """The estimator with these parameters. `source`, `target`: the tasks of each edge."""
    match parameters:
        case Ewma(a=a):
            return _ArrayEwma(a, source, target)
        case TrimmedMean(window=window):
            return _ArrayTrimmedMean(window, source, target)
        case Last():
            return _ArrayLast()
    raise BadParameter(f"a simulation has no estimator {type(parameters).__name__}: use ewma, trimmed-mean or last")


class _ArrayLast:
    def add(self, tasks: TaskRows, edges: Floats, settling: Flags) -> tuple[TaskRows, Floats]:
        return tasks, edges


class _ArrayEwma:
    def __init__(self, a: float, source: Ints, target: Ints) -> None:
        self.a, self.source, self.target = a, source, target
        self.known: Flags | None = None  # tasks of which a whole window has been seen
        self.tasks: TaskRows
        self.edges: Floats

    def add(self, tasks: TaskRows, edges: Floats, settling: Flags) -> tuple[TaskRows, Floats]:
        if self.known is None:
            self.known, self.tasks, self.edges = ~settling, tasks, edges
            return tasks, edges
        known, keep = self.known, settling
        mixed = np.where(keep, self.tasks, self._mixed(self.tasks, tasks))
        of_edges = np.where(keep[self.source] | keep[self.target], self.edges, self._mixed(self.edges, edges))
        self.tasks = np.where(known, mixed, tasks)
        self.edges = np.where(known[self.source] & known[self.target], of_edges, edges)
        self.known = known | ~settling
        return self.tasks, self.edges

    def _mixed(self, was: Floats, now: Floats) -> Floats:
        value = self.a * was + (1 - self.a) * now
        return np.where((now == 0) & (value < NOTHING), 0.0, value)


class _ArrayTrimmedMean:
    def __init__(self, window: int, source: Ints, target: Ints) -> None:
        self.source, self.target = source, target
        self.past: deque[tuple[TaskRows, Floats, Flags]] = deque(maxlen=window)

    def add(self, tasks: TaskRows, edges: Floats, settling: Flags) -> tuple[TaskRows, Floats]:
        self.past.append((tasks, edges, ~settling))
        whole = np.stack([each for _, _, each in self.past])
        of_edges = whole[:, self.source] & whole[:, self.target]
        rows = np.stack([each for each, _, _ in self.past])
        means = _trimmed_mean(rows, np.broadcast_to(whole[:, np.newaxis, :], rows.shape), tasks)
        return means, _trimmed_mean(np.stack([each for _, each, _ in self.past]), of_edges, edges)


def _trimmed_mean(values: NDArray[np.float64], counted: NDArray[np.bool_], newest: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the first axis of the values that count, without the largest and the smallest if there are three; the
    newest where none counts."""
    number = counted.sum(axis=0)
    trim = (number >= 3).astype(np.int64)
    rising = np.sort(np.where(counted, values, np.inf), axis=0)
    place = np.arange(len(values)).reshape(-1, *[1] * number.ndim)
    total = np.where((place >= trim) & (place < number - trim), rising, 0.0).sum(axis=0)
    return np.where(number > 0, total / np.maximum(number - 2 * trim, 1), newest)

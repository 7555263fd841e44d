"""Measured traffic between tasks as arrays: rates per second, made finite, and edges of the scheduling problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.model.graph import TaskId
from millrace.model.load import Load
from millrace.schedulers.inputs.measured import pair_columns

TaskNumbers = NDArray[np.int64]
EdgeRates = NDArray[np.float64]

MOST = 1e15  # upper bound of every rate and load: sums stay finite even if a meter is broken


class Edges(NamedTuple):
    """Each pair of communicating tasks once, both directions together; left < right."""

    left: TaskNumbers
    right: TaskNumbers
    tuples: EdgeRates  # per second
    weight: EdgeRates  # per second, in the unit that is minimised


def clean(values: Sequence[float] | Sequence[Sequence[float]] | EdgeRates) -> EdgeRates:
    """The values, made finite and not negative."""
    return np.clip(np.nan_to_num(np.array(values, dtype=np.float64), nan=0.0, posinf=MOST, neginf=0.0), 0.0, MOST)


def edges(numbers: Mapping[str, Mapping[TaskId, int]], load: Mapping[str, Load], by_size: bool) -> Edges:
    """Traffic in both directions between two tasks as one edge; a task that sends to itself has no edge. `numbers`: of
    the tasks, by topology. `by_size`: an edge weighs its bytes, and not its tuples."""
    ends, tuples, size = [np.zeros((2, 0), dtype=np.int64)], [np.zeros(0)], [np.zeros(0)]
    for name, own in numbers.items():
        measured = load.get(name, Load())
        if not (measured.window_seconds > 0 and math.isfinite(measured.window_seconds)):
            continue
        pairs = pair_columns(measured, own, by_size)
        kept = np.flatnonzero((pairs.ends >= 0).all(axis=0) & (pairs.ends[0] != pairs.ends[1]))
        ends.append(np.sort(pairs.ends[:, kept], axis=0))
        tuples.append(pairs.tuples[kept])
        size.append(pairs.bytes[kept])
    (left, right), rates = np.concatenate(ends, axis=1), clean(np.concatenate(tuples))
    return _joined(left, right, rates, in_bytes(rates, np.concatenate(size)) if by_size else rates,
                   sum(map(len, numbers.values())))


def in_bytes(tuples: EdgeRates, size: EdgeRates) -> EdgeRates:
    """Bytes per second of each pair. Tuples of a pair that was not measured count as large as the mean of the others, and as
    one byte if no pair was."""
    known = np.isfinite(size)
    measured = clean(size)
    total = tuples[known].sum()
    mean = measured[known].sum() / total if total > 0 else 1.0
    return np.minimum(np.where(known, measured, tuples * mean), MOST)


def _joined(left: TaskNumbers, right: TaskNumbers, tuples: EdgeRates, weight: EdgeRates, count: int) -> Edges:
    """The edges with both directions added up, without those that weigh nothing."""
    if not len(left):
        return Edges(left, right, tuples, weight)
    unique, inverse = np.unique(left * count + right, return_inverse=True)
    rates, weights = (np.minimum(np.bincount(inverse, weights=values), MOST) for values in (tuples, weight))
    kept = weights > 0
    return Edges(unique[kept] // count, unique[kept] % count, rates[kept], weights[kept])

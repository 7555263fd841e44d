"""Measured loads of tasks and of pairs of tasks, as arrays. A load that consists of arrays hands them over; any other one is
read value by value."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.model.graph import TaskId
from millrace.model.load import Load

ABSENT = -1  # stands for a task that is not in the problem


class TaskColumns(NamedTuple):
    """One value for each task; 0 for one that is not `known`. `loop`: the share of the window for which it kept the loop of its
    worker busy."""

    known: NDArray[np.bool_]
    settling: NDArray[np.bool_]
    cpu: NDArray[np.float64]  # MHz
    memory: NDArray[np.float64]  # MB
    loop: NDArray[np.float64]
    queue: NDArray[np.float64]
    queue_floor: NDArray[np.float64]


class PairColumns(NamedTuple):
    """`ends`: (2, pairs), the numbers of the two tasks, or ABSENT. `bytes`: not a number where it was not measured."""

    ends: NDArray[np.int64]
    tuples: NDArray[np.float64]  # per second
    bytes: NDArray[np.float64]  # per second


class LoadOfColumns(Load):
    """A load that consists of arrays. It is read without making an object for each task."""

    __slots__ = ()

    def task_columns(self, tasks: Sequence[TaskId]) -> TaskColumns:
        """The columns of these tasks of its topology."""
        raise NotImplementedError

    def pair_columns(self, numbers: Mapping[TaskId, int]) -> PairColumns:
        """The columns of all pairs with traffic. `numbers`: of the tasks."""
        raise NotImplementedError


def task_columns(load: Load | None, tasks: Sequence[TaskId]) -> TaskColumns:
    """The measured columns of these tasks of a topology. `load`: None if nothing was measured."""
    if isinstance(load, LoadOfColumns):
        return load.task_columns(tasks)
    measured, seconds = (load.tasks, load.window_seconds) if load is not None else ({}, 0.0)
    settling = set(load.settling) if load is not None else set()
    rows = [(seen.cpu_mhz, seen.memory_mb, seen.loop_seconds / seconds if seconds > 0 else 0.0, seen.queue_length,
             seen.queue_floor) if seen is not None else (0.0, 0.0, 0.0, 0, 0) for seen in map(measured.get, tasks)]
    cpu, memory, loop, queue, floor = np.array(rows, dtype=np.float64).reshape(-1, 5).T
    return TaskColumns(np.array([task in measured for task in tasks], dtype=bool),
                       np.array([task in settling for task in tasks], dtype=bool), cpu, memory, loop, queue, floor)


def pair_columns(load: Load, numbers: Mapping[TaskId, int], by_size: bool) -> PairColumns:
    """The traffic of a topology. `by_size`: bytes are asked for; else no pair has any."""
    if isinstance(load, LoadOfColumns):
        return load.pair_columns(numbers)
    size = map(load.traffic_bytes.get, load.traffic, repeat(math.nan)) if by_size else repeat(math.nan, len(load.traffic))
    return PairColumns(numbers_of(numbers, load.traffic), per_second(load.traffic.values(), load), per_second(size, load))


def numbers_of(own: Mapping[TaskId, int], pairs: Collection[tuple[TaskId, TaskId]]) -> NDArray[np.int64]:
    """(2, pairs): the number of either task of each pair, or ABSENT."""
    ends = [map(own.get, map(itemgetter(end), pairs), repeat(ABSENT)) for end in (0, 1)]
    return np.stack([np.fromiter(end, np.int64, len(pairs)) for end in ends])


def per_second(counts: Iterable[float], load: Load) -> NDArray[np.float64]:
    """Rates per second of what was counted in the window of this load."""
    with np.errstate(over="ignore"):  # readers limit it
        return np.fromiter(counts, np.float64) / load.window_seconds

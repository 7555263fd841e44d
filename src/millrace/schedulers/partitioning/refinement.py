"""Improves a placement of many tasks, many at a time, without a Python loop over tasks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from millrace.schedulers.problem import Flags, Floats, Ints

ROUNDS = 12
WORTH = 3e-4  # share of all traffic: a round that gains less is the last
BLOCK = 5_000_000  # entries of (tasks × places) in one array operation


class Ground(NamedTuple):
    """The conditions of a placement: traffic, needs and limits, and what keeps tasks where they are."""

    graph: csr_array  # (tasks, tasks): traffic, in both directions
    needs: Floats  # (resources, tasks)
    limit: Floats  # (resources, places)
    free: Flags  # tasks that may be moved
    home: Ints  # the place that each task has now, or a negative number
    move_cost: float  # what it must gain to have a task elsewhere
    distance: Floats | None = None  # (places, places): cost of a unit of traffic; None: 1 between any two

    @property
    def places(self) -> int:
        return int(self.limit.shape[1])


class _Wishes(NamedTuple):
    """Tasks that would gain by a move, each with its best place."""

    tasks: Ints
    places: Ints
    gains: Floats


def refined(ground: Ground, places: Ints) -> Ints:
    """The place of each task after rounds of moves. In a round every task looks for the place with room where its traffic costs
    least. Of tasks that communicate, only the one that gains most moves, so that every move gains what it should; and only as
    many move as the places have room for."""
    places = places.copy()
    loads = np.stack([np.bincount(places, weights=need, minlength=ground.places) for need in ground.needs]).astype(np.float64)
    enough = WORTH * float(ground.graph.data.sum()) / 2
    looking = np.flatnonzero(ground.free)
    for _ in range(ROUNDS):
        wishes = _admitted(ground, loads, _apart(ground, _wishes(ground, places, loads, looking)))
        if not len(wishes.tasks):
            break
        for change, at in ((-1.0, places[wishes.tasks]), (1.0, wishes.places)):
            loads += change * np.stack([np.bincount(at, weights=need, minlength=ground.places)
                                        for need in ground.needs[:, wishes.tasks]])
        places[wishes.tasks] = wishes.places
        if wishes.gains.sum() < enough:
            break
        touched = np.zeros(len(places), dtype=bool)
        touched[wishes.tasks] = True
        touched[ground.graph[wishes.tasks].indices] = True
        looking = np.flatnonzero(touched & ground.free)
    return places


def _wishes(ground: Ground, places: Ints, loads: Floats, looking: Ints) -> _Wishes:
    """The best move of each task that is looking, if it gains."""
    count = len(places)
    here = csr_array((np.ones(count), places, np.arange(count + 1)), shape=(count, ground.places))
    homes = np.where(ground.home >= 0, ground.home, places)
    worth = np.where(ground.home >= 0, ground.move_cost, 0.0)
    stay = csr_array((worth, homes, np.arange(count + 1)), shape=(count, ground.places))
    near = (ground.graph[looking] @ here + stay[looking]).tocsr()
    near.sort_indices()
    rows = np.repeat(np.arange(len(looking)), np.diff(near.indptr))
    at, present = near.indices.astype(np.int64), places[looking]
    if ground.distance is None:
        value = near.data
        own = np.zeros(len(looking))
        stays = at == present[rows]
        own[rows[stays]] = value[stays]
    else:
        value, own = _by_distance(ground, near, rows, looking, present)
    gains = value - own[rows]
    scale = max(float(ground.graph.data.max(initial=0.0)), ground.move_cost)
    chosen = np.flatnonzero((gains > 1e-9 * scale) & (at != present[rows]))
    tasks, at, gains = looking[rows[chosen]], at[chosen], gains[chosen]
    fits = (loads[:, at] + ground.needs[:, tasks] <= ground.limit[:, at]).all(axis=0)
    tasks, at, gains = tasks[fits], at[fits], gains[fits]
    first = _first_best(tasks, gains)
    return _Wishes(tasks[first], at[first], gains[first])


def _first_best(tasks: Ints, gains: Floats) -> Ints:
    """The position of the largest gain of each task, and of equal ones the first; those of a task are next to each other."""
    if not len(tasks):
        return np.zeros(0, dtype=np.int64)
    begins = np.diff(tasks, prepend=-1) != 0
    largest = np.maximum.reduceat(gains, np.flatnonzero(begins))
    group = np.cumsum(begins) - 1
    best = np.flatnonzero(gains == largest[group])
    first: Ints = best[np.diff(group[best], prepend=-1) != 0]
    return first


def _by_distance(ground: Ground, near: csr_array, rows: Ints, looking: Ints, present: Ints) -> tuple[Floats, Floats]:
    """The worth of each entry of `near` as a place of its task, and of the task's present place: what it is worth to stay, less
    the cost of the traffic."""
    distance = ground.distance
    assert distance is not None
    value, own = np.empty(len(rows)), np.empty(len(looking))
    step = max(1, BLOCK // ground.places)
    homes = ground.home[looking]
    traffic = near.copy()
    traffic.data = traffic.data - np.where(near.indices == homes[rows], ground.move_cost, 0.0)
    for first in range(0, len(looking), step):
        block = np.arange(first, min(first + step, len(looking)))
        costs = traffic[block] @ distance
        entries = slice(near.indptr[block[0]], near.indptr[block[-1] + 1])
        value[entries] = -costs[rows[entries] - first, near.indices[entries]]
        own[block] = -costs[block - first, present[block]]
    value += np.where(near.indices == homes[rows], ground.move_cost, 0.0)
    own += np.where(homes == present, ground.move_cost, 0.0)
    return value, own


def _apart(ground: Ground, wishes: _Wishes) -> _Wishes:
    """The wishes of tasks that gain more than every task with a wish that they communicate with."""
    rank = np.zeros(len(ground.free), dtype=np.int64)
    rank[wishes.tasks[np.lexsort((-wishes.tasks, wishes.gains))]] = np.arange(1, len(wishes.tasks) + 1)
    around = ground.graph[wishes.tasks]
    highest = np.zeros(len(wishes.tasks), dtype=np.int64)
    some = np.diff(around.indptr) > 0
    if some.any():
        highest[some] = np.maximum.reduceat(rank[around.indices], around.indptr[:-1][some])
    return _chosen(wishes, rank[wishes.tasks] > highest)


def _admitted(ground: Ground, loads: Floats, wishes: _Wishes) -> _Wishes:
    """The wishes that can be fulfilled together: at every place those that gain most, as far as there is room."""
    if not len(wishes.tasks):
        return wishes
    wishes = _chosen(wishes, np.lexsort((wishes.tasks, -wishes.gains, wishes.places)))
    needs = ground.needs[:, wishes.tasks]
    total = np.cumsum(needs, axis=1)
    group = np.cumsum(np.diff(wishes.places, prepend=-1) != 0) - 1
    first = np.flatnonzero(np.diff(wishes.places, prepend=-1) != 0)
    arrived = total - (total - needs)[:, first][:, group]
    fits: Flags = np.all(loads[:, wishes.places] + arrived <= ground.limit[:, wishes.places], axis=0)
    return _chosen(wishes, fits)


def _chosen(wishes: _Wishes, which: Flags | Ints) -> _Wishes:
    return _Wishes(wishes.tasks[which], wishes.places[which], wishes.gains[which])

"""Redistributes the key groups of a component whose number of tasks changes: by load where it was measured, else by count.

By load, few groups move until no task has much more than its fair share, and none moves that could have stayed: no other
naming of the shares keeps more groups where they are. A group that is hotter than the fair share has a task for itself, and the
others share out the rest. Without skew beyond chance the count is the better measure, because it has no noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from millrace.model.plan import rescaled_key_groups
from millrace.schedulers.balance import NOBODY, TOLERANCE, evened_out, filled, group_counts, relabelled
from millrace.schedulers.problem import ROUNDING, Flags, Floats, Ints

SURE = 6.0  # standard errors by which a count must differ to be more than chance; there are many groups


def redistributed(owners: Sequence[int], par: int, counts: Sequence[float] = (), sampled: int = 1) -> tuple[int, ...]:
    """The owner of each key group after a change to `par` tasks. `counts`: tuples of each group; none if they were not
    measured. `sampled`: tuples for each one that was counted."""
    by_count = rescaled_key_groups(owners, par)
    before = np.array(owners, dtype=np.int64)
    loads = without_noise(group_counts(counts, len(owners)) / sampled, before)
    if loads.max() <= loads.min() * ROUNDING:
        return by_count
    return tuple(by_load(loads, before, par).tolist())


def without_noise(counts: Floats, owners: Ints) -> Floats:
    """The counts, where they differ from the expected ones by more than chance, else those: the mean of the owner's groups if
    all of these together differ from the others, or the mean of all groups. A group of a few tuples is mostly noise, and the
    hottest of many such groups would be chosen for its luck; the sum over a task is known better."""
    unusual = np.zeros(len(counts), dtype=bool)
    while True:
        usual = ~unusual
        mean = counts[usual].sum() / max(int(usual.sum()), 1)
        expected = np.full(len(counts), mean)
        for task in np.unique(owners):
            own = usual & (owners == task)
            if own.any() and bool(_differ(counts[own].sum(), mean * own.sum())):
                expected[owners == task] = counts[own].mean()
        found = unusual | _differ(counts, expected)
        if (found == unusual).all():
            return np.where(unusual, counts, expected)
        unusual = found


def _differ(counts: Floats, expected: Floats) -> Flags:
    """True where counts of a sample differ from the expected ones by more than chance, by Poisson's distribution."""
    return np.abs(counts - expected) > SURE * np.sqrt(np.maximum(expected, 1.0))


def by_load(loads: Floats, before: Ints, par: int, tolerance: float = TOLERANCE) -> Ints:
    """The owner of each group among `par` tasks. `before`: the owners until now, of which some may have ended."""
    owners = np.where(before < par, before, NOBODY)
    hot, share = hot_groups(loads, par)
    homes = _homes(loads, owners, hot, par, tolerance)
    for task, group in homes.items():
        others = np.flatnonzero((owners == task) & (np.arange(len(owners)) != group))
        others = others[np.argsort(loads[others], kind="stable")]
        owners[others[np.cumsum(loads[others]) > loads[group] * tolerance / 2]] = NOBODY
    tasks = np.setdiff1d(np.arange(par), list(homes))
    shared = np.flatnonzero(~np.isin(owners, list(homes)))
    own = np.where(owners[shared] == NOBODY, NOBODY, np.searchsorted(tasks, owners[shared]))
    empty = len(tasks) - len(np.unique(own[own != NOBODY]))
    # Many tasks a little above their share would leave little to the few that are added.
    slack = tolerance / 2 * (min(1.0, empty / max(len(tasks) - empty, 1)) if empty else 1.0)
    even = evened_out(loads[shared], filled(loads[shared], own, len(tasks)), len(tasks), share * (1 + slack), every=True)
    owners[shared] = tasks[even]
    return relabelled(np.ones(len(loads)), before, _with_one_each(loads, owners, par), par)


def hot_groups(loads: Floats, par: int) -> tuple[Ints, float]:
    """The groups that are hotter than the fair share of the tasks that have none of them, the hottest first; and that share."""
    order = np.argsort(-loads, kind="stable")
    hot, rest = 0, float(loads.sum())
    while hot < par - 1 and loads[order[hot]] * (par - hot) > rest * ROUNDING:
        rest -= float(loads[order[hot]])
        hot += 1
    return order[:hot], max(rest, 0.0) / (par - hot)


def _homes(loads: Floats, owners: Ints, hot: Iterable[int], par: int, tolerance: float) -> dict[int, int]:
    """The task of each hot group, with which it is noted in `owners`. It stays if it is nearly alone there. Otherwise one move
    to a task without groups is less than the moves of all others."""
    idle = sorted(set(range(par)) - set(owners.tolist()))
    homes: dict[int, int] = {}
    for group in hot:
        owner = int(owners[group])
        stays = owner != NOBODY and owner not in homes
        alone = stays and loads[owners == owner].sum() <= loads[group] * (1 + tolerance / 2)
        if idle and not alone:
            home = idle.pop(0)
        elif stays:
            home = owner
        else:
            home = min((task for task in range(par) if task not in homes), key=lambda task: (owners == task).sum())
        owners[group] = home
        homes[home] = group
    return homes


def _with_one_each(loads: Floats, owners: Ints, par: int) -> Ints:
    """The owners, with a group for every task: the coldest of the task that has most."""
    while (counts := np.bincount(owners, minlength=par)).min() == 0:
        most = np.flatnonzero(owners == counts.argmax())
        owners[most[loads[most].argmin()]] = counts.argmin()
    return owners

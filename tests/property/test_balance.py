"""Invariants of key-group balancing, and a bound on its distance from the optimum."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millrace.schedulers.balance import balance_groups
from millrace.schedulers.problem import Floats, Ints

EPS = 1 + 1e-6
counts = st.one_of(st.floats(0, 1e6), st.integers(0, 50).map(float), st.just(0.0))


@st.composite
def shares(draw: st.DrawFn, groups: int = 40, tasks: int = 8) -> tuple[Floats, Ints, int]:
    """Draw the load of each group, its owner, and the number of tasks."""
    par = draw(st.integers(1, tasks))
    loads = np.array(draw(st.lists(counts, min_size=1, max_size=groups)))
    owners = np.array(draw(st.lists(st.integers(0, par - 1), min_size=len(loads), max_size=len(loads))), dtype=np.int64)
    return loads, owners, par


tolerances = st.sampled_from([0.0, 0.05, 0.1, 0.5])


def largest(loads: Floats, owners: Ints, par: int) -> float:
    return float(np.bincount(owners, weights=loads, minlength=par).max())


@given(shares(), tolerances)
def test_every_group_has_an_owner_and_no_task_gets_more_than_the_most_loaded_had(case: tuple[Floats, Ints, int],
                                                                                 tolerance: float) -> None:
    loads, owners, par = case
    new = balance_groups(loads, owners, par, tolerance)
    assert len(new) == len(owners) and new.min() >= 0 and new.max() < par
    assert largest(loads, new, par) <= largest(loads, owners, par) * EPS


@given(shares(), tolerances)
def test_the_same_again_changes_nothing(case: tuple[Floats, Ints, int], tolerance: float) -> None:
    loads, owners, par = case
    new = balance_groups(loads, owners, par, tolerance)
    assert (balance_groups(loads, new, par, tolerance) == new).all()


@given(shares(), tolerances)
def test_an_even_distribution_is_kept(case: tuple[Floats, Ints, int], tolerance: float) -> None:
    loads, owners, par = case
    if largest(loads, owners, par) <= loads.sum() / par * (1 + tolerance):
        assert balance_groups(loads, owners, par, tolerance) is owners


@given(shares(groups=6, tasks=3), tolerances)
def test_it_is_near_the_best_there_is(case: tuple[Floats, Ints, int], tolerance: float) -> None:
    """The largest load is at most max(1 + tolerance, 4/3 / (1 - tolerance/2)) of the optimum: 4/3 is the bound of largest-first
    assignment, and half the tolerance is conceded to move few groups."""
    loads, owners, par = case
    best = min(largest(loads, np.array(each, dtype=np.int64), par) for each in product(range(par), repeat=len(loads)))
    bound = max(1 + tolerance, 4 / 3 / (1 - tolerance / 2))
    assert largest(loads, balance_groups(loads, owners, par, tolerance), par) <= best * bound * EPS


@given(shares(), tolerances)
def test_groups_without_load_stay_unless_all_is_shared_out_anew(case: tuple[Floats, Ints, int], tolerance: float) -> None:
    loads, owners, par = case
    new = balance_groups(loads, owners, par, tolerance)
    if (new != owners).sum() <= 1:
        assert (loads[new != owners] > 0).all()

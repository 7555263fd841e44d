"""Key groups are assigned evenly, and few move when the parallelism changes: as few as possible by number, and by load so many
that no task gets much more than its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.load import SAMPLED
from millrace.model.plan import initial_key_groups, rescaled_key_groups
from millrace.schedulers.balance import TOLERANCE
from millrace.schedulers.problem import Floats, Ints
from millrace.schedulers.redistribution import by_load, hot_groups, redistributed, without_noise

EPS = 1 + 1e-6
GROUPS = 128
loads = st.one_of(st.floats(0, 1e6), st.integers(0, 50).map(float), st.sampled_from([0.0, 1.0, 1e4]))


def assert_even(owners: Sequence[int], par: int) -> None:
    counts = Counter(owners)
    assert set(counts) == set(range(par)), "every task owns at least one key group, and nobody else does"
    assert max(counts.values()) - min(counts.values()) <= 1, f"shares differ by more than one: {counts}"


@st.composite
def shares(draw: st.DrawFn) -> tuple[int, int]:
    groups = draw(st.integers(1, 300))
    return groups, draw(st.integers(1, groups))


@given(shares())
def test_initial_shares_are_even_and_contiguous(case: tuple[int, int]) -> None:
    owners = initial_key_groups(*case)
    assert len(owners) == case[0]
    assert list(owners) == sorted(owners)
    assert_even(owners, case[1])


@given(shares(), st.lists(st.integers(1, 300), max_size=6))
def test_shares_stay_even_through_any_number_of_changes(case: tuple[int, int], pars: list[int]) -> None:
    groups, par = case
    owners = initial_key_groups(groups, par)
    for wanted in pars:
        new = min(wanted, groups)
        owners, old = rescaled_key_groups(owners, new), owners
        assert_even(owners, new)
        if new >= par:  # growing: only new tasks receive groups
            assert all(now == was or now >= par for was, now in zip(old, owners, strict=True))
        else:  # shrinking: remaining tasks keep their groups
            assert all(now == was or was >= new for was, now in zip(old, owners, strict=True))
        assert rescaled_key_groups(owners, new) == owners, "nothing moves when nothing changed"
        par = new


@st.composite
def small_cases(draw: st.DrawFn) -> tuple[list[int], int]:
    old = draw(st.lists(st.integers(0, 4), min_size=1, max_size=7))
    return old, draw(st.integers(1, min(3, len(old))))


@given(small_cases())
def test_no_even_share_out_moves_fewer(case: tuple[list[int], int]) -> None:
    old, par = case
    least, larger = divmod(len(old), par)
    even = sorted([least + 1] * larger + [least] * (par - larger))
    fewest = min(sum(was != now for was, now in zip(old, new, strict=True))
                 for new in product(range(par), repeat=len(old))
                 if sorted(Counter({task: 0 for task in range(par)} | Counter(new)).values()) == even)
    new = rescaled_key_groups(old, par)
    assert_even(new, par)
    assert sum(was != now for was, now in zip(old, new, strict=True)) == fewest


# ---- by load ----


@st.composite
def cases(draw: st.DrawFn, groups: int = 40, tasks: int = 8) -> tuple[Floats, Ints, int]:
    """Draw the load of each group, its owner until now, and the number of tasks from now on."""
    load = np.array(draw(st.lists(loads, min_size=1, max_size=groups)))
    owners = np.array(draw(st.lists(st.integers(0, tasks - 1), min_size=len(load), max_size=len(load))), dtype=np.int64)
    return load, owners, draw(st.integers(1, min(tasks, len(load))))


@given(cases())
def test_every_group_goes_to_a_task_that_runs_and_every_task_gets_one(case: tuple[Floats, Ints, int]) -> None:
    load, before, par = case
    assert set(by_load(load, before, par).tolist()) == set(range(par))


@given(cases())
def test_no_task_has_more_than_its_share_or_it_is_for_one_hot_group(case: tuple[Floats, Ints, int]) -> None:
    """A task exceeds its share and the tolerance only if it would fall below the share without its coldest group."""
    load, before, par = case
    owners, (hot, share) = by_load(load, before, par), hot_groups(load, par)
    homes = {int(owners[group]): load[group] for group in hot}
    assert len(homes) == len(hot), "no task has two hot groups"
    for task in range(par):
        own = load[owners == task]
        if task in homes:
            assert own.sum() <= homes[task] * (1 + TOLERANCE / 2) * EPS
        else:
            coldest = own[own > 0].min(initial=np.inf)
            assert own.sum() <= share * (1 + TOLERANCE / 2) * EPS or own.sum() - coldest <= share * EPS


@given(cases(groups=12, tasks=4))
def test_no_other_naming_of_the_shares_moves_fewer_groups(case: tuple[Floats, Ints, int]) -> None:
    load, before, par = case
    owners = by_load(load, before, par)
    fewest = min(int((np.array(names)[owners] != before).sum()) for names in permutations(range(par)))
    assert (owners != before).sum() == fewest


@given(st.integers(1, 300).flatmap(lambda groups: st.tuples(st.just(groups), st.integers(1, groups), st.integers(1, groups))),
       st.integers(0, 10**6))
def test_an_even_load_is_shared_out_by_count(case: tuple[int, int, int], load: int) -> None:
    groups, par, wanted = case
    old = initial_key_groups(groups, par)
    assert redistributed(old, wanted, [float(load)] * groups) == rescaled_key_groups(old, wanted)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 8), st.integers(2, 8))
def test_noise_is_not_skew(seed: int, mean: int, par: int, wanted: int) -> None:
    """With the counts of a sample of an even load, as few groups move as by count, and one more at most."""
    random = np.random.default_rng(seed)
    old = initial_key_groups(GROUPS, par)
    new = redistributed(old, wanted, random.poisson(mean, GROUPS) * float(SAMPLED), SAMPLED)
    by_count = rescaled_key_groups(old, wanted)
    moved, fewest = (sum(now != was for was, now in zip(old, owners, strict=True)) for owners in (new, by_count))
    assert set(new) == set(range(wanted)) and moved <= fewest + 1


@pytest.mark.parametrize("counts", [(), (5.0,) * 7, (0.0,) * GROUPS, (float("nan"),) * GROUPS])
def test_without_measurements_they_are_shared_out_by_count(counts: tuple[float, ...]) -> None:
    old = (0,) * 100 + (1,) * 28
    assert redistributed(old, 3, counts) == rescaled_key_groups(old, 3)


def hot_task(cold: float = 100.0) -> tuple[list[int], list[float]]:
    """Owners and loads of 128 groups: task 0 has one hot group, the others have 63 and 64."""
    return [0] + [1] * 63 + [2] * 64, [200 * cold] + [cold] * 127


def test_a_task_with_one_hot_group_stays_alone_when_tasks_are_added() -> None:
    owners, counts = hot_task()
    new = redistributed(owners, 4, counts)
    sizes = [new.count(task) for task in range(4)]
    moved = sum(was != now for was, now in zip(owners, new, strict=True))
    assert sizes[0] == 1 and new[0] == 0 and max(sizes[1:]) - min(sizes[1:]) <= 2
    assert moved == sizes[3], "what moves goes to the new task"


def test_a_task_with_one_hot_group_stays_alone_when_tasks_are_removed() -> None:
    owners, counts = hot_task()
    four = redistributed(owners, 4, counts)
    new = redistributed(four, 3, counts)
    sizes = [new.count(task) for task in range(3)]
    assert sizes[0] == 1 and abs(sizes[1] - sizes[2]) <= 4
    assert all(now == was or was == 3 for was, now in zip(four, new, strict=True)), "only the task that ends gives some away"


def test_a_hot_group_goes_to_the_new_task_alone_rather_than_all_others_of_its_task() -> None:
    owners, counts = list(initial_key_groups(GROUPS, 3)), [20_000.0] + [100.0] * (GROUPS - 1)
    new = redistributed(owners, 4, counts)
    assert [group for group in range(GROUPS) if new[group] != owners[group]] == [0] and new[0] == 3


@pytest.mark.parametrize(("par", "wanted"), [(3, 4), (4, 3), (7, 12), (20, 21), (21, 20), (2, 16), (16, 2)])
@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_new_tasks_get_their_share_of_a_skewed_load(par: int, wanted: int, exponent: float) -> None:
    random = np.random.default_rng(1)
    load = random.permutation(1e6 / np.arange(1, 513) ** exponent)
    before = by_load(load, np.zeros(512, dtype=np.int64), par)
    owners, (hot, share) = by_load(load, before, wanted), hot_groups(load, wanted)
    sums = np.bincount(owners, weights=load, minlength=wanted)
    shares = np.delete(sums, owners[hot]) / share
    assert shares.min() > 0.9 and shares.max() < 1.1


def test_groups_of_few_tuples_count_as_the_mean_of_their_task() -> None:
    """Of tasks with as many tuples in 20 groups as in 80, no group is known by itself."""
    random = np.random.default_rng(7)
    owners = np.array([0] * 20 + [1] * 80)
    counts = random.poisson(np.where(owners == 0, 12.0, 3.0)).astype(np.float64)
    steady = without_noise(counts, owners)
    for task in (0, 1):
        assert np.ptp(steady[owners == task]) == 0
        assert steady[owners == task].sum() == pytest.approx(counts[owners == task].sum())

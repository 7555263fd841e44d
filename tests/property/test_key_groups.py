"""Key groups are assigned evenly, and as few as possible move when the parallelism changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.plan import initial_key_groups, rescaled_key_groups


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

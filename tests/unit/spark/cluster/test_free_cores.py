"""The share of the free cores that feeding may hold."""

from __future__ import annotations

import pytest

from millrace.spark.cluster.free_cores import feeding_share, leaves_none


@pytest.mark.parametrize(("free", "feeders", "share"),
                         [(2, 1, 1), (4, 1, 3), (10, 3, 3), (3, 2, 1), (1, 1, 1), (0, 1, 1), (-1, 2, 1)])
def test_all_but_one_are_shared(free: int, feeders: int, share: int) -> None:
    assert feeding_share(free, feeders) == share


@pytest.mark.parametrize("feeders", [1, 2, 3])
def test_one_is_left_unless_there_is_a_warning(feeders: int) -> None:
    for free in range(1, 20):
        assert (feeders * feeding_share(free, feeders) < free) is not leaves_none(free, feeders)
    assert not leaves_none(0, feeders), "then the query itself waits, and its watch reports that"

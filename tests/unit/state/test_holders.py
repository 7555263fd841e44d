"""Choice of fragment holders, in clusters small enough to check by eye."""

from __future__ import annotations

import pytest

from millrace.errors import BadParameter
from millrace.state.holders import holders, shape


def test_upstream_workers_come_first():
    nodes = {slot: f"n{slot}" for slot in range(6)}
    assert holders(0, [4, 3], [0, 1], nodes, 3) == [4, 3, 1]


def test_ring_neighbours_start_after_the_task():
    nodes = {slot: f"n{slot}" for slot in range(6)}
    assert holders(2, [], [1, 2, 5, 4], nodes, 4) == [5, 4, 1, 0]


def test_another_node_comes_before_another_upstream_worker():
    assert holders(0, [1, 2], [], {0: "a", 1: "b", 2: "b", 3: "c"}, 4) == [1, 3, 2, 3]


def test_never_on_its_own_worker_unless_there_is_no_other():
    assert holders(0, [0], [0], {0: "a", 1: "a"}, 3) == [1, 1, 1]
    assert holders(0, [0], [0], {0: "a"}, 2) == [0, 0]
    assert holders(0, [], [], {}, 2) == []


def test_workers_that_are_gone_hold_nothing():
    assert holders(0, [7, 1], [0, 8], {0: "a", 1: "a", 2: "b"}, 2) == [1, 2]


@pytest.mark.parametrize("workers, expected", [(0, (0, 0)), (1, (0, 0)), (2, (1, 0)), (3, (1, 1)), (4, (2, 1)), (5, (3, 1)),
                                               (6, (3, 2)), (8, (5, 2)), (10, (6, 3)), (11, (7, 3)), (100, (7, 3))])
def test_the_shape_follows_the_number_of_workers(workers, expected):
    assert shape(workers) == expected


def test_the_shape_that_is_asked_for_wins():
    assert shape(2, (7, 3)) == (7, 3)
    with pytest.raises(BadParameter):
        shape(2, (0, 3))

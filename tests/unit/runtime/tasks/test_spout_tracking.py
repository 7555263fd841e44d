"""The size of a spout's chunks follows the time that they take."""

from __future__ import annotations

import pytest

from millrace.runtime.tasks.spout_tracking import FIRST_CHUNK, QUICK_SECONDS, SLOW_SECONDS, ChunkSize


@pytest.mark.parametrize(("most", "adaptive", "limit"), [(1000, True, FIRST_CHUNK), (10, True, 10), (1000, False, 1000)])
def test_the_first_chunk(most: int, adaptive: bool, limit: int) -> None:
    assert ChunkSize(most, adaptive).limit == limit


def test_it_grows_up_to_its_limit_while_chunks_are_quick() -> None:
    size, limits = ChunkSize(200, adaptive=True), []
    for _ in range(3):
        size.finished(QUICK_SECONDS / 2)
        limits.append(size.limit)
    assert limits == [128, 200, 200]


def test_it_stays_while_chunks_are_neither_quick_nor_slow() -> None:
    size = ChunkSize(1000, adaptive=True)
    for seconds in (QUICK_SECONDS, SLOW_SECONDS):
        size.finished(seconds)
    assert size.limit == FIRST_CHUNK


def test_it_shrinks_down_to_one_while_chunks_are_slow() -> None:
    size, limits = ChunkSize(4, adaptive=True), []
    for _ in range(3):
        size.finished(SLOW_SECONDS * 2)
        limits.append(size.limit)
    assert limits == [2, 1, 1]


def test_a_timeout_halves_it() -> None:
    size = ChunkSize(1000, adaptive=True)
    size.halve()
    assert size.limit == FIRST_CHUNK // 2

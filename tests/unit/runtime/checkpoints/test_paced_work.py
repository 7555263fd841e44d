"""The pace of work beside running tasks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from millrace.runtime.checkpoints.paced_work import MOST_SECONDS, RESTS, PacedWork


def paced() -> tuple[PacedWork, list[float], list[float]]:
    """A pace, its clock and its rests."""
    clock, rests = [0.0], list[float]()
    return PacedWork(rests.append, lambda: clock[0]), clock, rests


def test_rests_are_longer_than_turns() -> None:
    pace, clock, rests = paced()
    with pace.turn(1):
        clock[0] += 0.5
    with pace.turn(1):
        clock[0] += 0.25
    assert rests == [0.5 * RESTS, 0.25 * RESTS]


@pytest.mark.parametrize("turns", [1, 10, 100_000])
def test_rests_of_a_long_piece_of_work_are_bounded(turns: int) -> None:
    pace, clock, rests = paced()
    for _ in range(turns):
        with pace.turn(turns):
            clock[0] += 100.0
    assert sum(rests) == pytest.approx(MOST_SECONDS)


def test_one_thread_at_a_time() -> None:
    resting, go_on = Event(), Event()

    def sleep(seconds: float) -> None:
        resting.set()
        assert go_on.wait(20)

    pace, order = PacedWork(sleep), list[str]()

    def work(name: str) -> None:
        with pace.turn(1):
            order.append(name)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(work, "first")
        assert resting.wait(20)
        second = threads.submit(work, "second")
        order.append("nobody")
        go_on.set()
        first.result(20), second.result(20)
    assert order == ["first", "nobody", "second"]


def test_a_turn_that_fails_ends() -> None:
    pace, _, _ = paced()
    with pytest.raises(ValueError), pace.turn(1):
        raise ValueError
    with pace.turn(1):
        pass

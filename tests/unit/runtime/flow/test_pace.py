"""The pace of a task: what may be in flight to it, and how large its calls are."""

from __future__ import annotations

import pytest

from millrace.runtime.flow.pace import BOUNDLESS, FIRST_TUPLES, Pace


def calls(pace: Pace, count: int, per_call: float, per_tuple: float, size: int = BOUNDLESS) -> None:
    """Calls with as many tuples as the pace allows, or with `size` if that is fewer."""
    for _ in range(count):
        tuples = min(pace.per_call, size)
        seconds = per_call + tuples * per_tuple
        pace.called(tuples, seconds)
        pace.took(tuples, seconds)


@pytest.mark.parametrize("per_tuple", [0.001, 0.01, 0.1])
def test_what_is_in_flight_is_worth_the_given_time(per_tuple: float) -> None:
    pace = Pace(1.0)
    calls(pace, 50, 0.0, per_tuple)
    assert pace.in_flight == pytest.approx(1.0 / per_tuple, rel=0.15)
    assert pace.per_call == pytest.approx(0.25 / per_tuple, rel=0.25)


def test_a_tuple_that_takes_longer_than_the_given_time_comes_alone() -> None:
    pace = Pace(0.5)
    calls(pace, 10, 0.0, 3.0)
    assert (pace.in_flight, pace.per_call) == (1, 1)


def test_a_fast_task_is_not_held_back() -> None:
    pace = Pace(0.5)
    calls(pace, 12, 20e-6, 1e-6, size=1000)
    assert pace.per_call >= 1000


def test_it_follows_a_task_that_becomes_slow_and_fast_again() -> None:
    pace = Pace(0.5)
    calls(pace, 100, 0.0, 1e-6, size=1000)
    calls(pace, 20, 0.0, 0.01, size=1000)
    assert 40 <= pace.in_flight <= 60
    calls(pace, 400, 0.0, 1e-6, size=1000)
    assert pace.per_call >= 1000


def test_what_is_in_flight_grows_by_steps() -> None:
    pace = Pace(0.5)
    pace.took(4, 0.0)
    assert pace.in_flight == 2 * FIRST_TUPLES
    pace.took(1000, 0.0)
    assert pace.in_flight == 2000


@pytest.mark.parametrize("per_call", [0.3, 2.0])
def test_calls_with_fixed_costs_do_not_get_smaller_and_smaller(per_call: float) -> None:
    """A request to a server takes as long for a hundred rows as for one: small calls would only take more time in all."""
    pace = Pace(0.5)
    calls(pace, 60, per_call, 0.0001, size=1000)
    assert pace.per_call >= 400


def test_fixed_costs_beside_those_of_each_tuple_take_the_smaller_part() -> None:
    pace = Pace(0.5)
    calls(pace, 60, 1.0, 0.01, size=1000)
    assert 150 <= pace.per_call <= 1000


def test_without_a_limit_anything_may_be_in_flight() -> None:
    pace = Pace(None)
    calls(pace, 10, 1.0, 1.0, size=1000)
    assert pace.in_flight == BOUNDLESS and pace.per_call > 10**9


# -- shares of senders -------------------------------------------------------------------------------------------------

def test_a_sender_may_use_what_the_others_leave() -> None:
    pace = Pace(0.5)
    calls(pace, 50, 0.0, 0.025)
    work = pace.in_flight  # about 20 tuples
    assert pace.share(10, 1, lambda: 0) == (work, 1)
    assert pace.share(10, 1, lambda: work - 5) == (5, 1)
    assert pace.share(10, 1, lambda: work) == (work // 10, 1), "its share in any case"
    assert pace.share(10, 8, lambda: work + 100) == (8, 8), "and a chunk that its receivers need"


def test_ample_shares_stay_as_they_are() -> None:
    def counted() -> int:
        raise AssertionError("tuples in the inbox need not be counted")

    pace = Pace(0.5)
    calls(pace, 50, 0.0, 0.0005)
    assert pace.share(10, 1, counted) == (pace.in_flight // 10, pace.in_flight // 10 // 4)

"""The limits of silence: short for a worker of which nothing is heard, longer and growing for one whose process answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.control.workers import Patience


def test_a_worker_that_does_not_answer_gets_the_heartbeat_timeout() -> None:
    assert Patience(1.5, 60.0).limit(answers=False) == 1.5


def test_one_that_answers_gets_four_times_as_long() -> None:
    assert Patience(1.5, 60.0).limit(answers=True) == 6.0


@pytest.mark.parametrize(("silence", "limit"), [(2.9, 6.0), (3.1, 12.0), (7.0, 24.0), (29.0, 60.0), (1000.0, 60.0)])
def test_the_limit_doubles_until_the_silence_is_no_more_than_half_of_it(silence: float, limit: float) -> None:
    patience = Patience(1.5, 60.0)
    patience.spoke_again(silence)
    assert patience.limit(answers=True) == limit
    assert patience.limit(answers=False) == 1.5


def test_the_heartbeat_timeout_may_be_longer_than_the_maximum() -> None:
    assert Patience(20.0, 10.0).limit(answers=True) == 20.0


seconds = st.floats(0.05, 1000.0)


@given(seconds, seconds, st.lists(seconds))
def test_whatever_happens_the_limit_only_grows_and_stays_bounded(timeout: float, longest: float, silences: list[float]) -> None:
    patience = Patience(timeout, longest)
    before = patience.limit(answers=True)
    for silence in silences:
        patience.spoke_again(silence)
        after = patience.limit(answers=True)
        assert timeout <= before <= after <= max(timeout, longest)
        assert after >= 2 * silence or after == max(timeout, longest)
        before = after
    assert patience.limit(answers=False) == timeout

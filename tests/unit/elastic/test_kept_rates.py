"""Offered rates that are kept for forecasts: in equal steps of time, and long enough for two seasons."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.elastic.kept_rates import STEPS_KEPT, KeptRates
from millrace.elastic.models import PastRates, PredictiveModel
from millrace.errors import BadParameter

DAY = 86_400.0


def test_windows_are_kept_as_they_are_without_a_season_or_with_a_short_one() -> None:
    for season in (0.0, 900.0):
        kept = KeptRates(5.0, season)
        for number in range(400):
            kept.add(5.0, {"a": float(number)})
        assert kept.past == PastRates(5.0, {"a": tuple(map(float, range(40, 400)))})


@given(st.floats(10, 30 * DAY), st.floats(0.1, 5))
def test_two_seasons_are_always_kept(season: float, period: float) -> None:
    kept = KeptRates(period, season)
    assert STEPS_KEPT * kept.past.seconds >= 2 * season * (1 - 1e-9) and season / kept.past.seconds >= 2


def test_a_day_is_kept_in_means_of_a_quarter_of_an_hour() -> None:
    kept = KeptRates(5.0, DAY)
    windows = int(2 * DAY / 5)
    for number in range(windows):
        kept.add(5.0, {"a": 100 + 50 * math.sin(2 * math.pi * number * 5 / DAY)})
    rates = kept.past.rates["a"]
    assert len(rates) == 192 and kept.past.seconds == 900 and kept.past.since == 0
    assert rates[24] == pytest.approx(150, abs=0.1) and rates[:96] == pytest.approx(rates[96:])
    kept.add(5.0, {"a": 100.0})
    assert len(kept.past.rates["a"]) == 192 and kept.past.since == 5


@given(st.lists(st.floats(4.6, 9.0), min_size=20, max_size=150))
def test_steps_follow_the_time_however_long_the_windows_are(lengths: list[float]) -> None:
    kept = KeptRates(5.0)
    for seconds in lengths:
        kept.add(seconds, {"a": 7.0})
    past = kept.past
    rates = past.rates["a"]
    assert abs(len(rates) * 5.0 + past.since - sum(lengths)) <= 5.0 and rates == pytest.approx((7.0,) * len(rates))


def test_a_season_that_cannot_be_seen_is_refused() -> None:
    with pytest.raises(BadParameter, match=r"season = 8 is shorter than two windows of 5 s.* Possible: season=10"):
        KeptRates(5.0, 8.0)


def test_a_peak_of_yesterday_is_expected_today_before_its_step_begins() -> None:
    """600 tuples/s from noon to one; a minute before noon of the third day, within a step of a quarter of an hour."""
    kept, model = KeptRates(60.0, DAY), PredictiveModel(horizon=120.0, season=DAY)
    for minute in range(2 * 1440 + 719):
        kept.add(60.0, {"a": 600.0 if 720 <= minute % 1440 < 780 else 200.0})
    assert kept.past.since == 840.0 and model.peaks(kept.past)["a"] > 500
    assert PredictiveModel(horizon=30.0, season=DAY).peaks(kept.past)["a"] < 300

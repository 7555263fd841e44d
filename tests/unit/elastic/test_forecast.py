"""Forecasts of the offered rate, and the model that is sized for them."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.elastic.allocation import Allocation, Limits
from millrace.elastic.forecast import FEWEST, forecast
from millrace.elastic.models import PastRates, make_model
from millrace.elastic.network import Network, Station
from millrace.errors import MillraceError
from support.examples import examples

SEASON = 24
SINE = [1000 + 500 * math.sin(2 * math.pi * step / SEASON) for step in range(4 * SEASON)]


def test_a_season_that_was_seen_comes_again() -> None:
    seen, to_come = SINE[:3 * SEASON], SINE[3 * SEASON:]
    found = forecast(seen, SEASON, SEASON)
    assert max(abs(value - truth) for value, truth in zip(found, to_come)) < 50


def test_a_trend_goes_on() -> None:
    found = forecast([100.0 + 10 * step for step in range(30)], 3)
    assert 390 < found[0] <= 402 and found[0] < found[1] < found[2]


@pytest.mark.parametrize("values", [[], [5.0], [5.0] * 50, [0.0] * 50, [1.0, 2.0, 3.0]])
def test_of_too_little_the_last_value_is_the_forecast(values: list[float]) -> None:
    assert forecast(values, 2, SEASON) == ((values[-1],) * 2 if values else (0.0, 0.0))


@settings(max_examples=examples(8))
@given(st.lists(st.floats(0, 1e7), min_size=FEWEST, max_size=40), st.integers(0, 12))
def test_a_forecast_is_a_possible_rate(values: list[float], season: int) -> None:
    assert all(math.isfinite(value) and value >= 0 for value in forecast(values, 5, season))


def test_a_missing_library_is_reported_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "statsmodels.tsa.holtwinters", None)
    with pytest.raises(MillraceError, match=r"pip install 'millrace\[forecast\]'"):
        make_model("predictive", {}, Limits(c_max=5))


def test_the_model_is_sized_for_the_peak_to_come() -> None:
    """At the bottom of the sine the peak is half a season, 60 s, ahead."""
    model = make_model("predictive", {"horizon": 30.0, "season": 120.0}, Limits(t_max_ms=20))
    seen = SINE[:3 * SEASON - 5]
    network = Network((Station("a", 1), Station("b", 1, 100.0)), {("a", "b"): 1.0}, {"a": seen[-1]})
    ahead = model.load(network, PastRates(5.0, {"a": tuple(seen)}))
    assert ahead.offered["a"] == pytest.approx(1000, abs=60)  # a quarter of the season later, from 500
    far = make_model("predictive", {"horizon": 60.0, "season": 120.0}, Limits(t_max_ms=20))
    assert far.load(network, PastRates(5.0, {"a": tuple(seen)})).offered["a"] == pytest.approx(1500, abs=60)
    found = model.allocate(ahead, Limits(t_max_ms=20))
    assert isinstance(found, Allocation) and found.par["b"] > ahead.offered["a"] / 100


def test_the_model_is_not_sized_for_less_than_the_present_load() -> None:
    model = make_model("predictive", {"horizon": 5.0}, Limits(c_max=20))
    falling = tuple(1000.0 - 20 * step for step in range(30))
    network = Network((Station("a", 1), Station("b", 1, 100.0)), {("a", "b"): 1.0}, {"a": falling[-1]})
    assert model.load(network, PastRates(5.0, {"a": falling})).offered["a"] == falling[-1]
    assert model.load(network, PastRates(5.0)).offered["a"] == falling[-1]

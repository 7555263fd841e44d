"""Forecasts on a thread of their own: the loop never waits, and gets the newest one that is ready."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from queue import Queue

from millrace.elastic.allocation import Limits
from millrace.elastic.models import PastRates, PredictiveModel, make_model
from millrace.elastic.network import Network, Station
from millrace.master.scheduling.forecasts import Forecasts, PredictiveInBackground

NETWORK = Network((Station("a", 1), Station("b", 1, 100.0)), {("a", "b"): 1.0}, {"a": 250.0})
WAIT_SECONDS = 60.0  # a safety limit


def past(rate: float) -> PastRates:
    return PastRates(5.0, {"a": (rate,)})


class Gated:
    """Doubles the last rate, when the test lets it; a rate below 0 raises."""

    def __init__(self) -> None:
        self.asked, self._go = Queue[float](), threading.Semaphore(0)
        self.threads = set[threading.Thread]()

    def peaks(self, past: PastRates) -> Mapping[str, float]:
        self.threads.add(threading.current_thread())
        self.asked.put(past.rates["a"][-1])
        assert self._go.acquire(timeout=WAIT_SECONDS)
        if past.rates["a"][-1] < 0:
            raise ArithmeticError("no optimum")
        return {"a": 2 * past.rates["a"][-1]}

    def begun(self) -> float:
        """Wait until a forecast has begun; returns the rate that it is of."""
        return self.asked.get(timeout=WAIT_SECONDS)

    def let(self) -> float:
        """Let the next forecast end."""
        rate = self.begun()
        self.go()
        return rate

    def go(self) -> None:
        self._go.release()

    def ended(self) -> None:
        """Wait until all threads have ended, so that everything asked is answered."""
        for thread in self.threads:
            thread.join(WAIT_SECONDS)


def test_windows_that_end_during_a_fit_are_left_out_except_the_newest() -> None:
    gated = Gated()
    forecasts = Forecasts(gated, lambda error: None)
    assert forecasts.after(past(1)) == {} and gated.begun() == 1
    assert [forecasts.after(past(rate)) for rate in (2, 3, 4)] == [{}] * 3, "none is ready, and nobody waits"
    gated.go()
    assert gated.begun() == 4
    assert forecasts.after(PastRates()) == {"a": 2}
    gated.go()
    gated.ended()
    assert forecasts.after(PastRates()) == {"a": 8}
    assert gated.asked.empty(), "without rates there is nothing to forecast"


def test_one_forecast_at_a_time_and_never_on_the_callers_thread() -> None:
    gated = Gated()
    forecasts = Forecasts(gated, lambda error: None)
    for number in range(1, 6):
        forecasts.after(past(number))
        assert gated.let() == number
        gated.ended()
        assert forecasts.after(PastRates()) == {"a": 2 * number}
    assert threading.current_thread() not in gated.threads and len(gated.threads) == 5


def test_a_forecast_that_fails_is_reported_once_and_there_is_none_then() -> None:
    gated, failures = Gated(), list[Exception]()
    forecasts = Forecasts(gated, failures.append)
    for rate, expected in ((1, {"a": 2}), (-1, {}), (-2, {}), (3, {"a": 6}), (-3, {})):
        forecasts.after(past(rate))
        gated.let()
        gated.ended()
        assert forecasts.after(PastRates()) == expected
    assert [str(error) for error in failures] == ["no optimum"] * 2


def test_a_report_that_fails_does_not_end_the_forecasts() -> None:
    def failed(error: Exception) -> None:
        raise RuntimeError("the loop is closed") from error

    gated = Gated()
    forecasts = Forecasts(gated, failed)
    for rate, expected in ((-1, {}), (3, {"a": 6})):
        forecasts.after(past(rate))
        gated.let()
        gated.ended()
        assert forecasts.after(PastRates()) == expected


def test_the_model_uses_the_newest_forecast_that_is_ready() -> None:
    limits = Limits(c_max=20)
    inner = make_model("predictive", {}, limits)
    assert isinstance(inner, PredictiveModel)
    gated = Gated()
    model = PredictiveInBackground(inner, Forecasts(gated, lambda error: None))
    assert model.load(NETWORK, past(400.0)).offered == {"a": 250.0}, "no forecast yet: the present load"
    gated.let()
    gated.ended()
    loaded = model.load(NETWORK, PastRates())
    assert loaded.offered == {"a": 800.0}
    assert model.allocate(loaded, limits) == inner.allocate(loaded, limits)
    assert model.missed(loaded, loaded.present, limits) == inner.missed(loaded, loaded.present, limits) != ""
    assert model.load(NETWORK.under({"a": 900.0}), PastRates()).offered == {"a": 900.0}, "never below the present load"

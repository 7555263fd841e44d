"""Forecasts for the model `predictive`, made on a thread of their own: a fit may take a second, and the master cannot wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

from millrace.elastic.allocation import Allocation, Infeasible, Limits
from millrace.elastic.models import PastRates, PredictiveModel, under_peaks
from millrace.elastic.network import Network

log = logging.getLogger("millrace.master")


class Forecaster(Protocol):
    """The part of `PredictiveModel` that a thread calls."""

    def peaks(self, past: PastRates) -> Mapping[str, float]:
        """The highest rate to come of each spout."""


class Forecasts:
    """Makes one forecast at a time, each of the newest window; windows that end meanwhile are left out. `failed` is called on
    the thread with the first of several errors in a row; there is no forecast then."""

    def __init__(self, forecaster: Forecaster, failed: Callable[[Exception], None]) -> None:
        self._forecaster, self._failed = forecaster, failed
        self._lock = threading.Lock()
        self._newest: Mapping[str, float] = {}
        self._next: PastRates | None = None
        self._works = False
        self._failing = False  # used by the thread only

    def after(self, past: PastRates) -> Mapping[str, float]:
        """The newest forecast that is ready; begins the next one, for these windows."""
        with self._lock:
            if past.rates:
                self._next = past
                if not self._works:
                    self._works = True
                    threading.Thread(target=self._work, daemon=True, name="millrace forecasts").start()
            return self._newest

    def _work(self) -> None:
        while (past := self._taken()) is not None:
            peaks: Mapping[str, float] = {}
            try:
                peaks, self._failing = self._forecaster.peaks(past), False
            except Exception as error:  # the library may raise anything
                log.warning("no forecast", exc_info=error)
                if not self._failing:
                    self._failing = True
                    self._report(error)
            with self._lock:
                self._newest = peaks

    def _report(self, error: Exception) -> None:
        try:
            self._failed(error)
        except Exception:  # the thread must go on: it makes the next forecast
            log.exception("could not report that there is no forecast")

    def _taken(self) -> PastRates | None:
        with self._lock:
            past, self._next = self._next, None
            self._works = past is not None
            return past


class PredictiveInBackground:
    """The model `predictive` with the newest forecast that is ready; without one, it is sized for the present load."""

    GOALS: ClassVar[tuple[str, ...]] = PredictiveModel.GOALS
    NEEDS_GOAL: ClassVar[bool] = PredictiveModel.NEEDS_GOAL

    def __init__(self, model: PredictiveModel, forecasts: Forecasts) -> None:
        self._model, self._forecasts = model, forecasts

    def load(self, network: Network, past: PastRates) -> Network:
        return under_peaks(network, self._forecasts.after(past))

    def allocate(self, network: Network, limits: Limits) -> Allocation | Infeasible:
        return self._model.allocate(network, limits)

    def missed(self, network: Network, par: Mapping[str, int], limits: Limits) -> str:
        return self._model.missed(network, par, limits)

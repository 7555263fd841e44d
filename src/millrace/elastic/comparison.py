"""Compares the latency that the model predicts with the one that was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping

from millrace.elastic.correction import utilization
from millrace.elastic.network import Network, Station, total_time
from millrace.model.prediction import Prediction, StationPrediction


def compared_latency(network: Network, times: Mapping[str, float], whole: float | None) -> Prediction:
    """`network`: with the corrections known before this window. `times`, `whole`: as measured."""
    rates, waits = network.rates(), {}
    for station in network.stations:
        waits[station.name] = station.wait(rates[station.name], station.tasks)
    plain = {station.name: station.service_time + waits[station.name] for station in network.stations}
    some = network.external_rate > 0
    model = _ms(total_time(((rates[name], plain[name]) for name in rates), network.external_rate)) if some else None
    predicted = _ms(network.latency(network.present)) if some else None
    measured = _ms(whole)
    return Prediction(network.external_rate, model, predicted, measured, network.factor, _error(predicted, measured),
                      tuple(_of_station(station, rates[station.name], waits[station.name], times.get(station.name))
                            for station in network.stations))


def _of_station(station: Station, rate: float, wait: float, measured: float | None) -> StationPrediction:
    predicted = _ms(station.corrected(wait))
    return StationPrediction(
        station.name, station.tasks, rate, station.service_rate if math.isfinite(station.service_rate) else None,
        utilization(station, rate), _ms(station.service_time + wait), predicted, _ms(measured), station.overhead * 1000,
        station.factor, _error(predicted, _ms(measured)))


def _ms(seconds: float | None) -> float | None:
    return seconds * 1000 if seconds is not None and math.isfinite(seconds) else None


def _error(predicted: float | None, measured: float | None) -> float | None:
    return (predicted - measured) / measured if predicted is not None and measured else None

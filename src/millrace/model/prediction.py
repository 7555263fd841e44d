"""Predicted against measured latency, for each component and for the whole topology, with the error."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StationPrediction:
    """One component in one window. `model_ms`: by the queueing model alone; `predicted_ms`: with the measured correction. None
    where tasks cannot keep up, or nothing was measured. `error`: of the prediction, as a share of what was measured."""

    component: str
    tasks: int
    arrival_rate: float
    service_rate: float | None
    utilization: float
    model_ms: float | None
    predicted_ms: float | None
    measured_ms: float | None
    overhead_ms: float
    factor: float
    error: float | None


@dataclass(frozen=True, slots=True)
class Prediction:
    """A topology in one window. `offered_rate`: tuples per second that its sources had for it."""

    offered_rate: float
    model_ms: float | None
    predicted_ms: float | None
    measured_ms: float | None
    factor: float
    error: float | None
    components: tuple[StationPrediction, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

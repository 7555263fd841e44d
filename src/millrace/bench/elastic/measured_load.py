"""The load of a run of `bench elastic`, its timetable, and the topology that is measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.bench.migration.arrivals import row_key
from millrace.bench.migration.measured import ArrivalLog
from millrace.connectors.load import LoadSpout
from millrace.connectors.patterns import Pattern, constant, sine, step
from millrace.connectors.shifting_keys import ShiftingKeys
from millrace.workloads.elastic import LOAD_CONFIG, LoadSink
from millrace.workloads.services import CountService, ServiceBolt

KEYS = 4096  # equally frequent, so that each task gets about its share of them


class MeasuredLoadSink(ArrivalLog, LoadSink):
    """The sink of the elastic topologies, with a log."""

    def process_rows(self, rows: list[Any]) -> None:
        super().process_rows(rows)
        self.log_arrivals([row_key(row[1] * self._source_tasks + row[0], 0) for row in rows])


class MeasuredElasticLoad(Topology):
    """`ElasticLoad` with a log of arrivals."""

    config: ClassVar[dict[str, Any]] = {**LOAD_CONFIG, "topology.guarantee": "exactly-once", "keys": KEYS}
    load = LoadSpout.spec(par=1)
    service = ServiceBolt.spec(inputs={load: Grouping.SHUFFLE}, par=2)
    count = CountService.spec(inputs={service: Grouping.fields("key")}, par=2)
    sink = MeasuredLoadSink.spec(inputs={count: Grouping.fields("key")}, par=1)


@dataclass(frozen=True)
class MeasuredLoad:
    """A load pattern of some `seconds`, with the `settings` of the spout that has it, and the mean times of the services."""

    pattern: Pattern
    settings: dict[str, Any]
    seconds: float
    service_seconds: float
    count_seconds: float

    @property
    def tuples(self) -> int:
        return round(self.pattern.due_by(self.seconds))

    @property
    def keys(self) -> ShiftingKeys:
        return ShiftingKeys(KEYS)

    @property
    def config(self) -> dict[str, Any]:
        return {**self.settings, "limit": self.tuples, "service_seconds": self.service_seconds,
                "count_seconds": self.count_seconds}

    def busy(self, rate: float) -> dict[str, float]:
        """Tasks of each component that are busy on average at a rate."""
        return {"service": rate * self.service_seconds, "count": rate * self.count_seconds}

    @classmethod
    def steady(cls, rate: float, seconds: float, service: float, count: float) -> MeasuredLoad:
        return cls(constant(rate), {"pattern": "constant", "rate": rate}, seconds, service, count)

    @classmethod
    def stepped(cls, rate: float, peak: float, at: float, seconds: float, service: float, count: float) -> MeasuredLoad:
        return cls(step(rate, peak, at), {"pattern": "step", "rate": rate, "peak": peak, "at": at}, seconds, service, count)

    @classmethod
    def swinging(cls, rate: float, peak: float, period: float, seconds: float, service: float, count: float) -> MeasuredLoad:
        return cls(sine(rate, peak, period), {"pattern": "sine", "rate": rate, "peak": peak, "period": period}, seconds,
                   service, count)


@dataclass(frozen=True)
class LoadTimetable:
    """The times at which the tuples of a load are due, from `begin` on, by the monotonic clock of the machine."""

    load: MeasuredLoad
    begin: float

    @property
    def rate(self) -> float:
        return self.load.tuples / self.load.seconds

    @property
    def end(self) -> float:
        return self.begin + self.load.seconds

    def due_times(self, numbers: np.ndarray) -> np.ndarray:
        due: np.ndarray = self.begin + self._due[numbers]
        return due

    @cached_property
    def _due(self) -> np.ndarray:
        return np.array([self.load.pattern.time_of(number) for number in range(self.load.tuples)])

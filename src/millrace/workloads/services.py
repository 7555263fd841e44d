"""Bolts that take their time with each tuple, and emit it unchanged: one computes, the others wait for a service.

More instances of a bolt that waits help on any machine, because a sleeping thread needs no core; more instances of one that
computes help only where cores are free.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.keyed.declared import CounterState
from millrace.api.tuple import Tuple
from millrace.connectors.load import LOAD_FIELDS
from millrace.connectors.settings import setting

HARMONIC_TERMS = 2000
SERVICE_SECONDS = 0.01
CONSTANT, EXPONENTIAL = "constant", "exponential"


def harmonic_number(terms: int) -> float:
    """1 + 1/2 + 1/3 + ...: the heavy computation of the OTD experiments."""
    return sum(1.0 / term for term in range(1, terms + 1))


class HarmonicBolt(Bolt):
    """Computes a harmonic number for each tuple.

    | config | meaning |
    | --- | --- |
    | `terms` | terms of the harmonic number (default 2,000) |
    """

    outputs: ClassVar[list[str]] = LOAD_FIELDS
    named_rows: ClassVar[bool] = False

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._terms: int = setting(self, storm_conf, "terms", int, HARMONIC_TERMS, least=1)

    def process(self, tup: Tuple) -> None:
        harmonic_number(self._terms)
        self.emit(tup.values)


class ServiceBolt(Bolt):
    """Waits for a service with each tuple.

    | config | meaning |
    | --- | --- |
    | `service_seconds` | mean time of a call (default 0.01) |
    | `service_times` | `exponential` (default) or `constant` |
    | `seed` | seed of the times, and of the keys (default 1) |
    """

    outputs: ClassVar[list[str]] = LOAD_FIELDS
    blocking: ClassVar[bool] = True
    named_rows: ClassVar[bool] = False
    seconds_key: ClassVar[str] = "service_seconds"  # the setting with the mean time
    wait: Callable[[float], None] = staticmethod(time.sleep)  # replaced in tests

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._mean: float = setting(self, storm_conf, self.seconds_key, float, SERVICE_SECONDS, least=0)
        self._varies = setting(self, storm_conf, "service_times", str, EXPONENTIAL,
                               choices=(CONSTANT, EXPONENTIAL)) == EXPONENTIAL
        seed = setting(self, storm_conf, "seed", int, 1)
        self._random = random.Random(f"service {seed} {self.component_name} {self.task_index}")

    def process(self, tup: Tuple) -> None:
        self.call_service()
        self.emit(tup.values)

    def call_service(self) -> None:
        if self._mean:
            self.wait(self._random.expovariate(1 / self._mean) if self._varies else self._mean)


class CountService(ServiceBolt):
    """Waits for a service with each tuple, counts the tuples of each key in keyed state, and emits each with its number among
    those of its key.

    | config | meaning |
    | --- | --- |
    | `count_seconds` | mean time of a call (default 0.01) |

    and `service_times` and `seed` of ServiceBolt.
    """

    outputs: ClassVar[list[str]] = [*LOAD_FIELDS, "count"]
    seconds_key: ClassVar[str] = "count_seconds"
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        self.call_service()
        self.emit((*tup.values, self.counts.add(tup.values[2])))

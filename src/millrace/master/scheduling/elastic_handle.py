"""Elasticity of one topology for users of the Python API, as `millrace elastic` has it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from millrace.master.scheduling.loop import SchedulingLoop


class ElasticMaster(Protocol):
    """The part of the master that the handle uses."""

    @property
    def scheduling(self) -> SchedulingLoop:
        """Only on the master's thread."""

    def call(self, work: Callable[[], Any]) -> Any:
        """Run the work on the master's thread and return its result."""


class ElasticHandle:
    """Callable from any thread but the master's."""

    def __init__(self, master: ElasticMaster, topology: str) -> None:
        self._master, self._topology = master, topology

    def set(self, model: str, **values: Any) -> dict[str, Any]:
        """Scale the topology by this model from now on: "erstream", "ds2" or "predictive". `values`: t_max_ms or c_max,
        parameters of the model and settings of the loop. Returns what is in use; raises `BadParameter` with the nearest
        possible value if the goal is known to be out of reach."""
        chosen: Future[dict[str, Any]] = self._master.call(
            lambda: self._master.scheduling.elastic.choose(self._topology, model, values))
        return self._own(chosen.result())

    def off(self) -> dict[str, Any]:
        """Leave the numbers of tasks as they are from now on."""
        return self._own(self._master.call(lambda: self._master.scheduling.elastic.off(self._topology)))

    def show(self) -> dict[str, Any]:
        """Model, goal, instances, predicted and measured latency, and why nothing changes just now."""
        return self._own(self._master.call(lambda: self._master.scheduling.elastic.settings(self._topology)))

    def history(self, limit: int = 20) -> list[dict[str, Any]]:
        """The newest decisions, in order of time."""
        rows: list[dict[str, Any]] = self._master.call(
            lambda: self._master.scheduling.elastic.past(limit, self._topology))
        return rows

    def _own(self, answer: dict[str, Any]) -> dict[str, Any]:
        settings: dict[str, Any] = answer["topologies"][self._topology]
        return settings

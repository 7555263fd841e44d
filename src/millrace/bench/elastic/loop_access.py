"""The elastic loop of the resident engine, as `bench elastic` uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from millrace.errors import MillraceError
from millrace.spark.engine import ResidentEngine

OFF = "off"
COOL_DOWN_SECONDS = 10.0
DECISIONS = 100


class ElasticEngine(Protocol):
    """An engine with an elastic loop."""

    def set_elastic(self, name: str, parameters: dict[str, Any] | None = None, *, topology: str | None = None,
                    **policy: Any) -> dict[str, Any]:
        """Set the model that decides the numbers of tasks from now on, or "off"."""

    def elastic_decisions(self, topology: str | None = None, limit: int = 20) -> list[dict[str, Any]]:
        """The loop's last decisions, oldest first."""


class EngineLoop:
    """The loop of an engine."""

    def __init__(self, engine: ResidentEngine) -> None:
        if not hasattr(engine, "set_elastic"):
            raise MillraceError("this engine has no elastic loop, so there is nothing to measure in a step or a sine: run the "
                                "other parts with --only rescale --only others")
        self._engine = cast(ElasticEngine, engine)

    def begin(self, topology: str, model: str, t_max_ms: float) -> None:
        self._engine.set_elastic(model, {"t_max_ms": t_max_ms}, topology=topology, cool_down=COOL_DOWN_SECONDS)

    def decisions(self, topology: str) -> Sequence[Mapping[str, Any]]:
        return self._engine.elastic_decisions(topology, DECISIONS)

    def end(self, topology: str) -> None:
        self._engine.set_elastic(OFF, topology=topology)

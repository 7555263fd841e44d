"""The record of one decision of an elastic loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SCALES, ADVISED_ONLY, REFUSED, INFEASIBLE = "enacted", "advised", "refused", "infeasible"
SUPERSEDED = "superseded"  # carried out, and changed by somebody else before its effect was known
GROWTH, SHRINK, REARRANGE = "grow", "shrink", "rearrange"


@dataclass(frozen=True)
class ElasticDecision:
    """One decision: its direction, the numbers of tasks before and after, and the latency expected and measured.

    `offered_rate`: the load that it is for, with a forecast the forecast one. `carried_rate`: what the spouts emitted at that
    time. `helped`: None until it is known."""

    number: int
    at: float  # unix time
    topology: str
    model: str
    direction: str
    outcome: str
    reason: str
    before: Mapping[str, int] = field(default_factory=dict)
    par: Mapping[str, int] = field(default_factory=dict)
    offered_rate: float = 0.0
    carried_rate: float = 0.0
    was_ms: float | None = None  # latency measured before
    expected_ms: float | None = None
    measured_ms: float | None = None  # afterwards
    helped: bool | None = None

    @property
    def changes(self) -> dict[str, int]:
        """The components that get another number of tasks."""
        return {name: tasks for name, tasks in self.par.items() if tasks != self.before.get(name)}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ElasticDecision:
        """Read what `to_json` wrote; missing fields get their defaults."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if data.get(name) is not None})

"""The elastic loop of a running topology, as `bench elastic` uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from millrace.bench.elastic.figures import LoopDecision, Par
from millrace.spark.running_topology import RunningTopology

STEP_POLICY: Mapping[str, Any] = {"cool_down": 10.0}
# A day of a few minutes: the loop has to be as much faster than usual.
SINE_POLICY: Mapping[str, Any] = {"cool_down": 5.0, "settle_windows": 1, "patience": 3, "steady": 2.0}
HORIZON_SECONDS = 20.0
DECISIONS = 100
ERSTREAM, PREDICTIVE = "erstream", "predictive"


class ElasticControl(Protocol):
    """Elasticity of one topology."""

    def set(self, model: str, **values: Any) -> dict[str, Any]:
        """Scale the topology by this model from now on. `values`: the goal, and settings of the loop."""

    def off(self) -> dict[str, Any]:
        """Leave the numbers of tasks as they are from now on."""

    def history(self, limit: int = 20) -> Sequence[Mapping[str, Any]]:
        """The newest decisions, in order of time: {"at", "outcome", "before", "par", "expected_ms"} and more."""


def control_of(running: RunningTopology) -> ElasticControl:
    return running.elastic


@dataclass(frozen=True)
class LoopGoal:
    """The model that scales a topology, the latency that it is to keep, and settings of the loop."""

    model: str
    t_max_ms: float
    control: Callable[[RunningTopology], ElasticControl] = control_of
    policy: Mapping[str, Any] = field(default_factory=lambda: STEP_POLICY)

    def begin(self, running: RunningTopology) -> None:
        horizon = {"horizon": HORIZON_SECONDS} if self.model == PREDICTIVE else {}
        self.control(running).set(self.model, t_max_ms=self.t_max_ms, **horizon, **self.policy)

    def end(self, running: RunningTopology) -> Sequence[Mapping[str, Any]]:
        """Let the topology keep its numbers of tasks. Returns the decisions, oldest first."""
        control = self.control(running)
        control.off()
        return control.history(DECISIONS)


def loop_decisions(rows: Sequence[Mapping[str, Any]], offset: float, first: Par) -> list[LoopDecision]:
    """The decisions that were carried out. `offset`: of the monotonic clock to the time of day. `first`: tasks of the bolts
    before all of them; other components do not count, and a decision may leave some of these out."""
    decisions, par = [], dict(first)
    for row in rows:
        if row["outcome"] == "enacted":
            before = par
            par = {name: row["par"].get(name, tasks) for name, tasks in before.items()}
            decisions.append(LoopDecision(row["at"] + offset, before, par, row["expected_ms"]))
    return decisions

"""The goal that the elastic loop can reach under the present load: the one that was set, or the nearest that is feasible."""

from __future__ import annotations

from dataclasses import dataclass, replace

from millrace.elastic.allocation import Allocation, Infeasible, Limits
from millrace.elastic.models import ElasticModel
from millrace.elastic.network import Network

LATENCY_ROOM = 0.25  # share above the least possible latency: to come closer takes ever more instances
HALVINGS = 12  # of the load, to find the largest part that can be carried


@dataclass(frozen=True, slots=True)
class NearestGoal:
    """A feasible goal, with the load and the allocation for it. `beyond`: why it is less than the goal that was set."""

    network: Network
    limits: Limits
    need: Allocation
    beyond: Infeasible | None = None


def nearest_goal(model: ElasticModel, network: Network, limits: Limits) -> NearestGoal | Infeasible:
    """The goal if it is feasible; otherwise the same load with a longer latency, or the largest part of the load that tasks
    can carry, whatever the latency."""
    need = model.allocate(network, limits)
    if not isinstance(need, Infeasible):
        return NearestGoal(network, limits, need)
    later = replace(limits, t_max_ms=need.nearest["t_max_ms"] * (1 + LATENCY_ROOM)) if "t_max_ms" in need.nearest else None
    nearest = _feasible_goal(model, network, later) if later is not None else None
    if nearest is None:
        nearest = _carried(model, network, replace(limits, t_max_ms=None))
    return need if nearest is None else replace(nearest, beyond=need)


def _carried(model: ElasticModel, network: Network, limits: Limits) -> NearestGoal | None:
    """The goal for the largest part of the load that is feasible."""
    if (whole := _feasible_goal(model, network, limits)) is not None:
        return whole
    best, low, high = None, 0.0, 1.0  # shares of the load: the higher is infeasible
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = _feasible_goal(model, network.scaled(middle), limits)
        best, low, high = (best, low, middle) if found is None else (found, middle, high)
    return best


def _feasible_goal(model: ElasticModel, network: Network, limits: Limits) -> NearestGoal | None:
    need = model.allocate(network, limits)
    return None if isinstance(need, Infeasible) else NearestGoal(network, limits, need)

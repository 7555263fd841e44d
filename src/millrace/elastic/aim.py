"""The aim of the elastic loop under the present load: the goal or, if it is infeasible, the part that can be reached."""

from __future__ import annotations

from dataclasses import dataclass, replace

from millrace.elastic.allocation import Allocation, Infeasible, Limits
from millrace.elastic.models import ElasticModel
from millrace.elastic.network import Network

LATENCY_ROOM = 0.25  # share above the least possible latency: to come closer takes ever more instances
HALVINGS = 12  # of the load, to find the largest part that can be carried


@dataclass(frozen=True, slots=True)
class Aim:
    """A feasible goal, with the load and the allocation for it. `beyond`: why it is less than the goal that was set."""

    network: Network
    limits: Limits
    need: Allocation
    beyond: Infeasible | None = None


def nearest_aim(model: ElasticModel, network: Network, limits: Limits) -> Aim | Infeasible:
    """The goal if it is feasible; otherwise the same load with a longer latency, or the largest part of the load that tasks
    can carry, whatever the latency."""
    need = model.allocate(network, limits)
    if not isinstance(need, Infeasible):
        return Aim(network, limits, need)
    later = replace(limits, t_max_ms=need.nearest["t_max_ms"] * (1 + LATENCY_ROOM)) if "t_max_ms" in need.nearest else None
    nearest = _aim(model, network, later) if later is not None else None
    if nearest is None:
        nearest = _carried(model, network, replace(limits, t_max_ms=None))
    return need if nearest is None else replace(nearest, beyond=need)


def _carried(model: ElasticModel, network: Network, limits: Limits) -> Aim | None:
    """The aim for the largest part of the load that is feasible."""
    if (whole := _aim(model, network, limits)) is not None:
        return whole
    best, low, high = None, 0.0, 1.0  # shares of the load: the higher is infeasible
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = _aim(model, network.scaled(middle), limits)
        best, low, high = (best, low, middle) if found is None else (found, middle, high)
    return best


def _aim(model: ElasticModel, network: Network, limits: Limits) -> Aim | None:
    need = model.allocate(network, limits)
    return None if isinstance(need, Infeasible) else Aim(network, limits, need)

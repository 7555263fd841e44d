"""Sl-Stream: cuts the tasks into subgraphs with a particle swarm (`SlStream.partition`, qpso.py), matches them to nodes
(`match_subgraphs`, matching.py), and moves tasks only if that is worth it (`SlStream.worth_moving`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.even import Even
from millrace.schedulers.matching import also_placed, match, moves
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.partition import NEGLIGIBLE, Cost, Cutting, free_room, polished
from millrace.schedulers.placing import complete, slots_within
from millrace.schedulers.problem import Floats, Ints, Problem
from millrace.schedulers.qpso import swarm

EFFORT = 600  # limit on tasks × random partitions that are polished before the swarm starts
FINALISTS = 4  # different partitions of the swarm that are polished at the end; one if there are many tasks


@dataclass(frozen=True)
class SlStream:
    """Minimises p = traffic between subgraphs + rho × imbalance, then finds the best fit of subgraphs to nodes. The running
    plan stays unless the new p is below xi times its p, or the running plan overloads a node and the new one does not.

    Loads are used as measured: the load monitor already removes spikes with a trimmed mean.
    """

    k: int | None = parameter(None, "Number of subgraphs. Unset: the number of nodes with slots.", low=1)
    rho: float = parameter(1.0, "Weight of the imbalance, in tuples per second for a share of 1.", low=0.0)
    xi: float = parameter(0.7, "Reschedule if the new plan's p is below this share of the present one; higher means more "
                               "often. p = traffic between subgraphs + rho × imbalance.", low=0.0, high=1.0)
    alpha: float = parameter(0.5, "Weight of CPU in a task's resource demand; memory has the rest.", low=0.0, high=1.0)
    mu: float = parameter(0.5, "Weight of free CPU in the fit of a subgraph to a node; free memory has the rest.",
                          low=0.0, high=1.0)
    particles: int = parameter(32, "Partitions that the swarm follows.", low=1, high=10_000)
    iterations: int = parameter(40, "Steps of the swarm; 0 leaves the polished starts.", low=0, high=100_000)
    sigma: float = parameter(0.5, "Width of the swarm's search at first.", low=0.5, high=1.0)
    restarts: int = parameter(16, "Random partitions that are polished, like the other starts, before the swarm begins; "
                                  "fewer if there are many tasks. 0: only the result is polished.", low=0)
    seed: int = parameter(1, "Seed of the random numbers: equal seeds give equal results.", low=0)

    WEIGHS_ITSELF: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = Problem.of(graphs, cluster, load, plan)
        if problem.count and not len(problem.slot_numbers):
            return problem.no_slots()
        if not len(problem.rate) and not problem.cpu.any():  # nothing is measured yet
            return Even(spread_back=False).schedule(graphs, cluster, load, plan)
        kept = complete(problem, problem.current)
        running = self.cutting(problem, problem.nodes)
        now = running.cost(_labels(running, problem.nodes_of(kept)))
        cutting = self.cutting(problem, min(self.k or problem.nodes, problem.nodes))
        best = self.partition(cutting, kept)
        then = cutting.cost(best)
        placed = (problem.current >= 0).any()  # a first placement moves nothing, so no gain is required
        if placed and not self.worth_moving(now, then):
            return problem.answer(kept, self.why_not(now, then) + also_placed(problem))
        nodes = match_subgraphs(problem, best, cutting.k, self.mu)
        if nodes is None:
            return problem.answer(kept, "the plan stays: the subgraphs cannot be matched to nodes that have room for them: "
                                        + _amounts(cutting, best) + also_placed(problem))
        assignment = slots_within(problem, nodes)
        return problem.answer(assignment, f"{len(np.unique(nodes))} subgraphs: p {now.p:,.1f} -> {then.p:,.1f}"
                                          + (", and no node is overloaded now" if now.overload else ""))

    def cutting(self, problem: Problem, k: int) -> Cutting:
        return Cutting.of(problem, k, self.rho, self.alpha)

    def worth_moving(self, now: Cost, then: Cost) -> bool:
        """True if overload falls, or if p falls far enough and overload does not rise."""
        if abs(then.overload - now.overload) > NEGLIGIBLE * max(now.overload, 1.0):
            return then.overload < now.overload
        return then.p < self.xi * now.p - NEGLIGIBLE * max(now.p, 1.0)

    def why_not(self, now: Cost, then: Cost) -> str:
        """The reason to keep the running plan."""
        if then.overload > now.overload + NEGLIGIBLE * max(now.overload, 1.0):
            return "the plan stays: every partition found overloads the nodes more"
        return f"the plan stays: p would go from {now.p:,.1f} to {then.p:,.1f}, which is not below xi = {self.xi:g} times that"

    def partition(self, cutting: Cutting, kept: Ints) -> Ints:
        """The best subgraphs that the swarm finds: never worse than the greedy ones or, if k allows, those in force."""
        rng = np.random.default_rng(self.seed)
        spare = EFFORT // max(cutting.problem.count, 1)  # polishing dominates the time if there are many tasks
        starts = [cutting.greedy(), *rng.integers(0, cutting.k, (min(spare, self.restarts), cutting.problem.count))]
        nodes = cutting.problem.nodes_of(kept)
        if np.isin(nodes, cutting.places).all():
            starts.append(_labels(cutting, nodes))
        first = np.stack([polished(cutting, start) for start in starts] if spare and self.restarts else starts)
        partitions = swarm(cutting.costs, first, cutting.k, particles=self.particles, iterations=self.iterations,
                      sigma=self.sigma, rng=rng).labels
        last = np.stack([polished(cutting, labels) for labels in _different(partitions, FINALISTS if spare > FINALISTS else 1)])
        best: Ints = last[cutting.costs(last).order()[0]]
        return best


def match_subgraphs(problem: Problem, labels: Ints, k: int, mu: float) -> Ints | None:
    """The node of every task: the matching with the least sum of w_ij = μ·(free CPU - the subgraph's) + (1 - μ)·(free memory
    - the subgraph's), in shares of the largest node; None if every matching has a negative term."""
    free, scale = free_room(problem), _scale(problem)
    nodes = match(mu * free[0] / scale[0] + (1 - mu) * free[1] / scale[1], _allowed(problem, _left(problem, labels, k)),
                  moves(problem, labels, k), np.bincount(labels, minlength=k) > 0)
    return None if nodes is None else nodes[labels]


class SubgraphNeeds(NamedTuple):
    cpu: Floats
    memory: Floats


def _needs(problem: Problem, labels: Ints, k: int) -> SubgraphNeeds:
    """MHz and MB of each subgraph."""
    return SubgraphNeeds(np.bincount(labels, weights=problem.cpu, minlength=k).astype(np.float64),
                         np.bincount(labels, weights=problem.memory, minlength=k).astype(np.float64))


def _left(problem: Problem, labels: Ints, k: int) -> Floats:
    """(2, nodes, k): MHz and MB that each node would have left with each subgraph."""
    return free_room(problem)[:, :, np.newaxis] - np.stack(_needs(problem, labels, k))[:, np.newaxis, :]


def _allowed(problem: Problem, left: Floats) -> NDArray[np.bool_]:
    slack = NEGLIGIBLE * np.stack([problem.node_capacity, problem.node_memory])[:, :, np.newaxis]
    allowed: NDArray[np.bool_] = np.all(left >= -slack, axis=0)
    return allowed


def _scale(problem: Problem) -> Floats:
    """CPU and memory of the largest node: shares of these can be added."""
    return np.maximum([problem.node_capacity.max(initial=0.0), problem.node_memory.max(initial=0.0)], 1e-9)


def _labels(cutting: Cutting, nodes: Ints) -> Ints:
    """The subgraph of every task, given its node; each node must be the place of a subgraph."""
    label_of = np.empty(cutting.problem.nodes, dtype=np.int64)
    label_of[cutting.places] = np.arange(cutting.k)
    return label_of[nodes]


def _different(labels: Ints, most: int) -> list[Ints]:
    """The first `most` different partitions."""
    seen: dict[bytes, Ints] = {}
    for row in labels:
        seen.setdefault(row.tobytes(), row)
        if len(seen) == most:
            break
    return list(seen.values())


def _amounts(cutting: Cutting, labels: Ints) -> str:
    """Needs of the subgraphs and free capacity of the nodes, in words, largest first."""
    problem, needs = cutting.problem, _needs(cutting.problem, labels, cutting.k)
    free = free_room(problem)

    def largest(values: Floats) -> str:
        texts = [f"{value:,.0f}" for value in np.sort(values)[::-1] if value > 0]
        return ", ".join(texts[:5]) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "") or "0"

    return (f"they need {largest(needs.cpu)} MHz and {largest(needs.memory)} MB, and the nodes have {largest(free[0])} MHz "
            f"and {largest(free[1])} MB free. Add a node, or lower the load")

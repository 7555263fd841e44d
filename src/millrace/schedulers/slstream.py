"""Sl-Stream: cuts the tasks into subgraphs with a particle swarm (`SlStream.partition`, partitioning/qpso.py), matches them to
nodes (`match_subgraphs`, partitioning/matching.py), and moves tasks only if that is worth it (`SlStream.worth_moving`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.even import Even
from millrace.schedulers.overload import FillLimits
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.partitioning import metis
from millrace.schedulers.partitioning.matching import allowed_nodes, also_placed, match, moves
from millrace.schedulers.partitioning.partition import NEGLIGIBLE, Cost, Cutting, polished
from millrace.schedulers.partitioning.qpso import swarm
from millrace.schedulers.partitioning.relief import relief_first, relieved, without_new_overload
from millrace.schedulers.partitioning.room import CPU, MEMORY, node_room, task_needs, weighed_excess, with_tolerance
from millrace.schedulers.partitioning.workers import WorkerLevel
from millrace.schedulers.placing import complete, slots_within
from millrace.schedulers.problem import Flags, Floats, Ints, Objective, Problem

EFFORT = 600  # limit on tasks × random partitions that are polished before the swarm starts
FINALISTS = 4  # different partitions of the swarm that are polished at the end; one if there are many tasks
SUBGRAPH = 4  # tasks of a subgraph, at least, on average, if k is not set
FILLED = 0.8  # the largest share of the room of k nodes that the tasks may need, if k is not set


@dataclass(frozen=True)
class SlStream(Objective):
    """Minimises p = traffic between subgraphs + rho × imbalance, then finds the best fit of subgraphs to nodes. The running
    plan stays unless the new p is below xi times its p, or the running plan overloads something and the new one does so less.

    Subgraphs fit a node's CPU and memory, and the cores and loops of its workers. Tasks that cannot be moved stay in the
    subgraph of their node. Loads are used as measured: the load monitor already removes spikes with a trimmed mean.
    """

    k: int | None = parameter(None, "Number of subgraphs. Unset: the number of nodes with slots, but at most one for every "
                                    "four tasks if the load fits on so few. At least the nodes with tasks that cannot move.",
                              low=1)
    rho: float = parameter(1.0, "Weight of the imbalance, in tuples per second for a share of 1.", low=0.0)
    xi: float = parameter(0.7, "Reschedule if the new plan's p is below this share of the present one; higher means more "
                               "often. p = traffic between subgraphs + rho × imbalance.", low=0.0, high=1.0)
    alpha: float = parameter(0.5, "Weight of CPU in a task's resource demand; memory has the rest.", low=0.0, high=1.0)
    mu: float = parameter(0.5, "Weight of free CPU in the fit of a subgraph to a node; free memory has the rest.",
                          low=0.0, high=1.0)
    capacity: float = parameter(0.9, "Share of the CPU of nodes and workers, and of the workers' loops, that new plans use "
                                     "where possible; the rest is headroom.", low=0.01, high=1.0)
    balance: float = parameter(1.5, "Largest resource demand of a subgraph where possible, as a multiple of its share if all "
                                    "nodes were filled alike. A large number leaves only the limits of the nodes.", low=1.0)
    particles: int = parameter(32, "Partitions that the swarm follows.", low=1, high=10_000)
    iterations: int = parameter(40, "Steps of the swarm; 0 leaves the polished starts.", low=0, high=100_000)
    sigma: float = parameter(0.5, "Width of the swarm's search at first.", low=0.5, high=1.0)
    restarts: int = parameter(16, "Random partitions that are polished, like the other starts, before the swarm begins; "
                                  "fewer if there are many tasks. 0: only the result is polished.", low=0)
    published: bool = parameter(False, "Runs the swarm and the matching alone, as published: the swarm starts from random "
                                       "partitions only, nothing is polished, and no task is moved afterwards.")
    seed: int = parameter(1, "Seed of the random numbers: equal seeds give equal results.", low=0)

    WEIGHS_ITSELF: ClassVar[bool] = True
    ESTIMATOR: ClassVar[str] = "trimmed-mean"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def limits(self) -> FillLimits:
        return FillLimits.of(self.capacity)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = self.problem(graphs, cluster, load, plan)
        if problem.count and not len(problem.slot_numbers):
            return problem.no_slots()
        if not len(problem.rate) and not problem.needs.any():  # nothing is measured yet
            return Even(spread_back=False).schedule(graphs, cluster, load, plan)
        kept = complete(problem, problem.current, self.capacity)
        cutting, best = self.subgraphs(problem, kept)
        assignment = self.placed(cutting, best)
        if assignment is None:
            return problem.answer(kept, "the plan stays: the subgraphs cannot be matched to nodes that have room for them: "
                                        + _amounts(cutting, best) + also_placed(problem))
        if not self.published:
            assignment = relief_first(problem, without_new_overload(problem, assignment, self.limits), self.limits)
        now, then = self.rated(problem, kept), self.rated(problem, assignment)
        running = (problem.current >= 0).any()  # a first placement moves nothing, so no gain is required
        if running and not self.worth_moving(now, then):
            return problem.answer(kept, self.why_not(now, then) + also_placed(problem))
        return problem.answer(assignment, f"{len(np.unique(problem.slot_node[assignment]))} subgraphs: p {now.p:,.1f} -> "
                                          f"{then.p:,.1f}" + self.relief(now, then))

    def cutting(self, problem: Problem, k: int) -> Cutting:
        return Cutting.of(problem, k, self.rho, self.alpha, self.capacity, self.balance)

    def rated(self, problem: Problem, assignment: Ints) -> Cost:
        """The overload of nodes and workers, and p, of a placement as it would be enacted."""
        every = self.cutting(problem, problem.nodes)
        labels = every.labels_of(problem.slot_node[assignment])
        assert labels is not None, "every node is a place"
        return Cost(weighed_excess(problem, assignment, self.limits.overload),
                    every.cost(labels).p + problem.between_workers * problem.inside_nodes(assignment))

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

    def relief(self, now: Cost, then: Cost) -> str:
        """The end of a reason to move: the overload that is relieved."""
        if not now.overload:
            return ""
        return ", with less overload" if then.overload else ", and nothing is overloaded now"

    def subgraphs(self, problem: Problem, kept: Ints) -> tuple[Cutting, Ints]:
        """The best partition found, into k subgraphs. If none fits, and k is not set, as many as there are nodes are tried."""
        cutting = self.cutting(problem, min(self.k or _subgraph_count(problem, self.capacity), problem.nodes))
        best = self.partition(cutting, kept)
        if self.k is None and cutting.k < problem.nodes and not cutting.fits(best):
            cutting = self.cutting(problem, problem.nodes)
            best = self.partition(cutting, kept)
        return cutting, best

    def partition(self, cutting: Cutting, kept: Ints) -> Ints:
        """The best subgraphs that the swarm finds: unless as published, never worse than the greedy ones or, if k allows, those
        in force."""
        rng = np.random.default_rng(self.seed)
        spare = 0 if self.published else EFFORT // max(cutting.problem.count, 1)  # polishing dominates the time of many tasks
        none = np.zeros((0, cutting.problem.count), dtype=np.int64)
        starts = none if self.published else self.starts(cutting, kept, spare, rng)
        found = swarm(cutting.costs, starts, cutting.k, particles=self.particles, iterations=self.iterations,
                      sigma=self.sigma, rng=rng, fixed=cutting.fixed).labels
        if self.published:
            alone: Ints = found[0]
            return alone
        last = np.stack([polished(cutting, labels) for labels in _different(found, FINALISTS if spare > FINALISTS else 1)])
        best: Ints = last[cutting.costs(last).order()[0]]
        return best

    def starts(self, cutting: Cutting, kept: Ints, spare: int, rng: np.random.Generator) -> Ints:
        """Partitions that the swarm starts from: a greedy one, one by METIS, the one in force, and random ones."""
        drawn = rng.integers(0, cutting.k, (min(spare, self.restarts), cutting.problem.count))
        starts = [cutting.greedy(), *cutting.with_fixed(drawn)]
        for more in (multilevel_start(cutting, self.seed), cutting.labels_of(cutting.problem.slot_node[kept])):
            if more is not None:
                starts.append(more)
        return np.stack([polished(cutting, start) for start in starts] if spare and self.restarts else starts)

    def placed(self, cutting: Cutting, labels: Ints) -> Ints | None:
        """The slot of every task: subgraphs matched to nodes, or with distances between nodes left at their places if that
        costs less; overloads that this makes are relieved. As published, they are only matched. None if they cannot be."""
        problem = cutting.problem
        nodes = match_subgraphs(problem, labels, cutting.k, self.mu)
        if nodes is None or self.published:
            return None if nodes is None else slots_within(problem, nodes, self.capacity)
        ways = [nodes] if problem.distance is None else [nodes, cutting.places[labels]]
        placed = [relieved(problem, slots, self.limits.of_new_plans) for way in ways for slots in self.slots(problem, way)]
        return min(placed, key=lambda assignment: self.rated(problem, assignment))

    def slots(self, problem: Problem, nodes: Ints) -> list[Ints]:
        """Ways to choose slots of these nodes: present ones where that is possible, and if traffic between workers counts, also
        those that save most of it."""
        ways = [slots_within(problem, nodes, self.capacity)]
        if problem.between_workers:
            ways += [WorkerLevel(problem, nodes, self.capacity, 0.0, self.seed, fresh).assignment() for fresh in (False, True)]
        return ways


def multilevel_start(cutting: Cutting, seed: int) -> Ints | None:
    """A partition by METIS, with the tasks that cannot be moved where they are; None if it is not installed or has too little
    to work with."""
    problem = cutting.problem
    if not metis.is_installed():
        return None
    graph = metis.traffic_graph(problem.count, problem.left, problem.right, problem.rate)
    usable = cutting.limit[MEMORY + 1 + CPU]
    labels = metis.parts(graph, problem.cpu, usable, 0.1, seed)
    return None if labels is None else cutting.with_fixed(labels)


def match_subgraphs(problem: Problem, labels: Ints, k: int, mu: float) -> Ints | None:
    """The node of every task: the matching with the least sum of w_ij = μ·(free CPU - the subgraph's) + (1 - μ)·(free memory
    - the subgraph's), in shares of the largest node; None if every matching has a negative term. A subgraph with a task that
    cannot be moved goes to that task's node, whether or not that has room."""
    free, scale = node_room(problem), _scale(problem)
    nodes = match(mu * free[CPU] / scale[0] + (1 - mu) * free[MEMORY] / scale[1],
                  allowed_nodes(problem, labels, _fitting(problem, labels, k)), moves(problem, labels, k),
                  np.bincount(labels, minlength=k) > 0)
    return None if nodes is None else nodes[labels]


def _subgraph_count(problem: Problem, capacity: float) -> int:
    """The number of subgraphs if none is given: of nodes, but at most one for every few tasks if the load fits on those. With
    distances it matters which nodes those are, so that all are considered."""
    if problem.distance is not None:
        return problem.nodes
    room, needs = node_room(problem, capacity), task_needs(problem).sum(axis=1)
    largest = np.cumsum(room[:, np.argsort(-room[CPU], kind="stable")], axis=1) * FILLED
    fits = np.flatnonzero((largest >= needs[:, np.newaxis]).all(axis=0))
    needed = int(fits[0]) + 1 if len(fits) else problem.nodes
    return max(1, min(problem.nodes, max(needed, problem.count // SUBGRAPH)))


def _needs(problem: Problem, labels: Ints, k: int) -> Floats:
    """(3, k): CPU, loop time and memory of each subgraph."""
    return np.stack([np.bincount(labels, weights=need, minlength=k) for need in task_needs(problem)]).astype(np.float64)


def _fitting(problem: Problem, labels: Ints, k: int) -> Flags:
    """(nodes, k): True if the node has room for the subgraph."""
    whole = np.stack([problem.node_capacity, problem.node_limit[1], problem.node_memory])
    room = with_tolerance(with_tolerance(node_room(problem), whole), whole)
    fitting: Flags = np.all(_needs(problem, labels, k)[:, np.newaxis, :] <= room[:, :, np.newaxis], axis=0)
    return fitting


def _scale(problem: Problem) -> Floats:
    """CPU and memory of the largest node: shares of these can be added."""
    return np.maximum([problem.node_capacity.max(initial=0.0), problem.node_memory.max(initial=0.0)], 1e-9)


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
    needs, free = _needs(cutting.problem, labels, cutting.k), node_room(cutting.problem)

    def largest(values: Floats) -> str:
        texts = [f"{value:,.0f}" for value in np.sort(values)[::-1] if value > 0]
        return ", ".join(texts[:5]) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "") or "0"

    return (f"they need {largest(needs[CPU])} MHz and {largest(needs[MEMORY])} MB, and the nodes have {largest(free[CPU])} MHz "
            f"and {largest(free[MEMORY])} MB free. Add a node, or lower the load")

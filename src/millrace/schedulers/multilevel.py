"""Multilevel partitioning: METIS cuts the graph of tasks into parts for nodes, and each part into parts for the node's workers.
For clusters with thousands of nodes, and for plans that move few tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_array, csr_array

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.even import Even
from millrace.schedulers.overload import FillLimits
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.partitioning import metis
from millrace.schedulers.partitioning.matching import also_placed
from millrace.schedulers.partitioning.partition import Cutting, polished
from millrace.schedulers.partitioning.refinement import Ground, refined
from millrace.schedulers.partitioning.relief import DIGITS, relief_first, relieved, without_new_overload
from millrace.schedulers.partitioning.room import CPU, node_room, task_needs, weighed_excess, with_tolerance
from millrace.schedulers.partitioning.workers import WorkerLevel
from millrace.schedulers.placing import complete
from millrace.schedulers.problem import NOWHERE, Floats, Ints, Objective, Problem
from millrace.schedulers.rearranging import worker_by_worker

DENSE = 100_000  # tasks × nodes: smaller problems are also refined by swaps, and from more starts
ONE_START = 2_000_000  # tasks × nodes: larger ones are cut only once
FEW = 1000  # tasks × workers: smaller problems are also improved worker by worker
BEST = 4  # placements that are
RESTARTS = 16  # random starts, if there are very few tasks: METIS is of little use there
EFFORT = 400  # limit on tasks × random starts
FILLED = 0.93  # share of the room of the fewest nodes that are tried: METIS needs some play
MOST_SLACK = 0.3


@dataclass(frozen=True)
class Multilevel(Objective):
    """Minimises the traffic within the limits of nodes and workers by multilevel partitioning. Tasks that cannot be moved are
    one vertex for each node, which stays there. Parts go to the nodes that most of their tasks are on; then single tasks move
    if that saves more than move_cost. The running plan is one of those that it improves, and the best of all is taken.
    """

    capacity: float = parameter(0.9, "Share of the CPU of nodes and workers, and of the workers' loops, that new plans use "
                                     "where possible; the rest is headroom.", low=0.01, high=1.0)
    move_cost: float = parameter(1.0, "Least saving, in the unit that is minimised, per second, for every task that is moved.",
                                 low=0.0)
    seed: int = parameter(1, "Seed of METIS and of random starts: equal seeds give equal results.",
                          low=0)

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def limits(self) -> FillLimits:
        return FillLimits.of(self.capacity)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        metis.require_installed()
        problem = self.problem(graphs, cluster, load, plan)
        if problem.count and not len(problem.slot_numbers):
            return problem.no_slots()
        if not len(problem.rate) and not problem.needs.any():  # nothing is measured yet
            return Even(spread_back=False).schedule(graphs, cluster, load, plan)
        levels = _Levels(problem, self)
        assignment = relief_first(problem, without_new_overload(problem, levels.best(), self.limits), self.limits)
        if (assignment == problem.current).all():
            now = problem.in_words(problem.cost(assignment))
            return problem.answer(assignment, f"the plan stays: {now}, and no plan found saves more than move_cost = "
                                              f"{self.move_cost:g} for each task that it moves")
        moved = int(((assignment != problem.current) & (problem.current >= 0)).sum())
        return problem.answer(assignment, f"{problem.in_words(problem.cost(assignment))}, before "
                                          f"{problem.cost(problem.current):,.0f}; {moved} tasks move{also_placed(problem)}")


class _Levels:
    """One problem on its way to a plan: starts on the level of nodes, their improvement, and the level of workers."""

    def __init__(self, problem: Problem, parameters: Multilevel) -> None:
        self.problem, self.parameters = problem, parameters
        self.needs, self.usable = task_needs(problem), node_room(problem, parameters.capacity)
        self.home = problem.nodes_of(problem.current)

    def best(self) -> Ints:
        """The assignment with the least overload, and of those with the least traffic and moves."""
        found = sorted(self.assignments(), key=self.rating)
        if self.problem.count * len(self.problem.slot_numbers) <= FEW:
            found += [worker_by_worker(self.problem, each, self.parameters.capacity) for each in found[:BEST]]
        return min(found, key=self.rating)

    def rating(self, assignment: Ints) -> tuple[float, float]:
        moved = (assignment != self.problem.current) & (self.problem.current >= 0)
        over = weighed_excess(self.problem, assignment, self.parameters.limits.overload)
        return round(over, DIGITS), self.problem.cost(assignment) + self.parameters.move_cost * int(moved.sum())

    def assignments(self) -> Iterator[Ints]:
        """The plan in force, that plan improved, and new ones. The earlier wins if two are equal."""
        problem = self.problem
        if (problem.current >= 0).sum() * 2 > problem.count:
            kept = complete(problem, problem.current, self.parameters.capacity)
            yield kept
            yield self.placed(problem.slot_node[kept])
        for nodes in self.starts():
            yield self.placed(nodes)

    def placed(self, nodes: Ints) -> Ints:
        """A slot for every task, from the nodes of a start."""
        problem, parameters = self.problem, self.parameters
        nodes = self.improved(np.where(problem.pinned, self.home, nodes))
        levels = [WorkerLevel(problem, nodes, parameters.capacity, parameters.move_cost, parameters.seed, fresh)
                  for fresh in ((False, True) if problem.between_workers else (False,))]
        return min((relieved(problem, level.assignment(), parameters.limits.of_new_plans) for level in levels), key=self.rating)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @property
    def is_small(self) -> bool:
        return self.problem.count * self.problem.nodes <= DENSE

    def improved(self, nodes: Ints) -> Ints:
        """The nodes after moving tasks, and after swaps if there are few."""
        problem, stay = self.problem, self.home >= 0
        if self.is_small:
            cutting = self.cutting
            labels, homes = cutting.labels_of(nodes), cutting.labels_of(np.maximum(self.home, 0))
            assert labels is not None and homes is not None, "every node is a place"
            worth = np.zeros((problem.count, cutting.k))
            worth[np.flatnonzero(stay), homes[stay]] = self.parameters.move_cost
            return cutting.places[polished(cutting, labels, worth)]
        whole = np.stack([problem.node_capacity, problem.node_limit[1], problem.node_memory])
        return refined(Ground(self.graph, self.needs, with_tolerance(self.usable, whole), ~problem.pinned, self.home,
                              self.parameters.move_cost, problem.distance), nodes)

    @cached_property
    def cutting(self) -> Cutting:
        return Cutting.of(self.problem, self.problem.nodes, capacity=self.parameters.capacity)

    @cached_property
    def graph(self) -> csr_array:
        return metis.traffic_graph(self.problem.count, self.problem.left, self.problem.right, self.problem.rate)

    @cached_property
    def vertices(self) -> tuple[Ints, int]:
        """The vertex of each task, and their number: tasks that cannot leave a node are one."""
        problem = self.problem
        key = np.where(problem.pinned, problem.count + self.home, np.arange(problem.count))
        unique, vertex = np.unique(key, return_inverse=True)
        return vertex.reshape(-1).astype(np.int64), len(unique)

    @cached_property
    def contracted(self) -> csr_array:
        vertex, count = self.vertices
        if count == self.problem.count:
            return self.graph
        return metis.traffic_graph(count, vertex[self.problem.left], vertex[self.problem.right], self.problem.rate)

    @cached_property
    def size(self) -> Floats:
        """The need of each task as a share of all room: of the resource of which it needs most. Parts whose sizes fit their
        nodes fit them in every resource."""
        size: Floats = (self.needs / np.maximum(self.usable.sum(axis=1), 1e-9)[:, np.newaxis]).max(axis=0)
        return size

    @cached_property
    def room(self) -> Floats:
        """The share of all room that each node has: of the resource of which it has least."""
        needed = self.needs.sum(axis=1) > 0
        share = self.usable / np.maximum(self.usable.sum(axis=1), 1e-9)[:, np.newaxis]
        room: Floats = share[needed].min(axis=0) if needed.any() else share[CPU]
        return room

    def starts(self) -> Iterator[Ints]:
        """Nodes of all tasks by METIS: over all nodes, and over the fewest that have enough room; if there are few tasks, also
        over a number in between, and at random. One by one, if there are few or METIS has too little to work with."""
        cuts = [nodes for nodes in map(self.cut, self.node_counts()) if nodes is not None]
        yield from cuts
        if self.is_small or not cuts:
            yield self.cutting.places[self.cutting.greedy()]
        spare = min(RESTARTS, EFFORT // max(self.problem.count, 1))
        drawn = np.random.default_rng(self.parameters.seed).integers(0, self.problem.nodes, (spare, self.problem.count))
        yield from self.cutting.places[self.cutting.with_fixed(drawn)] if spare else ()

    def node_counts(self) -> list[int]:
        most = int((self.room > 0).sum())
        room = np.cumsum(-np.sort(-self.room))
        fewest = min(int(np.searchsorted(room * FILLED, self.size.sum())) + 1, most)
        if self.problem.count * self.problem.nodes > ONE_START:
            return [most]
        return sorted({most, fewest, (most + fewest) // 2} if self.is_small else {most, fewest}, reverse=True)

    def cut(self, count: int) -> Ints | None:
        """The node of each task, on at most so many nodes; None if METIS has too little to work with."""
        chosen = self.chosen(count)
        if not len(chosen):
            return None
        vertex, vertices = self.vertices
        sizes = np.bincount(vertex, weights=self.size, minlength=vertices).astype(np.float64)
        spare = self.room[chosen].sum() / max(float(self.size.sum()), 1e-9) - 1
        parts = metis.parts(self.contracted, sizes, self.room[chosen], float(np.clip(0.8 * spare, 0.01, MOST_SLACK)),
                            self.parameters.seed)
        return None if parts is None else self.matched(parts[vertex], chosen)

    def chosen(self, count: int) -> Ints:
        """The nodes to use: those with tasks that cannot be moved, then the largest, then those with most running tasks."""
        running = np.bincount(self.home[self.home >= 0], minlength=self.problem.nodes)
        needed = np.isin(np.arange(self.problem.nodes), self.home[self.problem.pinned])
        order = np.lexsort((-running, -self.room, ~needed))
        return np.sort(order[self.room[order] > 0][:max(count, int(needed.sum()))])

    def matched(self, parts: Ints, chosen: Ints) -> Ints:
        """The node of each task, with parts matched to the chosen nodes so that most tasks stay where they are, and above all
        those that cannot be moved; a part goes to a node that is too small for it only if there is no other."""
        problem, k = self.problem, len(chosen)
        place = np.full(problem.nodes, NOWHERE)
        place[chosen] = np.arange(k)
        here = np.where(self.home >= 0, place[self.home], NOWHERE)
        stays = here >= 0
        worth = np.where(problem.pinned, problem.count, 1.0)[stays]
        stay = coo_array((worth, (parts[stays], here[stays])), shape=(k, k)).toarray()
        size = np.bincount(parts, weights=self.size, minlength=k)
        over = np.maximum(size[:, np.newaxis] - self.room[chosen], 0.0)
        stay -= over * (problem.count / max(float(self.room[chosen].min()), 1e-9))
        _, node = linear_sum_assignment(stay, maximize=True)
        nodes: Ints = chosen[node[parts]]
        return nodes

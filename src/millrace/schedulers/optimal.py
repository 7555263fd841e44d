"""Computes the least possible cost of traffic as an integer program: for small problems, and to judge the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array, vstack

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.even import Even
from millrace.schedulers.overload import FillLimits
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.partitioning.matching import also_placed
from millrace.schedulers.partitioning.relief import relief_first, relief_in_words
from millrace.schedulers.placing import complete, fewest_moves
from millrace.schedulers.problem import NOWHERE, ROUNDING, Floats, Ints, Objective, Problem
from millrace.schedulers.rearranging import with_less_overload

ConstraintRows = tuple[csr_array, Floats, Floats]  # matrix, least and most of each row

SAME = 1e-6  # share of all traffic: the solver's own tolerance, below which two values are equal


class Least(NamedTuple):
    """The best assignment found. `value` is inf if none was; no placement that fits has less traffic than `bound`."""

    assignment: Ints | None
    value: float
    bound: float

    @property
    def proven(self) -> bool:
        """True if it is the optimum."""
        return math.isfinite(self.value) and self.value - self.bound <= SAME * max(self.value, 1.0)


@dataclass(frozen=True)
class Optimal(Objective):
    """Minimises the cost of the traffic within the capacity of every node's CPU and every worker's core and loop, or if no
    placement keeps within that, within all that there is; and within the memory of every node. Exact, and therefore only for
    few tasks.

    Equal questions get different answers only if the time limit ends the search.
    """

    time_limit: float = parameter(20.0, "Time limit in seconds; the best solution so far is then used.", low=0.01, high=86_400)
    max_tasks: int = parameter(16, "Maximum number of tasks; beyond it the plan is kept, because an exact search could take "
                                   "minutes.", low=1)
    capacity: float = parameter(0.9, "Share of the CPU of nodes and workers, and of the workers' loops, that is used where "
                                     "possible; the rest is headroom.", low=0.01, high=1.0)

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = self.problem(graphs, cluster, load, plan)
        if problem.count and not len(problem.slot_numbers):
            return problem.no_slots()
        if not len(problem.rate) and not problem.needs.any():  # nothing is measured yet
            return Even(spread_back=False).schedule(graphs, cluster, load, plan)
        kept = complete(problem, problem.current, self.capacity)
        if problem.count > self.max_tasks:
            return problem.answer(kept, f"the plan stays: {problem.count} tasks are more than max_tasks = {self.max_tasks}. "
                                        f"Raise it, or use a scheduler that is not exact{also_placed(problem)}", self.capacity)
        share, within = self.capacity, _shrunk(problem, self.capacity)
        least = least_traffic(within, self.time_limit / 2, share)
        if least.assignment is None and share < 1:
            share, within = 1.0, problem
            least = least_traffic(problem, self.time_limit / 2)
        if least.assignment is None:
            return self.none_found(problem, kept, least)
        if fits(within, kept, share):
            now = problem.cost(kept)
            if now - least.value <= SAME * max(now, 1.0):
                return problem.answer(kept, f"the plan has {problem.in_words(now, 1)}, {_claim(least)}", share)
        relief = relief_first(problem, least.assignment, FillLimits.of(self.capacity))
        if relief is not least.assignment:
            return problem.answer(relief, relief_in_words(problem, relief), share)
        return problem.answer(least.assignment, f"{problem.in_words(least.value, 1)}, {_claim(least)}", share)

    def none_found(self, problem: Problem, kept: Ints, least: Least) -> SchedulingResult:
        """The less overloaded of two: the running plan, or tasks placed from scratch."""
        fresh = with_less_overload(problem, complete(problem, problem.pinned_only, self.capacity))
        best = min((kept, fresh), key=problem.excess)
        room = float((problem.node_capacity - problem.node_taken).clip(0).sum())
        memory = float((problem.node_memory - problem.node_memory_taken).clip(0).sum())
        why = ("no placement keeps every node and worker within its limits" if math.isinf(least.bound)
               else f"none was found within {self.time_limit:g} s that keeps every node and worker within its limits")
        return problem.answer(best, f"{why}: {problem.cpu.sum():,.0f} MHz, {problem.time.sum():,.1f} loops and "
                                    f"{problem.memory.sum():,.0f} MB needed, {room:,.0f} MHz, "
                                    f"{len(problem.slot_numbers)} loops and {memory:,.0f} MB on {problem.nodes} nodes; placed "
                                    "with little overload. Add a node, or lower the load")


def least_traffic(problem: Problem, time_limit: float = 20.0, capacity: float = 1.0) -> Least:
    """The cheapest assignment within `capacity` of the nodes' CPU, and of the core and loop of every worker, and within the
    nodes' memory, that the time limit allows. Pinned tasks stay. Equal nodes are exchanged so that few tasks move. No
    assignment and an infinite bound: none exists."""
    program = _Program(problem, _ProgramPlaces(problem, capacity))
    bound = 0.0
    while True:
        time_limit /= 2  # all rounds together stay within the limit; there is rarely a second one
        solution = milp(program.objective, integrality=program.integrality, bounds=program.bounds(),
                        constraints=program.constraints(), options={"time_limit": time_limit, "mip_rel_gap": 0.0})
        if solution.status == 2:
            return Least(None, math.inf, math.inf)
        if solution.mip_dual_bound is not None and math.isfinite(solution.mip_dual_bound):
            bound = max(bound, (solution.mip_dual_bound + program.constant) * program.unit)
        if solution.x is None:
            return Least(None, math.inf, bound)
        chosen = program.places_of(solution.x)
        if not program.forbid_overfull(chosen):
            break
    assignment = fewest_moves(problem, program.places.slots(chosen))
    value = problem.cost(assignment)
    return Least(assignment, value, value if solution.status == 0 else min(bound, value))  # 0: solved to the end


def _shrunk(problem: Problem, share: float) -> Problem:
    """The problem with tasks that fit a worker, but not within this share of one, as if they just did: they fill one alone."""
    most = problem.slot_limit.max(axis=1, initial=0.0)[:, np.newaxis]
    cpu, time = np.where(problem.needs <= most * ROUNDING, np.minimum(problem.needs, most * share), problem.needs)
    return replace(problem, cpu=cpu, time=time)


def fits(problem: Problem, assignment: Ints, capacity: float = 1.0) -> bool:
    """True if no node or worker that has one of the tasks has more than this share of what it can do."""
    return problem.excess(assignment, capacity) == 0


class _ProgramPlaces:
    """The places between which the program chooses. A place is a whole node where the limits of its workers cannot matter:
    one worker could take all that fits on the node. Else every slot of the node is a place."""

    def __init__(self, problem: Problem, capacity: float) -> None:
        self.problem = problem
        nothing = np.full(problem.count, NOWHERE, dtype=np.int64)
        self.capacity = capacity
        self.node_needs = np.stack([problem.cpu, problem.memory])
        self.node_has = np.stack([problem.node_capacity, problem.node_memory])
        self.node_room = (self.node_has * np.array([[capacity], [1.0]]) * ROUNDING
                          - np.stack([problem.node_taken, problem.node_memory_taken]))  # (CPU and memory, nodes)
        slot_room = problem.slot_limit * capacity * ROUNDING - problem.slot_used(nothing)
        self.slot: list[int] = []  # of each place; for a whole node the one that all its tasks get
        whole: list[bool] = []
        for node in range(problem.nodes):
            own = np.flatnonzero(problem.slot_node == node)
            needed = np.array([min(float(problem.cpu.sum()), max(float(self.node_room[0, node]), 0.0)), problem.time.sum()])
            free = own[(slot_room[:, own] >= needed[:, np.newaxis]).all(axis=0)]
            as_node = bool(len(free)) and (len(own) == 1 or not problem.between_workers)
            self.slot += [int(free[0])] if as_node else own.tolist()
            whole += [as_node] if as_node else [False] * len(own)
        self.whole = np.array(whole, dtype=bool)
        self.node: Ints = problem.slot_node[self.slot]
        self.room = slot_room[:, self.slot]  # (2, places)

    def __len__(self) -> int:
        return len(self.slot)

    def slots(self, chosen: Ints) -> Ints:
        """The slot of each task, given its place. On a whole node a task keeps the slot that it has there."""
        here = self.problem.nodes_of(self.problem.current) == self.node[chosen]
        slots: Ints = np.where(here & self.whole[chosen] & (self.problem.current >= 0), self.problem.current,
                               np.array(self.slot)[chosen])
        return slots if self.problem.excess(slots, self.capacity) == 0 else np.where(self.problem.pinned, self.problem.current,
                                                                      np.array(self.slot)[chosen])

    def of_pinned(self) -> dict[int, int]:
        """The place of each pinned task."""
        problem, position = self.problem, {slot: place for place, slot in enumerate(self.slot)}
        whole = {int(self.node[place]): place for place in np.flatnonzero(self.whole).tolist()}
        return {task: whole.get(int(problem.slot_node[slot]), position.get(slot, 0))
                for task, slot in zip(np.flatnonzero(problem.pinned).tolist(), problem.current[problem.pinned].tolist())}

    def kinds(self) -> list[tuple[list[int], list[int]]]:
        """Pairs of exchangeable groups of places, each with its successor: equal nodes, and equal slots of a node, without
        pinned tasks. A solution remains one when they change places."""
        fixed = set(self.of_pinned().values())
        by_node = [np.flatnonzero(self.node == node).tolist() for node in range(self.problem.nodes)]
        pairs = []
        alike: dict[tuple[object, ...], list[list[int]]] = {}
        for node, places in enumerate(by_node):
            if not fixed & set(places):
                rooms = tuple(map(tuple, self.room[:, places].T.tolist()))
                alike.setdefault((tuple(self.node_room[:, node].tolist()), rooms), []).append(places)
            equal: dict[tuple[float, ...], list[list[int]]] = {}
            for place in places:
                if place not in fixed:
                    equal.setdefault(tuple(self.room[:, place].tolist()), []).append([place])
            for group in equal.values():
                pairs += list(pairwise(group))
        if self.problem.distance is None:
            for nodes in alike.values():
                pairs += list(pairwise(nodes))
        return pairs


def _claim(least: Least) -> str:
    if least.proven:
        return "the least possible"
    gap = (least.value - least.bound) / max(least.value, 1e-9)
    return f"where at least {least.bound:,.1f} are needed: the time limit left a gap of {gap:.1%}"


class _Program:
    """The integer program. Variables: x[i, p] = 1 if task i is at place p; z[e, k] = 1 if both ends of edge e are on node k;
    y[e, p] = 1 if both are at place p; with distances u[e, k, l] = 1 if the ends of e are on nodes k and l. Minimises the
    cost of traffic: all of it less what is saved inside nodes and places."""

    def __init__(self, problem: Problem, places: _ProgramPlaces) -> None:
        self.problem, self.places = problem, places
        # Traffic in thousandths of the total: no number is huge or tiny, and the solver's absolute gap of 1e-6 is negligible.
        self.unit = max(float(problem.rate.sum()), 1e-9) / 1000
        rate = problem.rate / self.unit
        far = problem.distance is not None
        self.constant = 0.0 if far else float(rate.sum())
        edges, nodes = len(rate), problem.nodes
        self.xs, self.zs = problem.count * len(places), edges * nodes
        self.ys = edges * len(places) if problem.between_workers else 0
        self.us = edges * nodes * nodes if far else 0
        weight = problem.between_workers
        # Inside a node, but not in one worker, a unit costs `weight`; in one worker nothing.
        inside = (weight if far else weight - 1.0) * np.repeat(rate, nodes)
        parts = [np.zeros(self.xs), inside, -weight * np.repeat(rate, len(places)) if self.ys else np.zeros(0)]
        if problem.distance is not None:
            parts.append(np.outer(rate, problem.distance.ravel()).ravel())
        self.objective = np.concatenate(parts)
        self.integrality = np.concatenate([np.ones(self.xs), np.zeros(self.zs + self.ys + self.us)])
        self.rows: list[ConstraintRows] = [self.one_place_each(), *self.within_nodes(), *self.within_workers()]
        self.rows += self.both_ends()
        self.rows += self.equal_places_in_order()

    def bounds(self) -> Bounds:
        """Every variable is from 0 to 1; those of pinned tasks are fixed."""
        low, high = np.zeros(len(self.objective)), np.ones(len(self.objective))
        for task, place in self.places.of_pinned().items():
            high[task * len(self.places):(task + 1) * len(self.places)] = 0.0
            low[task * len(self.places) + place] = high[task * len(self.places) + place] = 1.0
        return Bounds(low, high)

    def constraints(self) -> LinearConstraint:
        return LinearConstraint(vstack([matrix for matrix, _, _ in self.rows]),
                                np.concatenate([low for _, low, _ in self.rows]),
                                np.concatenate([high for _, _, high in self.rows]))

    def x(self, task: Ints | int, place: Ints | int) -> Ints:
        return np.asarray(task * len(self.places) + place, dtype=np.int64)

    def matrix(self, rows: Ints, columns: Ints, values: Floats, count: int) -> csr_array:
        return coo_array((values, (rows, columns)), shape=(count, len(self.objective))).tocsr()

    def one_place_each(self) -> ConstraintRows:
        n, k = self.problem.count, len(self.places)
        return self.matrix(np.repeat(np.arange(n), k), np.arange(n * k), np.ones(n * k), n), np.ones(n), np.ones(n)

    def within_nodes(self) -> list[ConstraintRows]:
        """CPU and memory of every node."""
        task, place = np.divmod(np.arange(self.xs), len(self.places))
        nodes, rows = self.problem.nodes, []
        for need, room, has in zip(self.places.node_needs, self.places.node_room, self.places.node_has):
            scale = max(float(has.max(initial=0.0)), 1e-9)
            rows.append((self.matrix(self.places.node[place], np.arange(self.xs), need[task] / scale, nodes),
                         np.full(nodes, -np.inf), np.maximum(room, 0.0) / scale))
        return rows

    def within_workers(self) -> list[ConstraintRows]:
        """CPU and loop time of every place that is one slot."""
        task, place = np.divmod(np.arange(self.xs), len(self.places))
        count = len(self.places)
        rows = []
        for need, room, limit in zip(self.problem.needs, self.places.room, self.problem.slot_limit):
            scale = max(float(limit.max(initial=0.0)), 1e-9)
            most = np.where(self.places.whole, np.inf, np.maximum(room, 0.0) / scale)
            rows.append((self.matrix(place, np.arange(self.xs), need[task] / scale, count), np.full(count, -np.inf), most))
        return rows

    def both_ends(self) -> list[ConstraintRows]:
        """z[e, k] <= x of both ends of e on node k, y[e, p] <= x of both ends at place p, and the sums of u[e, k, l] over k
        and l are the x of its ends on l and k."""
        rows = []
        nodes, edges = self.problem.nodes, len(self.problem.rate)
        for end in (self.problem.left, self.problem.right):
            edge, place = np.divmod(np.arange(edges * len(self.places)), len(self.places))
            on_node = self.matrix(edge * nodes + self.places.node[place], self.x(end[edge], place), np.ones(len(edge)), self.zs)
            z = self.matrix(np.arange(self.zs), self.xs + np.arange(self.zs), np.ones(self.zs), self.zs)
            rows.append((z - on_node, np.full(self.zs, -np.inf), np.zeros(self.zs)))
            if self.ys:
                y = self.matrix(np.arange(self.ys), self.xs + self.zs + np.arange(self.ys), np.ones(self.ys), self.ys)
                at_place = self.matrix(np.arange(self.ys), self.x(end[edge], place), np.ones(self.ys), self.ys)
                rows.append((y - at_place, np.full(self.ys, -np.inf), np.zeros(self.ys)))
            if self.us:
                pair = np.arange(self.us)
                position = pair // nodes % nodes if end is self.problem.left else pair % nodes
                sums = self.matrix(pair // nodes ** 2 * nodes + position, self.xs + self.zs + self.ys + pair, np.ones(self.us),
                                   self.zs)
                rows.append((sums - on_node, np.zeros(self.zs), np.zeros(self.zs)))
        if self.us and self.problem.between_workers:  # z has a price then: it must not be lower than it is
            rows.append(self.same_node())
        return rows

    def same_node(self) -> ConstraintRows:
        """z[e, k] = u[e, k, k]."""
        edge, node = np.divmod(np.arange(self.zs), self.problem.nodes)
        same = self.xs + self.zs + self.ys + (edge * self.problem.nodes + node) * self.problem.nodes + node
        row, zero = np.arange(self.zs), np.zeros(self.zs)
        return (self.matrix(np.tile(row, 2), np.concatenate([self.xs + row, same]), np.repeat([1.0, -1.0], self.zs), self.zs),
                zero, zero)

    def equal_places_in_order(self) -> list[ConstraintRows]:
        """Breaks symmetry: of exchangeable places, a task uses the next only if an earlier task uses the one before."""
        rows = []
        for before, after in self.places.kinds():
            for task in range(self.problem.count):
                earlier = [self.x(np.arange(task), place) for place in before]
                columns = np.concatenate([*earlier, self.x(task, np.array(after))])
                values = np.append(np.full(task * len(before), -1.0), np.ones(len(after)))
                rows.append(self.at_most(columns, values, 0.0))
        return rows

    def at_most(self, columns: Ints, values: Floats, most: float) -> ConstraintRows:
        return self.matrix(np.zeros(len(columns), dtype=np.int64), columns, values, 1), np.full(1, -np.inf), np.full(1, most)

    def places_of(self, solution: Floats) -> Ints:
        chosen: Ints = solution[:self.xs].reshape(self.problem.count, len(self.places)).argmax(axis=1).astype(np.int64)
        return chosen

    def forbid_overfull(self, chosen: Ints) -> bool:
        """Corrects the solver's rounding: if a node or worker exceeds its limit by more than our tolerance, forbids those
        tasks together there. True if anything was forbidden."""
        problem, places, before = self.problem, self.places, len(self.rows)
        nodes = places.node[chosen]
        for node in np.unique(nodes).tolist():
            for need, room in zip(places.node_needs, places.node_room[:, node]):
                self.forbid(np.flatnonzero(nodes == node), np.flatnonzero(places.node == node), need, room)
        for place in np.unique(chosen[~places.whole[chosen]]).tolist():
            for need, room in zip(problem.needs, places.room[:, place]):
                self.forbid(np.flatnonzero(chosen == place), np.array([place]), need, room)
        return len(self.rows) > before

    def forbid(self, tasks: Ints, places: Ints, need: Floats, room: float) -> None:
        """Forbids that all of these tasks are at these places, if they need more than there is."""
        tasks = tasks[(need[tasks] > 0) & ~self.problem.pinned[tasks]] if need[tasks].sum() > max(room, 0.0) else tasks[:0]
        if len(tasks):
            columns = self.x(np.repeat(tasks, len(places)), np.tile(places, len(tasks)))
            self.rows.append(self.at_most(columns, np.ones(len(columns)), len(tasks) - 1.0))

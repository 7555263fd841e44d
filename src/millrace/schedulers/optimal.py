"""Computes the least possible traffic between nodes as an integer program: for small problems, and to judge the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from millrace.schedulers.matching import also_placed, match, moves
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.placing import complete, slots_within
from millrace.schedulers.problem import ROUNDING, Floats, Ints, Problem

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
class Optimal:
    """Minimises the traffic between nodes within every node's CPU. Exact, and therefore only for few tasks.

    Equal questions get different answers only if the time limit ends the search.
    """

    time_limit: float = parameter(20.0, "Time limit in seconds; the best solution so far is then used.", low=0.01, high=86_400)
    max_tasks: int = parameter(16, "Maximum number of tasks; beyond it the plan is kept, because an exact search could take "
                                   "minutes.", low=1)
    capacity: float = parameter(1.0, "Share of each node's CPU that may be used.", low=0.01, high=1.0)

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = Problem.of(graphs, cluster, load, plan)
        if problem.count and not len(problem.slot_numbers):
            return problem.no_slots()
        if not len(problem.rate) and not problem.cpu.any():  # nothing is measured yet
            return Even(spread_back=False).schedule(graphs, cluster, load, plan)
        kept = complete(problem, problem.current, self.capacity)
        if problem.count > self.max_tasks:
            return problem.answer(kept, f"the plan stays: {problem.count} tasks are more than max_tasks = {self.max_tasks}. "
                                        f"Raise it, or use a scheduler that is not exact{also_placed(problem)}", self.capacity)
        least = least_traffic(problem, self.time_limit, self.capacity)
        if least.assignment is None:
            return self.none_found(problem, kept, least)
        if fits(problem, kept, self.capacity):
            now = problem.inter_node(kept)
            if now - least.value <= SAME * max(now, 1.0):
                return problem.answer(kept, f"the plan has {now:,.1f} tuples/s between nodes, {_claim(least)}", self.capacity)
        return problem.answer(least.assignment, f"{least.value:,.1f} tuples/s between nodes, {_claim(least)}", self.capacity)

    def none_found(self, problem: Problem, kept: Ints, least: Least) -> SchedulingResult:
        """The less overloaded of two: the running plan, or all tasks placed from scratch."""
        fresh = complete(problem, np.full(problem.count, -1, dtype=np.int64), self.capacity)
        best = min((kept, fresh), key=lambda assignment: _excess(problem, assignment, self.capacity))
        room = float((problem.node_capacity * self.capacity - problem.node_taken).clip(0).sum())
        why = ("no placement keeps every node within its CPU" if math.isinf(least.bound)
               else f"none was found within {self.time_limit:g} s that keeps every node within its CPU")
        return problem.answer(best, f"{why}: {problem.cpu.sum():,.0f} MHz needed, {room:,.0f} MHz free on {problem.nodes} "
                                    "nodes; placed with little overload. Add a node, or lower the load", self.capacity)


def least_traffic(problem: Problem, time_limit: float = 20.0, capacity: float = 1.0) -> Least:
    """The assignment with the least traffic between nodes within `capacity` of their CPU that the time limit allows. Equal
    nodes are exchanged so that the fewest tasks move. No assignment and an infinite bound: none exists."""
    room = problem.node_capacity * capacity * ROUNDING - problem.node_taken
    program = _Program(problem, room)
    bound = 0.0
    while True:
        time_limit /= 2  # all rounds together stay within the limit; there is rarely a second one
        solution = milp(program.objective, integrality=program.integrality, bounds=Bounds(0, 1),
                        constraints=program.constraints(), options={"time_limit": time_limit, "mip_rel_gap": 0.0})
        if solution.status == 2:
            return Least(None, math.inf, math.inf)
        if solution.mip_dual_bound is not None and math.isfinite(solution.mip_dual_bound):
            bound = max(bound, (solution.mip_dual_bound + program.constant) * program.unit)
        if solution.x is None:
            return Least(None, math.inf, bound)
        nodes = program.nodes_of(solution.x)
        if not program.forbid_overfull(nodes):
            break
    assignment = slots_within(problem, _fewest_moves(problem, nodes, room))
    value = problem.inter_node(assignment)
    return Least(assignment, value, value if solution.status == 0 else min(bound, value))  # 0: solved to the end


def fits(problem: Problem, assignment: Ints, capacity: float = 1.0) -> bool:
    """True if no node that has one of the tasks is overloaded."""
    return _excess(problem, assignment, capacity) == 0


def _excess(problem: Problem, assignment: Ints, capacity: float) -> float:
    load, allowed = problem.node_load(assignment), problem.node_capacity * capacity
    over = np.where(load > allowed * ROUNDING, load - allowed, 0.0)
    used = np.bincount(problem.slot_node[assignment], weights=problem.cpu, minlength=problem.nodes) > 0
    return float(over[used].sum())


def _claim(least: Least) -> str:
    if least.proven:
        return "the least possible"
    gap = (least.value - least.bound) / max(least.value, 1e-9)
    return f"where at least {least.bound:,.1f} are needed: the time limit left a gap of {gap:.1%}"


def _fewest_moves(problem: Problem, nodes: Ints, room: Floats) -> Ints:
    """The same subgraphs on the nodes with room for them that need the fewest moves."""
    needs = np.bincount(nodes, weights=problem.cpu, minlength=problem.nodes)
    node_of = match(np.zeros(problem.nodes), (needs[np.newaxis, :] <= room[:, np.newaxis]) | (needs[np.newaxis, :] == 0),
                  moves(problem, nodes, problem.nodes), np.bincount(nodes, minlength=problem.nodes) > 0)
    return nodes if node_of is None else node_of[nodes]


class _Program:
    """The integer program. Variables: x[i, k] = 1 if task i is on node k; z[e, k] = 1 if both ends of edge e are. Maximises
    the traffic inside nodes."""

    def __init__(self, problem: Problem, room: Floats) -> None:
        self.problem, self.room = problem, room
        # Traffic in thousandths of the total: no number is huge or tiny, and the solver's absolute gap of 1e-6 is negligible.
        self.unit = max(float(problem.rate.sum()), 1e-9) / 1000
        rate = problem.rate / self.unit
        self.constant = float(rate.sum())
        self.xs, self.zs = problem.count * problem.nodes, len(rate) * problem.nodes
        self.objective = np.concatenate([np.zeros(self.xs), -np.repeat(rate, problem.nodes)])
        self.integrality = np.concatenate([np.ones(self.xs), np.zeros(self.zs)])
        self.rows: list[ConstraintRows] = [self.one_node_each(), self.within_cpu(), self.both_ends()]
        self.rows += self.equal_nodes_in_order()

    def constraints(self) -> LinearConstraint:
        return LinearConstraint(vstack([matrix for matrix, _, _ in self.rows]),
                                np.concatenate([low for _, low, _ in self.rows]),
                                np.concatenate([high for _, _, high in self.rows]))

    def x(self, task: Ints, node: Ints | int) -> Ints:
        return task * self.problem.nodes + node

    def matrix(self, rows: Ints, columns: Ints, values: Floats, count: int) -> csr_array:
        return coo_array((values, (rows, columns)), shape=(count, self.xs + self.zs)).tocsr()

    def one_node_each(self) -> ConstraintRows:
        n, k = self.problem.count, self.problem.nodes
        return self.matrix(np.repeat(np.arange(n), k), np.arange(n * k), np.ones(n * k), n), np.ones(n), np.ones(n)

    def within_cpu(self) -> ConstraintRows:
        n, k = self.problem.count, self.problem.nodes
        task, node = np.divmod(np.arange(n * k), k)
        scale = max(float(self.problem.node_capacity.max(initial=0.0)), 1e-9)
        return (self.matrix(node, np.arange(n * k), self.problem.cpu[task] / scale, k), np.full(k, -np.inf),
                np.maximum(self.room, 0.0) / scale)

    def both_ends(self) -> ConstraintRows:
        """z[e, k] <= x[i, k] for both ends i of e."""
        edge, node = np.divmod(np.arange(self.zs), self.problem.nodes)
        row, z = np.arange(2 * self.zs), self.xs + np.arange(self.zs)
        ends = np.concatenate([self.x(self.problem.left[edge], node), self.x(self.problem.right[edge], node)])
        return (self.matrix(np.tile(row, 2), np.concatenate([z, z, ends]),
                            np.concatenate([np.ones(2 * self.zs), -np.ones(2 * self.zs)]), 2 * self.zs),
                np.full(2 * self.zs, -np.inf), np.zeros(2 * self.zs))

    def equal_nodes_in_order(self) -> list[ConstraintRows]:
        """Breaks symmetry: of nodes with equal room, a task uses the next only if an earlier task uses the one before."""
        rows = []
        for room in np.unique(self.room):
            for before, node in pairwise(np.flatnonzero(self.room == room).tolist()):
                for task in range(self.problem.count):
                    columns = np.append(self.x(np.arange(task), before), task * self.problem.nodes + node)
                    rows.append(self.at_most(columns, np.append(np.full(task, -1.0), 1.0), 0.0))
        return rows

    def at_most(self, columns: Ints, values: Floats, most: float) -> ConstraintRows:
        return self.matrix(np.zeros(len(columns), dtype=np.int64), columns, values, 1), np.full(1, -np.inf), np.full(1, most)

    def nodes_of(self, solution: Floats) -> Ints:
        nodes: Ints = solution[:self.xs].reshape(self.problem.count, self.problem.nodes).argmax(axis=1).astype(np.int64)
        return nodes

    def forbid_overfull(self, nodes: Ints) -> bool:
        """Corrects the solver's rounding: if a node exceeds its limit by more than our tolerance, forbids those tasks
        together on any node that is no larger. True if anything was forbidden."""
        loads = np.bincount(nodes, weights=self.problem.cpu, minlength=self.problem.nodes)
        used = np.bincount(nodes, minlength=self.problem.nodes) > 0
        overfull = np.flatnonzero(used & (loads > np.maximum(self.room, 0.0)))
        for node in overfull:
            tasks = np.flatnonzero((nodes == node) & (self.problem.cpu > 0))
            for place in np.flatnonzero(self.room <= self.room[node]).tolist():
                self.rows.append(self.at_most(self.x(tasks, place), np.ones(len(tasks)), len(tasks) - 1.0))
        return len(overfull) > 0

"""OTD, the online task deployment of N-Storm (Zhang et al., JCST 2024): moves at most one task each time it runs.

The one best move is chosen by `_Workers.best_move`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import SchedulingResult
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.placing import affinity, place_homeless
from millrace.schedulers.problem import ROUNDING, Flags, Floats, Ints, Problem


@dataclass(frozen=True, slots=True)
class Otd:
    """Classifies workers as high, normal or low by their CPU and queues. If there are high and low workers, a task moves
    from the most loaded one to a low one. If there are only high ones, it warns that resources are insufficient. If there are
    only low ones, a task moves to where most of its traffic is, if that gains enough. Otherwise nothing moves.

    A balancing move leaves both workers below the load that the source had, and a move for the traffic makes no worker high,
    so under a constant load the moves come to an end.
    """

    high: float = parameter(0.8, "A worker counts as overloaded at or above this share of a core.", low=0.01, high=1.0)
    low: float = parameter(0.5, "A worker is low up to this share of a core, if its queues are short.", low=0.0, high=1.0)
    queue_high: int = parameter(10_000, "A worker counts as overloaded if a task there had more tuples waiting than this for "
                                        "two windows.", low=0)
    queue_low: int = parameter(1_000, "Queues are short up to this many tuples waiting for one task.", low=0)
    threshold: float = parameter(1.0, "Minimum traffic, in tuples per second, that a move without overload must make local.",
                                 low=0.0)

    PERIOD_SECONDS: ClassVar[float] = 5.0
    WEIGHS_ITSELF: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = Problem.of(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        if (problem.current < 0).any():  # tasks without a worker come first: their effect is not measured yet
            return place_homeless(problem)
        workers = _Workers.of(problem, load, self)
        if workers.high.any() and workers.low.any():
            move, reason = self._balance(workers)
        elif workers.high.any():
            move, reason = None, (f"resources are insufficient: {_numbers(workers, workers.high)} overloaded and no worker has "
                                  "a low load. Add workers, or lower the input")
        elif workers.low.any():
            move, reason = self._gather(workers)
        else:
            move, reason = None, "no worker is overloaded, and none has a low load"
        assignment = problem.current.copy()
        if move is not None:
            assignment[move.task] = move.slot
        return problem.answer(assignment, reason)

    def _balance(self, workers: _Workers) -> tuple[_Move | None, str]:
        """Moves one task away from the most loaded worker; from the next one if none of its tasks can move."""
        problem = workers.problem
        sources = np.flatnonzero(workers.high & ~workers.settling)
        if not len(sources) or not len(workers.targets()):
            return None, (f"{_numbers(workers, workers.high)} overloaded; waiting for the effect of a task that was started "
                          "or moved just now")
        for source in sources[np.lexsort((-workers.queue_floor[sources], -workers.share[sources]))]:
            tasks = np.flatnonzero((problem.current == source) & ~problem.settling & (problem.cpu > 0))
            move = workers.best_move(tasks, self.high, below=float(workers.share[source]))
            if move is not None:
                return move, (f"{workers.describe(move)}: worker {problem.slot_numbers[source]} used "
                              f"{workers.share[source]:.0%} of a core")
        return None, (f"resources are insufficient: {_numbers(workers, workers.high)} overloaded, and no task there can move "
                      "without overloading another worker as much. Add workers, or raise the parallelism")

    def _gather(self, workers: _Workers) -> tuple[_Move | None, str]:
        """Makes the one move that turns most traffic local."""
        problem = workers.problem
        tasks = np.flatnonzero(~problem.settling & ~workers.settling[problem.current])
        move = workers.best_move(tasks, self.high)
        enough = 0.0 if move is None else max(self.threshold, problem.task_traffic[move.task] * (ROUNDING - 1))
        if move is None or move.gain <= enough:
            best = "no task can move" if move is None else f"the best move would make {move.gain:,.1f} tuples/s local"
            return None, f"no worker is overloaded; {best}, and {self.threshold:,.1f} are required"
        return move, workers.describe(move)


class _Move(NamedTuple):
    """A task, its new slot, and the ASC: tuples per second that become local less those that cease to be."""

    task: int
    slot: int
    gain: float


@dataclass(frozen=True)
class _Workers:
    """CPU, queues and class of the workers, by slot."""

    problem: Problem
    share: Floats  # CPU, as a share of a core
    queue_floor: Floats  # the largest of its tasks
    high: Flags
    low: Flags
    settling: Flags  # a task there was just started or moved, so its load is not fully measured

    @classmethod
    def of(cls, problem: Problem, load: Mapping[str, Load], rules: Otd) -> _Workers:
        floor, queue = _queues(problem, load)
        share = problem.slot_load(problem.current) / np.maximum(problem.slot_capacity, 1e-9)
        settling = [problem.plans[name].placement.get(task) for name, measured in load.items() if name in problem.plans
                    for task in measured.settling]
        return cls(
            problem, share, floor,
            high=(share >= rules.high) | (floor > rules.queue_high),
            low=(share <= min(rules.low, rules.high)) & (share < rules.high) & (queue <= rules.queue_low),
            settling=np.isin(problem.slot_numbers, [slot for slot in settling if slot is not None]),
        )

    def best_move(self, tasks: Ints, high: float, below: float = np.inf) -> _Move | None:
        """The move of one of these tasks with the largest ASC; among equals, the one with the least loaded target. Targets
        are the least loaded low worker of each node; the load of a target must stay below `high` and `below`."""
        problem, targets = self.problem, self.targets()
        best: tuple[tuple[float, float, int, int], _Move] | None = None
        nodes = problem.nodes_of(problem.current)
        for task in tasks.tolist():
            after = self.share[targets] + problem.cpu[task] / np.maximum(problem.slot_capacity[targets], 1e-9)
            fits = (after < high) & (after * ROUNDING < below) & (targets != problem.current[task])
            if not fits.any():
                continue
            near = affinity(problem, task, nodes, problem.nodes)
            gain = near[problem.slot_node[targets]] - near[nodes[task]]
            for target in np.flatnonzero(fits & (gain == gain[fits].max())):
                rank = (-float(gain[target]), float(after[target]), task, int(targets[target]))
                if best is None or rank < best[0]:
                    best = rank, _Move(task, int(targets[target]), float(gain[target]))
        return best[1] if best else None

    def targets(self) -> Ints:
        """The least loaded low worker of each node."""
        low = np.flatnonzero(self.low & ~self.settling)
        low = low[np.lexsort((low, self.share[low], self.problem.slot_node[low]))]
        _, first = np.unique(self.problem.slot_node[low], return_index=True)
        return low[first]

    def describe(self, move: _Move) -> str:
        problem = self.problem
        name, task = problem.tasks[move.task]
        return (f"{task} of {name!r} goes from worker {problem.slot_numbers[problem.current[move.task]]} to "
                f"{problem.slot_numbers[move.slot]}, which makes {move.gain:,.1f} tuples/s more local")


def _queues(problem: Problem, load: Mapping[str, Load]) -> tuple[Floats, Floats]:
    """For each slot: the largest queue floor (the lower of the last two windows) and the largest queue of its tasks."""
    floor, queue = np.zeros(len(problem.slot_numbers)), np.zeros(len(problem.slot_numbers))
    np.maximum.at(floor, problem.current, problem.queue_floor)
    np.maximum.at(queue, problem.current, problem.queue)
    position = {number: place for place, number in enumerate(problem.slot_numbers.tolist())}
    names = {graph.name for graph in problem.graphs}
    for name, measured in load.items():
        places = problem.plans[name].placement if name in problem.plans and name not in names else {}
        for task, slot in places.items():
            if task in measured.tasks and slot in position:
                task_load, place = measured.tasks[task], position[slot]
                floor[place] = np.fmax(floor[place], task_load.queue_floor)
                queue[place] = np.fmax(queue[place], task_load.queue_length)
    return floor, queue


def _numbers(workers: _Workers, which: Flags) -> str:
    """The workers, in words, with a verb."""
    numbers = workers.problem.slot_numbers[which].tolist()
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    if len(numbers) == 1:
        return f"worker {numbers[0]} is"
    return f"workers {', '.join(map(str, numbers[:5]))}{more} are"

"""OTD, the online task deployment of N-Storm (Zhang et al., JCST 2024): at most one task moves each time it is asked."""

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
from millrace.schedulers.placing import affinity, housed
from millrace.schedulers.problem import ROUNDING, Flags, Floats, Ints, Problem


@dataclass(frozen=True, slots=True)
class Otd:
    """Workers are high, normal or low by their CPU and queues. High and low ones: a task goes from the most loaded to a low
    one. Only high ones: a warning that resources are not enough. Only low ones: a task goes to where most of its traffic
    is, if that gains enough. Neither: nothing.

    A balancing move leaves both workers below what the source had, and a move for the traffic makes no worker high, so on
    a load that stays the same the moves come to an end.
    """

    high: float = parameter(0.8, "A worker is high from this share of a core on.", low=0.01, high=1.0)
    low: float = parameter(0.5, "A worker is low up to this share of a core, if its queues are short.", low=0.0, high=1.0)
    queue_high: int = parameter(10_000, "A worker is high if a task there had more tuples waiting than this for two windows.",
                                low=0)
    queue_low: int = parameter(1_000, "Queues are short up to this many tuples waiting for one task.", low=0)
    threshold: float = parameter(1.0, "Tuples a second that must become local for a move that is made for the traffic only.",
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
        if (problem.current < 0).any():  # they come first: what they will change is not measured yet
            return housed(problem)
        workers = _Workers.of(problem, load, self)
        if workers.high.any() and workers.low.any():
            move, reason = self._balance(workers)
        elif workers.high.any():
            move, reason = None, (f"resources are not enough: {_named(workers, workers.high)} too much to do and no "
                                  "worker has little. Add workers, or lower the input")
        elif workers.low.any():
            move, reason = self._gather(workers)
        else:
            move, reason = None, "no worker has too much to do, and none has little"
        assignment = problem.current.copy()
        if move is not None:
            assignment[move.task] = move.slot
        return problem.answer(assignment, reason)

    def _balance(self, workers: _Workers) -> tuple[_Move | None, str]:
        """One task away from the most loaded worker; from the next one if it has none that could go."""
        problem = workers.problem
        sources = np.flatnonzero(workers.high & ~workers.left_alone)
        if not len(sources) or not len(workers.targets()):
            return None, (f"{_named(workers, workers.high)} too much to do; a task was started or moved just now, and what "
                          "that changes is waited for")
        for source in sources[np.lexsort((-workers.queue_floor[sources], -workers.share[sources]))]:
            tasks = np.flatnonzero((problem.current == source) & ~problem.settling & (problem.cpu > 0))
            move = workers.best(tasks, self.high, below=float(workers.share[source]))
            if move is not None:
                return move, (f"{workers.told(move)}: worker {problem.slot_numbers[source]} used "
                              f"{workers.share[source]:.0%} of a core")
        return None, (f"resources are not enough: {_named(workers, workers.high)} too much to do, and no task there "
                      "can go without making another worker as bad. Add workers, or raise the parallelism")

    def _gather(self, workers: _Workers) -> tuple[_Move | None, str]:
        """The one move that makes most traffic local."""
        problem = workers.problem
        tasks = np.flatnonzero(~problem.settling & ~workers.left_alone[problem.current])
        move = workers.best(tasks, self.high)
        enough = 0.0 if move is None else max(self.threshold, problem.task_traffic[move.task] * (ROUNDING - 1))
        if move is None or move.gain <= enough:
            best = "none could move" if move is None else f"the best move would make {move.gain:,.1f} tuples/s local"
            return None, f"no worker has too much to do; {best}, and {self.threshold:,.1f} are asked for"
        return move, workers.told(move)


class _Move(NamedTuple):
    """A task, the slot that it goes to, and the ASC: the tuples a second that become local less those that stop being so."""

    task: int
    slot: int
    gain: float


@dataclass(frozen=True)
class _Workers:
    """How the workers are, by slot."""

    problem: Problem
    share: Floats  # CPU, as a share of a core
    queue_floor: Floats  # the largest of its tasks
    high: Flags
    low: Flags
    left_alone: Flags  # a task there has just been started or moved: what is known of it is not the whole of it

    @classmethod
    def of(cls, problem: Problem, load: Mapping[str, Load], rules: Otd) -> _Workers:
        floor, queue = _queues(problem, load)
        share = problem.slot_load(problem.current) / np.maximum(problem.slot_capacity, 1e-9)
        settling = [problem.plans[name].placement.get(task) for name, found in load.items() if name in problem.plans
                    for task in found.settling]
        return cls(
            problem, share, floor,
            high=(share >= rules.high) | (floor > rules.queue_high),
            low=(share <= min(rules.low, rules.high)) & (share < rules.high) & (queue <= rules.queue_low),
            left_alone=np.isin(problem.slot_numbers, [slot for slot in settling if slot is not None]),
        )

    def best(self, tasks: Ints, high: float, below: float = np.inf) -> _Move | None:
        """The move of one of these tasks with the largest ASC; of equals, the one that leaves the target with least. The
        targets are the least loaded low worker of each node; one may not become high, nor get to `below`."""
        problem, targets = self.problem, self.targets()
        found: tuple[tuple[float, float, int, int], _Move] | None = None
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
                if found is None or rank < found[0]:
                    found = rank, _Move(task, int(targets[target]), float(gain[target]))
        return found[1] if found else None

    def targets(self) -> Ints:
        """The least loaded low worker of each node."""
        low = np.flatnonzero(self.low & ~self.left_alone)
        low = low[np.lexsort((low, self.share[low], self.problem.slot_node[low]))]
        _, first = np.unique(self.problem.slot_node[low], return_index=True)
        return low[first]

    def told(self, move: _Move) -> str:
        problem = self.problem
        name, task = problem.tasks[move.task]
        return (f"{task} of {name!r} goes from worker {problem.slot_numbers[problem.current[move.task]]} to "
                f"{problem.slot_numbers[move.slot]}, which makes {move.gain:,.1f} tuples/s more local")


def _queues(problem: Problem, load: Mapping[str, Load]) -> tuple[Floats, Floats]:
    """For each slot, of the tasks there: the largest queue of the last two windows' lower ones, and the largest now."""
    floor, queue = np.zeros(len(problem.slot_numbers)), np.zeros(len(problem.slot_numbers))
    np.maximum.at(floor, problem.current, problem.queue_floor)
    np.maximum.at(queue, problem.current, problem.queue)
    position = {number: place for place, number in enumerate(problem.slot_numbers.tolist())}
    asked = {graph.name for graph in problem.graphs}
    for name, found in load.items():
        places = problem.plans[name].placement if name in problem.plans and name not in asked else {}
        for task, slot in places.items():
            if task in found.tasks and slot in position:
                seen, place = found.tasks[task], position[slot]
                floor[place] = np.fmax(floor[place], seen.queue_floor)
                queue[place] = np.fmax(queue[place], seen.queue_length)
    return floor, queue


def _named(workers: _Workers, which: Flags) -> str:
    numbers = workers.problem.slot_numbers[which].tolist()
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    if len(numbers) == 1:
        return f"worker {numbers[0]} has"
    return f"workers {', '.join(map(str, numbers[:5]))}{more} have"

"""OTD, the online task deployment of N-Storm (Zhang et al., JCST 2024): moves one task each time it runs, the best.

That move is chosen by `_Workers.best_move`. Several tasks move at once only to relieve an overload that no single move
relieves.
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
from millrace.schedulers.overload import FillLimits
from millrace.schedulers.parameters import check_parameters, parameter
from millrace.schedulers.partitioning.relief import fitted, relief_in_words, relieves_overload
from millrace.schedulers.placing import place_homeless, slot_saving
from millrace.schedulers.problem import COST, ROUNDING, Flags, Floats, Ints, Objective, Problem


@dataclass(frozen=True, slots=True)
class Otd(Objective):
    """Classifies workers as high, normal or low by their CPU, the time of their loop, and queues. If there are high and low
    workers, a task moves from the most loaded one to a low one. If there are only high ones, it warns that resources are
    insufficient. If there are only low ones, a task moves to where most of its traffic is, if that gains enough. Otherwise
    nothing moves. Workers that are less than 0.05 above `high`, or have no task that could move, do not keep others from
    moving tasks for their traffic.

    With `nodes`, unlike in the paper, overloaded nodes come first, and a worker for which there is no such move is relieved,
    too: of the few moves that together relieve them, the one that gains most traffic and relieves something by itself is made,
    or if there is none, all of them.

    A balancing move leaves both workers below the load that the source had, and a move for the traffic makes no worker high,
    so under a constant load the moves come to an end.
    """

    high: float = parameter(0.8, "A worker counts as overloaded at or above this share of a core, or of its loop's time.",
                            low=0.01, high=1.0)
    low: float = parameter(0.5, "A worker is low up to this share of a core and of its loop's time, if its queues are short.",
                           low=0.0, high=1.0)
    queue_high: int = parameter(10_000, "A worker counts as overloaded if a task there had more tuples waiting than this for "
                                        "two windows.", low=0)
    queue_low: int = parameter(1_000, "Queues are short up to this many tuples waiting for one task.", low=0)
    threshold: float = parameter(1.0, "Minimum traffic, in tuples per second, that a move without overload must make local.",
                                 low=0.0)

    nodes: bool = parameter(True, "Also relieve nodes, and workers for which there is no single move, and fill no node beyond "
                                  "high by a move. False: as in the paper.")

    PERIOD_SECONDS: ClassVar[float] = 5.0
    WEIGHS_ITSELF: ClassVar[bool] = True
    COOL_DOWN_SECONDS: ClassVar[float] = 0.0  # it waits by itself for the effect of a move
    ESTIMATOR: ClassVar[str] = "last"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def packing(self) -> float:
        """Share of a node or worker that it fills."""
        return self.high

    @property
    def limits(self) -> FillLimits:
        return FillLimits.of(self.high)

    def schedule(self, graphs: Sequence[TopologyGraph], cluster: Cluster, load: Mapping[str, Load],
                 plan: Mapping[str, Plan]) -> SchedulingResult:
        problem = self.problem(graphs, cluster, load, plan)
        if problem.count and not problem.nodes:
            return problem.no_slots()
        if (problem.current < 0).any():  # tasks without a worker come first: their effect is not measured yet
            return place_homeless(problem, self.packing)
        workers = _Workers.of(problem, load, self)
        move, reason = self._published(workers)
        assignment = problem.current.copy()
        if move is not None:
            assignment[move.task] = move.slot
        if self.nodes and self._leaves_overload(problem, assignment):
            relief = self._relief(workers)
            if relief is not None:
                return problem.answer(*relief)
        return problem.answer(assignment, reason)

    def _published(self, workers: _Workers) -> tuple[_Move | None, str]:
        """The move of the paper's algorithm, or None, and the reason."""
        if workers.high.any() and workers.low.any():
            return self._relieve(workers)
        if workers.high.any():
            return None, (f"resources are insufficient: {_numbers(workers, workers.high)} overloaded and no worker has a low "
                          "load. Add workers, or lower the input")
        if workers.low.any():
            return self._gather(workers)
        return None, "no worker is overloaded, and none has a low load"

    def _leaves_overload(self, problem: Problem, assignment: Ints) -> bool:
        """True if a node is overloaded, or a worker and this assignment relieves nothing."""
        share = self.limits.overload
        over = problem.excesses(problem.current, share) > 0
        return bool(over[len(problem.slot_numbers):].any()
                    or (over.any() and not relieves_overload(problem, problem.current, assignment, share)))

    def _relief(self, workers: _Workers) -> tuple[Ints, str] | None:
        """The moves that relieve nodes and workers: of those that relieve something by themselves the one that gains most
        traffic, else all of them. None if there are none, or a worker that they concern is settling."""
        problem, limits = workers.problem, self.limits
        planned = fitted(problem, problem.current, limits)
        tasks = np.flatnonzero(planned != problem.current)
        if workers.settling[np.append(planned[tasks], problem.current[tasks])].any():
            return None
        for move in sorted((workers.move_of(task, int(planned[task])) for task in tasks.tolist()), key=lambda move: -move.gain):
            alone = problem.current.copy()
            alone[move.task] = move.slot
            if relieves_overload(problem, problem.current, alone, limits.overload):
                return alone, f"{workers.describe(move)}: {relief_in_words(problem, alone)}"
        if relieves_overload(problem, problem.current, planned, limits.overload):
            return planned, relief_in_words(problem, planned)
        return None

    def _relieve(self, workers: _Workers) -> tuple[_Move | None, str]:
        """Moves a task away from a high worker. One that is only a little above `high` is not yet overloaded where plans are
        weighed, so a move for the traffic goes first, and so it does if no task of a high worker can move."""
        if workers.waiting.any():
            return self._balance(workers)
        if not (workers.high & (workers.share >= self.limits.overload)).any():
            move, reason = self._gather(workers)
            return (move, reason) if move is not None else self._balance(workers)
        move, reason = self._balance(workers)
        if move is None and (workers.high & ~workers.settling).any():
            move, more = self._gather(workers)
            reason = reason if move is None else f"{more}; {reason}"
        return move, reason

    def _balance(self, workers: _Workers) -> tuple[_Move | None, str]:
        """Moves one task away from the most loaded worker; from the next one if none of its tasks can move."""
        problem = workers.problem
        sources = np.flatnonzero(workers.high & ~workers.settling)
        if not len(sources) or not len(workers.targets()):
            return None, (f"{_numbers(workers, workers.high)} overloaded; waiting for the effect of a task that was started "
                          "or moved just now")
        for source in sources[np.lexsort((-workers.queue_floor[sources], -workers.share[sources]))]:
            tasks = np.flatnonzero((problem.current == source) & workers.free & (problem.needs > 0).any(axis=0))
            move = workers.best_move(tasks, self.high, below=float(workers.share[source]))
            if move is not None:
                return move, f"{workers.describe(move)}: {workers.use_of(int(source))}"
        return None, (f"resources are insufficient: {_numbers(workers, workers.high)} overloaded, and no task there can move "
                      "without overloading another worker as much. Add workers, or raise the parallelism")

    def _gather(self, workers: _Workers) -> tuple[_Move | None, str]:
        """Makes the one move that turns most traffic local."""
        problem = workers.problem
        tasks = np.flatnonzero(workers.free & ~workers.settling[problem.current])
        move = workers.best_move(tasks, self.high)
        enough = 0.0 if move is None else max(self.threshold, problem.task_traffic[move.task] * (ROUNDING - 1))
        if move is None or move.gain <= enough:
            best = "no task can move" if move is None else f"the best move {workers.effect(move)}"
            return None, f"no worker is overloaded; {best}, and {self.threshold:,.1f} are required"
        return move, workers.describe(move)


class _Move(NamedTuple):
    """A task, its new slot, and the ASC: the traffic that becomes local less that which ceases to be."""

    task: int
    slot: int
    gain: float


@dataclass(frozen=True)
class _Workers:
    """CPU, queues and class of the workers, by slot."""

    problem: Problem
    share: Floats  # the larger of its shares of a core and of its loop
    queue_floor: Floats  # the largest of its tasks
    high: Flags
    low: Flags
    waiting: Flags  # high by its queue, whatever its share
    settling: Flags  # a task there was just started or moved, so its load is not fully measured
    node_spare: Floats  # (CPU and memory, nodes): what a task from another node may use of each

    @classmethod
    def of(cls, problem: Problem, load: Mapping[str, Load], rules: Otd) -> _Workers:
        floor, queue = _queues(problem, load)
        share = np.max(problem.slot_used(problem.current) / np.maximum(problem.slot_limit, 1e-9), axis=0)
        settling = [problem.plans[name].placement.get(task) for name, measured in load.items() if name in problem.plans
                    for task in measured.settling]
        return cls(
            problem, share, floor,
            high=(share >= rules.high) | (floor > rules.queue_high),
            waiting=floor > rules.queue_high,
            low=(share <= min(rules.low, rules.high)) & (share < rules.high) & (queue <= rules.queue_low),
            settling=np.isin(problem.slot_numbers, [slot for slot in settling if slot is not None]),
            # A move that fills a node further than workers may be is refused as an overload, again and again.
            node_spare=np.stack([
                problem.node_capacity * (rules.high if rules.nodes else 1.0) * ROUNDING - problem.node_load(problem.current),
                problem.node_memory * ROUNDING - problem.node_memory_used(problem.current)]),
        )

    @property
    def free(self) -> Flags:
        """Tasks that may move: neither pinned nor settling."""
        return ~self.problem.pinned & ~self.problem.settling

    def best_move(self, tasks: Ints, high: float, below: float = np.inf) -> _Move | None:
        """The move of one of these tasks with the largest ASC; among equals, the one with the least loaded target. The load of
        a target must stay below `high` and `below`, and another node must have the CPU and memory to spare."""
        problem, targets = self.problem, self.targets()
        best: tuple[tuple[float, float, int, int], _Move] | None = None
        limit = np.maximum(problem.slot_limit[:, targets], 1e-9)
        used, target_nodes = problem.slot_used(problem.current)[:, targets], problem.slot_node[targets]
        for task in tasks.tolist():
            present = problem.current[task]
            after = np.max((used + problem.needs[:, task, np.newaxis]) / limit, axis=0)
            same_node = target_nodes == problem.slot_node[present]
            fits = (after < high) & (after * ROUNDING < below) & (targets != present)
            fits &= same_node | ((problem.cpu[task] <= self.node_spare[0, target_nodes])
                                 & (problem.memory[task] <= self.node_spare[1, target_nodes]))
            if not fits.any():
                continue
            saved = slot_saving(problem, task, problem.current, np.append(targets, present))
            gain = saved[:-1] - saved[-1]
            for target in np.flatnonzero(fits & (gain == gain[fits].max())):
                rank = (-float(gain[target]), float(after[target]), task, int(targets[target]))
                if best is None or rank < best[0]:
                    best = rank, _Move(task, int(targets[target]), float(gain[target]))
        return best[1] if best else None

    def move_of(self, task: int, slot: int) -> _Move:
        """The move of this task to this slot."""
        saved = slot_saving(self.problem, task, self.problem.current, np.array([slot, self.problem.current[task]]))
        return _Move(task, slot, float(saved[0] - saved[1]))

    def targets(self) -> Ints:
        """The least loaded low worker of each node; all low ones if traffic between workers of a node counts."""
        low = np.flatnonzero(self.low & ~self.settling)
        if self.problem.between_workers:
            return low
        low = low[np.lexsort((low, self.share[low], self.problem.slot_node[low]))]
        _, first = np.unique(self.problem.slot_node[low], return_index=True)
        return low[first]

    def describe(self, move: _Move) -> str:
        problem = self.problem
        name, task = problem.tasks[move.task]
        return (f"{task} of {name!r} goes from worker {problem.slot_numbers[problem.current[move.task]]} to "
                f"{problem.slot_numbers[move.slot]}, which {self.effect(move, 'more ')}")

    def effect(self, move: _Move, more: str = "") -> str:
        """The gain of the move, in words."""
        if self.problem.minimise == COST or self.problem.between_workers:
            return f"saves {self.problem.in_words(move.gain, 1)}"
        return f"makes {move.gain:,.1f} {self.problem.minimise}/s {more}local"

    def use_of(self, slot: int) -> str:
        """The use of a worker, in words."""
        core, loop = self.problem.slot_used(self.problem.current)[:, slot] / np.maximum(self.problem.slot_limit[:, slot], 1e-9)
        what = f"used {core:.0%} of a core" if core >= loop else f"was in user code for {loop:.0%} of the time"
        return f"worker {self.problem.slot_numbers[slot]} {what}"


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

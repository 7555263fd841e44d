"""Compares schedulers on the same situations, with each other and with the optimum where that is known.

A scheduler is asked again after each of its plans, as in a live cluster, until it has none: one that moves a single task each
time gets as far as it would there. The schedule generator decides about every plan with its usual thresholds. Two results
count: the last plan that the scheduler wanted, and the one that is in force after the generator's last yes.

The ratio is the traffic between nodes, in tuples, over the least possible within the CPU and memory of nodes and the core and
loop of workers. It is defined only if that least is above 0; situations where it is 0 are counted separately, with the number
that a scheduler solved (0 as well). A plan that overloads a node or worker may go below the least, so it has no ratio: it is
counted as overloaded and left out of the mean. The means of two schedulers may therefore cover different situations; the common
ratio covers those in which every scheduler has one.

If a scheduler minimises bytes or the cost of links, the plans of all are measured in these units, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.control.scheduling.schedule_generator import ASKED, ENACTED, Choice, Policy, ScheduleGenerator
from millrace.model.frozen import FrozenMap
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, Scheduler, SchedulingResult
from millrace.schedulers.optimal import Least
from millrace.schedulers.problem import BYTES, COST, MINIMISED, TUPLES, Figures, Ints, Problem

OTHER_UNITS = (BYTES, COST)
NO_TRAFFIC = 1e-6  # tuples per second: less counts as none
MOST_STEPS = 200  # times that a scheduler is asked about one situation

ReadClock = Callable[[], float]  # seconds


@dataclass(frozen=True)
class Outcome:
    """The result of one scheduler in one situation. `after`: of the last plan that it wanted; None if it gave none, and `error`
    has the reason. `enacted`: of the plan that is in force in the end, if the schedule generator decides as in a live cluster.
    `steps`: plans that it made. `weights`: of the last plan, its traffic between nodes in other units than tuples."""

    before: Figures
    after: Figures | None
    overloaded: bool
    seconds: float  # of its first answer
    reason: str
    optimum: float | None = None  # tuples per second; None if it is not known
    error: str | None = None
    enacted: Figures | None = None
    enacted_overloaded: bool = False
    steps: int = 0
    weights: Mapping[str, float] = field(default_factory=FrozenMap)

    @property
    def ratio(self) -> float | None:
        """Traffic between nodes over the optimum; None if they are not comparable."""
        return self._ratio(self.after, self.overloaded)

    @property
    def enacted_ratio(self) -> float | None:
        """The same of the plan that is in force in the end."""
        return self._ratio(self.enacted, self.enacted_overloaded)

    def _ratio(self, figures: Figures | None, overloaded: bool) -> float | None:
        if figures is None or overloaded or self.optimum is None or self.optimum <= NO_TRAFFIC:
            return None
        return figures.inter_node / self.optimum

    @property
    def solved_zero(self) -> bool:
        """True if the optimum is no traffic between nodes, and the plan has none."""
        return (self.optimum is not None and self.optimum <= NO_TRAFFIC and self.after is not None and not self.overloaded
                and self.after.inter_node <= NO_TRAFFIC)


def units_of(schedulers: Iterable[Scheduler]) -> tuple[str, ...]:
    """The units that any of the schedulers minimises, beside tuples."""
    used = {getattr(scheduler, "minimise", TUPLES) for scheduler in schedulers}
    return tuple(unit for unit in MINIMISED if unit in used and unit != TUPLES)


def outcome(scheduler: Scheduler, situation: Situation, clock: ReadClock, least: Least | None = None,
            units: Sequence[str] = ()) -> Outcome:
    """Runs one scheduler until it has no more plans, or one is refused. An exception is part of the outcome and does not end
    the comparison. `units`: measure the traffic in these, too."""
    trial = _SchedulerTrial(scheduler, situation, least, units)
    for step in range(MOST_STEPS):
        started, now = clock(), trial.situation
        try:
            answer = scheduler.schedule(now.graphs, now.cluster, now.load, now.plan)
        except Exception as error:  # it may be a user's scheduler
            trial.fail(f"{type(error).__name__}: {error}")
            answer = None
        if not step:
            trial.result = replace(trial.result, seconds=clock() - started)
        if answer is None or not trial.follow(answer):
            break
    return trial.result


class _SchedulerTrial:
    """A scheduler in one situation, plan by plan."""

    def __init__(self, scheduler: Scheduler, situation: Situation, least: Least | None, units: Sequence[str]) -> None:
        self.situation = situation
        self.in_units = {unit: Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan, unit)
                         for unit in units}
        self.problem = problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
        self.generator = ScheduleGenerator(Choice.of("compared", scheduler), Policy())
        self.assignment = problem.current
        before, over = problem.figures(problem.current), problem.excess(problem.current) > 0
        self.result = Outcome(before, before, over, 0.0, "", least.value if least is not None and least.proven else None,
                              enacted=before, enacted_overloaded=over, weights=self.weights(problem.current))

    def weights(self, assignment: Ints) -> dict[str, float]:
        """The traffic between nodes in each of the units."""
        return {unit: problem.cost(assignment) for unit, problem in self.in_units.items()}

    def fail(self, error: str) -> None:
        self.result = replace(self.result, after=None, overloaded=False, error=error, weights={})

    def follow(self, answer: SchedulingResult) -> bool:
        """Take the answer; False if the scheduler is not to be asked again."""
        if not isinstance(answer, NoChange) or not self.result.steps:
            self.result = replace(self.result, reason=answer.reason)
        if isinstance(answer, CannotPlace):
            self.fail(answer.reason)
            return False
        plans = {**self.situation.plan, **answer.plans} if isinstance(answer, NewPlan) else self.situation.plan
        assignment = assignment_of(self.situation, plans)
        if (assignment < 0).any():
            self.fail(f"{int((assignment < 0).sum())} tasks have no live slot: {answer.reason}")
            return False
        if not isinstance(answer, NewPlan) or (assignment == self.assignment).all():
            return False
        return self._weigh(answer, plans, assignment)

    def _weigh(self, answer: NewPlan, plans: Mapping[str, Plan], assignment: Ints) -> bool:
        """Measure the plan, and enact it if the generator would."""
        figures, over = self.problem.figures(assignment), self.problem.excess(assignment) > 0
        self.result = replace(self.result, after=figures, overloaded=over, steps=self.result.steps + 1,
                              weights=self.weights(assignment))
        if self.generator.decide(self.situation, answer, ASKED, 0.0).outcome != ENACTED:
            return False
        if self.generator.accepted is not answer and self.generator.accepted is not None:  # a part of it
            plans = {**self.situation.plan, **self.generator.accepted.plans}
            assignment = assignment_of(self.situation, plans)
            figures, over = self.problem.figures(assignment), self.problem.excess(assignment) > 0
        self.result = replace(self.result, enacted=figures, enacted_overloaded=over)
        self.situation, self.assignment = replace(self.situation, plan=plans), assignment
        return True


def assignment_of(situation: Situation, plans: Mapping[str, Plan]) -> Ints:
    """The slots that these plans give the situation's tasks."""
    return Problem.of(situation.graphs, situation.cluster, {}, plans).current


def in_common(outcomes: Mapping[str, Sequence[Outcome]]) -> set[int]:
    """The situations in which every scheduler has a ratio."""
    count = max(map(len, outcomes.values()), default=0)
    return {number for number in range(count) if all(each[number].ratio is not None for each in outcomes.values())}


def best_of(outcomes: Mapping[str, Sequence[Outcome]]) -> list[float | None]:
    """The least traffic that any scheduler reached without an overload, in each situation. Where the optimum is not known, it
    takes its place."""
    return [min((result.after.inter_node for result in results if result.after is not None and not result.overloaded),
                default=None) for results in zip(*outcomes.values())]


def summary(outcomes: Sequence[Outcome], common: set[int] | None = None, best: Sequence[float | None] = ()) -> dict[str, Any]:
    """One scheduler over many situations: means, and counts of overloads and failures. `common`: the situations for the common
    ratio. `best`: the least traffic of all schedulers in each situation."""
    rated = [(result, least) for result, least in zip(outcomes, best) if least is not None and least > NO_TRAFFIC]
    to_best = [result.after.inter_node / least for result, least in rated if result.after is not None and not result.overloaded]
    kept_to_best = [result.enacted.inter_node / least for result, least in rated
                    if result.enacted is not None and not result.enacted_overloaded]
    ratios = [result.ratio for result in outcomes if result.ratio is not None]
    shared = [result.ratio for number, result in enumerate(outcomes) if result.ratio is not None and number in (common or ())]
    fair = [(result.after.inter_node, result.optimum) for result in outcomes
            if result.ratio is not None and result.after is not None and result.optimum is not None]
    placed = [result.after for result in outcomes if result.after is not None]
    kept = [result.enacted_ratio for result in outcomes if result.enacted_ratio is not None]
    return {
        "mean_ratio": _mean(ratios), "worst_ratio": max(ratios, default=None), "compared": len(ratios),
        "ratio_of_sums": sum(sent for sent, _ in fair) / sum(least for _, least in fair) if fair else None,
        "common_ratio": _mean(shared),
        "zero_solved": sum(result.solved_zero for result in outcomes),
        "overloaded": sum(result.overloaded for result in outcomes),
        "failed": sum(result.error is not None for result in outcomes),
        "nodes_used": _mean([figures.nodes_used for figures in placed]),
        "moved": _mean([figures.moved for figures in placed]),
        "inter_node": _mean([figures.inter_node for figures in placed]),
        "inter_process": _mean([figures.inter_process for figures in placed]),
        "largest_load": _mean([figures.largest_load for figures in placed]),
        "plan_ms": _mean([result.seconds * 1000 for result in outcomes]),
        "error": next((result.error for result in outcomes if result.error is not None), None),
        "enacted": sum(result.enacted is not None and result.enacted.moved > 0 for result in outcomes),
        "enacted_ratio": _mean(kept), "enacted_overloaded": sum(result.enacted_overloaded for result in outcomes),
        "steps": _mean([result.steps for result in outcomes]), "best_ratio": _mean(to_best),
        "enacted_best_ratio": _mean(kept_to_best),
        **{unit: _mean([result.weights[unit] for result in outcomes if unit in result.weights]) for unit in OTHER_UNITS},
    }


def details(result: Outcome) -> dict[str, Any]:
    """One scheduler in one situation, as plain data for output."""
    after, enacted = result.after, result.enacted
    return {
        "inter_node": after and after.inter_node, "inter_process": after and after.inter_process,
        "nodes_used": after and after.nodes_used, "largest_load": after and after.largest_load,
        "moved": after and after.moved, "plan_ms": result.seconds * 1000, "ratio": result.ratio,
        "overloaded": result.overloaded, "reason": result.reason, "error": result.error, "steps": result.steps,
        "enacted": enacted is not None and enacted.moved > 0, "enacted_inter_node": enacted and enacted.inter_node,
        "enacted_moved": enacted and enacted.moved,
        **{unit: result.weights.get(unit) for unit in OTHER_UNITS},
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

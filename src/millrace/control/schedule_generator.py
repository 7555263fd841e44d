"""The schedule generator, decided: when to ask the scheduler, whether its answer is worth the moves, what came of it.

Nothing here runs a scheduler or moves a task: whoever drives it asks `due`, runs the scheduler elsewhere, and hands the
answer to `weigh`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from millrace.model.cluster import Cluster
from millrace.model.plan import Plan
from millrace.model.sample import WindowSample
from millrace.model.situation import Situation
from millrace.schedulers.balance import skew
from millrace.schedulers.base import CannotPlace, NewPlan, SchedulingResult
from millrace.schedulers.parameters import check_parameters, parameter, with_parameters
from millrace.schedulers.problem import Figures, Problem

DECISIONS_KEPT = 200
MIN_GAIN = 0.02
MOST_CROWDED = 10.0  # times that a core may be shared with others, as far as is believed
GROWING_WINDOWS = 3  # windows in a row in which a topology's queues must have grown to count as overload
ASKED, PERIOD, OVERLOAD = "asked", "period", "overload"
ENACTED, ADVISED, NO_CHANGE, NOT_WORTH_IT = "enacted", "advised", "no change", "not worth it"
CANNOT_PLACE, FAILED, OVERTAKEN = "cannot place", "failed", "overtaken"


@dataclass(frozen=True)
class Policy:
    """How the scheduler is used; the same for every scheduler."""

    period: float = parameter(0.0, "Seconds between schedules; 0 takes the scheduler's own (5 for otd, 300 for others).", low=0)
    cool_down: float = parameter(10.0, "Seconds after a plan was enacted in which no other is, whatever happens.", low=0)
    min_gain: float | None = parameter(None, "Share by which a plan must lower traffic between nodes, or a high load, to be "
                                             "enacted. Unset: 0.02, and schedulers with a threshold of their own decide alone.",
                                low=0, high=1)
    overload: float = parameter(0.9, "Share of a node's or worker's CPU from which the scheduler is asked at once.", low=0)
    time_limit: float = parameter(30.0, "Seconds that a scheduler may take.", low=0.01)
    dry_run: bool = parameter(False, "Only say what would be done.")

    def __post_init__(self) -> None:
        check_parameters(self)

    def changed(self, given: Mapping[str, Any]) -> Policy:
        return with_parameters(Policy, {**asdict(self), **given}, "the schedule generator")


@dataclass(frozen=True)
class Choice:
    """The scheduler in use. `period` is its own idea of how often it should be asked."""

    name: str
    parameters: Mapping[str, Any]
    period: float
    weighs_itself: bool = False  # it has a threshold of its own


@dataclass(frozen=True)
class Decision:
    """What a scheduler was asked for, what it said, what was done and what came of it."""

    number: int
    at: float  # unix time
    scheduler: str
    parameters: Mapping[str, Any]
    trigger: str
    outcome: str
    reason: str
    moved: tuple[str, ...] = ()  # "topology/task: worker 1 -> 3"
    expected: Mapping[str, Any] = field(default_factory=dict)  # figures before and after, as reckoned
    came_of: Mapping[str, Any] = field(default_factory=dict)  # figures measured afterwards
    times: int = 1  # how often in a row it was the same

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        """What `to_json` wrote; what is missing is as if nothing had been said of it."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if data.get(name) is not None}
        return cls(**{**known, "moved": tuple(known.get("moved", ()))})


class Generator:
    """Time comes in with every call, and is of the master's clock except where it says unix time."""

    def __init__(self, choice: Choice, policy: Policy) -> None:
        self.choice, self.policy = choice, policy
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._number = 0
        self._asked = False
        self._last = 0.0  # when the scheduler was asked last
        self._enacted_at: float | None = None
        self._watched: int | None = None  # number of the decision of which it is not known yet what came of it
        self._queues: dict[str, deque[int]] = {}
        self._crowded = 1.0

    def set(self, choice: Choice, policy: Policy) -> None:
        """Use another scheduler, or other parameters, from now on."""
        self.choice, self.policy = choice, policy
        self._asked = True

    @property
    def period(self) -> float:
        return self.policy.period or self.choice.period

    @property
    def min_gain(self) -> float | None:
        """None: what the scheduler says is worth it."""
        if self.policy.min_gain is not None:
            return self.policy.min_gain
        return None if self.choice.weighs_itself else MIN_GAIN

    def remember(self, past: Iterable[Decision]) -> None:
        """Decisions of the masters before this one, the oldest first: numbers go on from theirs."""
        for decision in past:
            self.decisions.append(decision)
            self._number = max(self._number, decision.number)

    # -- when ----------------------------------------------------------------------------------------------------------

    def due(self, now: float, sample: WindowSample, cluster: Cluster) -> str | None:
        """A window has ended: why the scheduler should be asked now, or None."""
        growing = self._growing(sample)
        self._crowded = crowded(sample, cluster, self.policy.overload)
        if self.cooling(now):
            return None
        if self._asked:
            trigger = ASKED
        elif growing or any(overloads(sample, cluster, self.policy.overload)):
            trigger = OVERLOAD
        elif now - self._last >= self.period:
            trigger = PERIOD
        else:
            return None
        self._asked, self._last = False, now
        return trigger

    def cooling(self, now: float) -> bool:
        return self._enacted_at is not None and now - self._enacted_at < self.policy.cool_down

    def _growing(self, sample: WindowSample) -> bool:
        """Whether the queues of some topology have grown in each of the last windows."""
        self._queues = {name: self._queues.get(name, deque(maxlen=GROWING_WINDOWS + 1)) for name in sample.loads}
        for name, load in sample.loads.items():
            self._queues[name].append(sum(task.queue_length for task in load.tasks.values()))
        return any(len(seen) > GROWING_WINDOWS and all(one < other for one, other in zip(seen, list(seen)[1:]))
                   for seen in self._queues.values())

    # -- whether -------------------------------------------------------------------------------------------------------

    def weigh(self, situation: Situation, result: SchedulingResult, trigger: str, at: float) -> Decision:
        """What to do with the answer: the decision has the outcome `enacted` if its plans are to be carried out."""
        if not isinstance(result, NewPlan):
            if isinstance(result, CannotPlace):
                return self._decided(trigger, CANNOT_PLACE, result.reason, at)
            return self._decided(trigger, NO_CHANGE, "; ".join([result.reason, *map(str, result.overload)]), at)
        problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
        before, after = problem.figures(problem.current), figures_of(problem, result.plans)
        moved = tuple(_moves(situation, result.plans))
        reason = "; ".join([result.reason, *map(str, result.overload)])
        uneven = skew(situation.graphs, situation.load, situation.plan), skew(situation.graphs, situation.load, result.plans)
        expected = {"before": {**asdict(before), "skew": uneven[0]}, "after": {**asdict(after), "skew": uneven[1]}}
        if not moved:
            return self._decided(trigger, NO_CHANGE, reason, at)
        worth = self._worth(before, after, bool((problem.current < 0).any())) or self._gains(*uneven)
        if not worth:
            outcome = NOT_WORTH_IT
            reason += (f" (between nodes {before.inter_node:,.0f} -> {after.inter_node:,.0f} tuples/s, largest load of a node "
                       f"{before.largest_load:.0%} -> {after.largest_load:.0%}, of a worker {before.largest_worker_load:.0%} "
                       f"-> {after.largest_worker_load:.0%}: below the least gain, {self.min_gain:.0%}, or overload)")
        else:
            outcome = ADVISED if self.policy.dry_run else ENACTED
        return self._decided(trigger, outcome, reason, at, moved, expected)

    def _worth(self, before: Figures, after: Figures, missing: bool) -> bool:
        """Less traffic between nodes, relief of what is overloaded, or fewer nodes at no cost: anything else is moving
        tasks about for nothing. What would overload a node or worker is no gain: it would only be taken back."""
        limit = self.policy.overload
        loads = [(before.largest_load, after.largest_load),
                 (before.largest_worker_load * self._crowded, after.largest_worker_load * self._crowded)]
        relieved = any(had >= limit and self._gains(had, gets) for had, gets in loads)
        overloads = any(gets >= limit and gets > had for had, gets in loads)
        cheaper = self._gains(before.inter_node, after.inter_node)
        fewer = after.nodes_used < before.nodes_used and after.inter_node <= before.inter_node
        return missing or self.min_gain is None or relieved or ((cheaper or fewer) and not overloads)

    def _gains(self, before: float, after: float) -> bool:
        return after < before and after <= before * (1 - (self.min_gain or 0.0))

    def failed(self, error: str, trigger: str, at: float) -> Decision:
        """The scheduler raised, took too long or returned nonsense: the plan in force stays."""
        return self._decided(trigger, FAILED, error, at)

    def _decided(self, trigger: str, outcome: str, reason: str, at: float, moved: tuple[str, ...] = (),
                 expected: Mapping[str, Any] | None = None) -> Decision:
        last = self.decisions[-1] if self.decisions else None
        made = Decision(self._number + 1, at, self.choice.name, dict(self.choice.parameters), trigger, outcome, reason, moved,
                        expected or {})
        if last is not None and outcome != ENACTED and replace(made, number=last.number, at=last.at, times=last.times) == last:
            made = replace(last, at=at, times=last.times + 1)  # the same again: one line for all of them
            self.decisions.pop()
        else:
            self._number += 1
        self.decisions.append(made)
        return made

    # -- what came of it -----------------------------------------------------------------------------------------------

    def enacted(self, decision: Decision, now: float) -> None:
        self._enacted_at, self._watched = now, decision.number

    def overtaken(self, decision: Decision, why: str) -> Decision:
        """By the time it was decided, something else had changed the plan."""
        return self._replace(replace(decision, outcome=OVERTAKEN, reason=f"{decision.reason} ({why})"))

    def observe(self, situation: Situation) -> Decision | None:
        """A window has ended. If it is the first that was whole under the plan enacted last: what was measured."""
        watched = next((decision for decision in self.decisions if decision.number == self._watched), None)
        if watched is None or any(load.settling for load in situation.load.values()) or not situation.load:
            return None
        self._watched = None
        problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
        figures = asdict(problem.figures(problem.current))
        return self._replace(replace(watched, came_of={**figures, "skew": skew(situation.graphs, situation.load,
                                                                               situation.plan)}))

    def _replace(self, decision: Decision) -> Decision:
        for position, known in enumerate(self.decisions):
            if known.number == decision.number:
                self.decisions[position] = decision
        return decision


def overloads(sample: WindowSample, cluster: Cluster, share: float) -> Iterator[str]:
    """Nodes that use at least this share of their CPU and workers that use at least this share of a core, in words."""
    for node in cluster.nodes:
        used = sample.nodes[node.name].cpu_mhz if node.name in sample.nodes else 0.0
        if node.capacity_mhz > 0 and used >= share * node.capacity_mhz:
            yield f"node {node.name} uses {used:,.0f} of {node.capacity_mhz:,.0f} MHz"
    for slot in cluster.slots:
        used = sample.workers[slot.number].cpu_mhz if slot.number in sample.workers else 0.0
        core = cluster.node_of(slot.number).mhz
        if core > 0 and used >= share * core:
            yield f"worker {slot.number} uses {used:,.0f} of the {core:,.0f} MHz of a core"
        elif slot.number in sample.workers and 0 < sample.workers[slot.number].busy >= share:
            yield f"worker {slot.number} was in user code for {sample.workers[slot.number].busy:.0%} of the time"


def crowded(sample: WindowSample, cluster: Cluster, share: float) -> float:
    """How many times more than its CPU time says a worker without time left has to do: its machine has others to serve."""
    found = 1.0
    for slot in cluster.slots:
        worker, core = sample.workers.get(slot.number), cluster.node_of(slot.number).mhz
        if worker is not None and worker.busy >= share and worker.cpu_mhz > 0 and core > 0:
            found = max(found, min(worker.busy * core / worker.cpu_mhz, MOST_CROWDED))
    return found


def figures_of(problem: Problem, plans: Mapping[str, Plan]) -> Figures:
    position = {int(number): index for index, number in enumerate(problem.slot_numbers)}
    slots = [position.get(plans[name].placement.get(task, -1), -1) for name, task in problem.tasks]
    return problem.figures(np.array(slots, dtype=np.int64))


def _moves(situation: Situation, plans: Mapping[str, Plan]) -> Iterator[str]:
    for name, plan in plans.items():
        old = situation.plan[name].placement if name in situation.plan else {}
        for task, slot in plan.placement.items():
            if old.get(task) != slot:
                yield f"{name}/{task}: worker {old.get(task, 'none')} -> {slot}"
        if name in situation.plan:
            changed = Plan.diff(situation.plan[name], plan)
            yield from (f"{name}/{task}: ends" for task in changed.stopped)
            shares = Counter((move.component, move.old, move.new) for move in changed.key_groups)
            for (component, source, target), groups in sorted(shares.items()):
                yield f"{name}/{component}: {groups} key groups, task {source} -> {target}"

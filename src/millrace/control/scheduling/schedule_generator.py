"""The schedule generator: decides when to run the scheduler and whether to use its plan, and records the outcome.

It neither runs a scheduler nor moves a task. Its driver, master/scheduling/loop.py, calls `due`, has the scheduler run in
another process and passes the answer to `decide`. plan_acceptance.py decides whether a plan is worth its moves, and
plan_changes.py applies it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from millrace.control.scheduling.plan_acceptance import Thresholds, review
from millrace.control.strategies import catalogue
from millrace.model.cluster import Cluster
from millrace.model.sample import WindowSample
from millrace.model.situation import Situation
from millrace.schedulers.balance import skew
from millrace.schedulers.base import CannotPlace, NewPlan, SchedulingResult
from millrace.schedulers.parameters import check_parameters, parameter, with_parameters
from millrace.schedulers.problem import Problem

DECISIONS_KEPT = 200
MIN_GAIN = 0.02
MOST_CROWDING = 10.0  # highest factor assumed for a core that is shared with other processes
GROWING_WINDOWS = 3  # consecutive windows of growing queues that count as overload
ASKED, PERIOD, OVERLOAD = "asked", "period", "overload"
ENACTED, ADVISED, NO_CHANGE, NOT_WORTH_IT = "enacted", "advised", "no change", "not worth it"
CANNOT_PLACE, FAILED, OVERTAKEN = "cannot place", "failed", "overtaken"


@dataclass(frozen=True)
class Policy:
    """Settings of the schedule generator, common to all schedulers."""

    period: float = parameter(0.0, "Seconds between schedules; 0 takes the scheduler's own (5 for otd, 300 for others).", low=0)
    cool_down: float = parameter(10.0, "Seconds after an enacted plan before another one may be enacted.", low=0)
    min_gain: float | None = parameter(None, "Share by which a plan must lower traffic between nodes, or a high load, to be "
                                             "enacted. Unset: 0.02; schedulers that have their own threshold use that instead.",
                                low=0, high=1)
    overload: float = parameter(0.9, "CPU utilization of a node or worker, 1 being all of it, at which the scheduler runs at "
                                     "once.", low=0)
    time_limit: float = parameter(30.0, "Time limit of a scheduler, in seconds.", low=0.01)
    dry_run: bool = parameter(False, "Report decisions without carrying them out.")
    strategy: str = parameter("handover", "Strategy of migration by which plans are carried out, see `millrace rebalance`.",
                              choices=tuple(catalogue.STRATEGIES))
    strategy_parameters: Mapping[str, float] = field(default_factory=dict, metadata={
        "about": "Parameters of that strategy, as NAME=SECONDS; the others have their defaults."})

    def __post_init__(self) -> None:
        check_parameters(self)
        catalogue.check_parameters(catalogue.strategy_named(self.strategy), self.strategy_parameters)

    def changed(self, values: Mapping[str, Any]) -> Policy:
        """The policy with these changes. Another strategy begins with its default parameters."""
        kept = self.strategy_parameters if values.get("strategy", self.strategy) == self.strategy else {}
        parameters = {**kept, **values.get("strategy_parameters", {})}
        return with_parameters(Policy, {**asdict(self), **values, "strategy_parameters": parameters}, "the schedule generator")


@dataclass(frozen=True)
class Choice:
    """The scheduler in use. `period`: seconds between schedules that it asks for."""

    name: str
    parameters: Mapping[str, Any]
    period: float
    weighs_itself: bool = False  # it has its own threshold


@dataclass(frozen=True)
class Decision:
    """One decision: the trigger, the scheduler's reason, the outcome, and the figures expected and measured."""

    number: int
    at: float  # unix time
    scheduler: str
    parameters: Mapping[str, Any]
    trigger: str
    outcome: str
    reason: str
    moved: tuple[str, ...] = ()  # "topology/task: worker 1 -> 3"
    expected: Mapping[str, Any] = field(default_factory=dict)  # figures before and after, as calculated
    came_of: Mapping[str, Any] = field(default_factory=dict)  # figures measured afterwards
    times: int = 1  # consecutive repeats of the same decision

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        """Read what `to_json` wrote; missing fields get their defaults."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if data.get(name) is not None}
        return cls(**{**known, "moved": tuple(known.get("moved", ()))})


class ScheduleGenerator:
    """Times are passed in with every call and are of the master's clock, except where a field says unix time."""

    def __init__(self, choice: Choice, policy: Policy) -> None:
        self.choice, self.policy = choice, policy
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._number = 0
        self._asked = False
        self._last = 0.0  # time of the last request to the scheduler
        self._enacted_at: float | None = None
        self._watched: int | None = None  # number of the enacted decision whose effect is not measured yet
        self._queues: dict[str, deque[int]] = {}
        self._crowding = 1.0

    def set(self, choice: Choice, policy: Policy) -> None:
        """Use this scheduler with this policy from now on."""
        self.choice, self.policy = choice, policy
        self.ask()

    def ask(self) -> None:
        """Ask the scheduler at the end of the window."""
        self._asked = True

    @property
    def period(self) -> float:
        return self.policy.period or self.choice.period

    @property
    def min_gain(self) -> float | None:
        """Minimum gain of a plan; None accepts every plan of the scheduler."""
        if self.policy.min_gain is not None:
            return self.policy.min_gain
        return None if self.choice.weighs_itself else MIN_GAIN

    def remember(self, past: Iterable[Decision]) -> None:
        """Take over the decisions of earlier masters, oldest first: numbering continues from theirs."""
        for decision in past:
            self.decisions.append(decision)
            self._number = max(self._number, decision.number)

    # -- when to ask ---------------------------------------------------------------------------------------------------

    def due(self, now: float, sample: WindowSample, cluster: Cluster) -> str | None:
        """Called at the end of a window: the reason to ask the scheduler now, or None."""
        growing = self._growing(sample)
        self._crowding = crowding(sample, cluster, self.policy.overload)
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
        """True if the queues of some topology have grown in each of the last windows."""
        self._queues = {name: self._queues.get(name, deque(maxlen=GROWING_WINDOWS + 1)) for name in sample.loads}
        for name, load in sample.loads.items():
            self._queues[name].append(sum(task.queue_length for task in load.tasks.values()))
        return any(len(lengths) > GROWING_WINDOWS and all(old < new for old, new in zip(lengths, list(lengths)[1:]))
                   for lengths in self._queues.values())

    # -- what to do with the answer ------------------------------------------------------------------------------------

    def decide(self, situation: Situation, result: SchedulingResult, trigger: str, at: float) -> Decision:
        """Decide on the scheduler's answer. The outcome is `enacted` if its plans are accepted and to be carried out."""
        if isinstance(result, CannotPlace):
            return self._decided(trigger, CANNOT_PLACE, result.reason, at)
        reason = "; ".join([result.reason, *map(str, result.overload)])
        if not isinstance(result, NewPlan):
            return self._decided(trigger, NO_CHANGE, reason, at)
        reviewed = review(situation, result.plans, Thresholds(self.min_gain, self.policy.overload, self._crowding))
        if not reviewed.moved:
            return self._decided(trigger, NO_CHANGE, reason, at)
        if reviewed.accepted:
            outcome = ADVISED if self.policy.dry_run else ENACTED
        else:
            outcome, reason = NOT_WORTH_IT, f"{reason} ({reviewed.shortfall})"
        return self._decided(trigger, outcome, reason, at, reviewed.moved, reviewed.expected)

    def failed(self, error: str, trigger: str, at: float) -> Decision:
        """The scheduler raised, took too long or returned an invalid plan: the plan in force stays."""
        return self._decided(trigger, FAILED, error, at)

    def _decided(self, trigger: str, outcome: str, reason: str, at: float, moved: tuple[str, ...] = (),
                 expected: Mapping[str, Any] | None = None) -> Decision:
        last = self.decisions[-1] if self.decisions else None
        decision = Decision(self._number + 1, at, self.choice.name, dict(self.choice.parameters), trigger, outcome, reason,
                            moved, expected or {})
        same = last is not None and replace(decision, number=last.number, at=last.at, times=last.times) == last
        if last is not None and same and outcome != ENACTED:
            decision = replace(last, at=at, times=last.times + 1)  # repeats share one entry
            self.decisions.pop()
        else:
            self._number += 1
        self.decisions.append(decision)
        return decision

    # -- the outcome ---------------------------------------------------------------------------------------------------

    def enacted(self, decision: Decision, now: float) -> None:
        self._enacted_at, self._watched = now, decision.number

    def overtaken(self, decision: Decision, why: str) -> Decision:
        """Record that the plan changed before the decision could be carried out."""
        return self._replace(replace(decision, outcome=OVERTAKEN, reason=f"{decision.reason} ({why})"))

    def observe(self, situation: Situation) -> Decision | None:
        """Called at the end of a window. Returns the last enacted decision with the figures measured in the first full window
        after it, once."""
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
    """Descriptions of nodes that use at least this share of their CPU and workers that use this share of a core."""
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


def crowding(sample: WindowSample, cluster: Cluster, share: float) -> float:
    """Factor by which saturated workers are busier than their CPU time shows, because other processes use their cores."""
    factor = 1.0
    for slot in cluster.slots:
        worker, core = sample.workers.get(slot.number), cluster.node_of(slot.number).mhz
        if worker is not None and worker.busy >= share and worker.cpu_mhz > 0 and core > 0:
            factor = max(factor, min(worker.busy * core / worker.cpu_mhz, MOST_CROWDING))
    return factor

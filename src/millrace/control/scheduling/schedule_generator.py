"""The schedule generator: decides when to run the scheduler and whether to use its plan, and records the outcome.

It neither runs a scheduler nor moves a task. Its driver, master/scheduling/loop.py, calls `due`, has the scheduler run in
another process and passes the answer to `decide`. plan_acceptance.py decides whether a plan is worth its moves, and
plan_changes.py applies it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from millrace.control.scheduling.move_costs import MoveCosts
from millrace.control.scheduling.overload import OverloadWatch, PlaceLoad, places_of_nodes
from millrace.control.scheduling.plan_acceptance import Evidence, Review, Reviewer
from millrace.control.scheduling.plan_gains import GROUP_WINDOWS_KEPT, WINDOWS_KEPT, WindowLoads
from millrace.control.scheduling.relief_pauses import ReliefPauses
from millrace.control.scheduling.thresholds import PAYBACK_SECONDS, Settled, Thresholds
from millrace.control.strategies import catalogue
from millrace.model.cluster import Cluster
from millrace.model.graph import TaskId
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.model.sample import WindowSample
from millrace.model.situation import Situation
from millrace.schedulers.balance import Balance, skew
from millrace.schedulers.base import CannotPlace, NewPlan, Scheduler, SchedulingResult
from millrace.schedulers.overload import HIGHEST, MARGIN, threshold
from millrace.schedulers.parameters import check_parameters, parameter, parameters_of, with_parameters
from millrace.schedulers.problem import COST, Problem
from millrace.schedulers.registry import COOL_DOWN_SECONDS, PACKING, traits

DECISIONS_KEPT = 200
MIN_GAIN = 0.02
SETTLING_ANSWERS = 60  # for which a plan makes later ones of the same scheduler harder
OBJECTIVE = ("minimise", "between_workers")  # parameters of schedulers that say what they minimise
TIMES = ("period", "cool_down", "load_period", "agent_poll", "worker_poll")  # parts of a policy that change no plan
ASKED, PERIOD, OVERLOAD = "asked", "period", "overload"
BALANCE = "balance"  # the scheduler that the policy puts beside others
SOURCES = "sources"  # stands for topologies that fall behind them, where overloaded places are named
BY_REQUEST = "by request"  # a user wants the plan carried out, whatever it gains
ENACTED, ADVISED, NO_CHANGE, NOT_WORTH_IT = "enacted", "advised", "no change", "not worth it"
CANNOT_PLACE, FAILED, OVERTAKEN = "cannot place", "failed", "overtaken"


@dataclass(frozen=True)
class Policy:
    """Settings of the schedule generator, common to all schedulers."""

    period: float = parameter(0.0, "Seconds between schedules; 0 takes the scheduler's own (5 for otd, 300 for others).", low=0)
    cool_down: float | None = parameter(None, "Seconds after an enacted plan before another one may be enacted. Unset: the "
                                              "scheduler's own (0 for otd, 10 for others).", low=0)
    min_gain: float | None = parameter(None, "Share by which a plan must lower traffic between nodes, or a high load, to be "
                                             "enacted. Unset: 0.02; schedulers that have their own threshold use that instead.",
                                low=0, high=1)
    payback: float = parameter(PAYBACK_SECONDS, "Seconds within which a plan must save more tuples between nodes than its "
                                                "moves delay. 0: moves cost nothing.", low=0)
    overload: float | None = parameter(None, "Share of a node's or worker's CPU, or of a worker's time, at which the scheduler "
                                             "runs at once if it lasts for 3 windows. Unset: 0.05 above the share that the "
                                             "scheduler fills, and at most 0.97.", low=0)
    load_period: float | None = parameter(None, "Seconds of a load window. Unset: load.period.secs. Windows are shorter where "
                                                "that makes them end with the period.", low=0.1)
    agent_poll: float | None = parameter(None, "Seconds between an agent's polls for a newer plan (T_S). Unset: "
                                               "agent.poll.secs.", low=0.01)
    worker_poll: float | None = parameter(None, "Seconds between a worker's polls of the plan store (T_W). Unset: "
                                                "worker.poll.secs.", low=0.01)
    time_limit: float = parameter(30.0, "Time limit of a scheduler, in seconds.", low=0.01)
    balance: bool = parameter(False, "Where the scheduler in use leaves everything as it is, give key groups to other tasks by "
                                     "their load, as scheduler `balance` does.")
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
    """The scheduler in use. `period`: seconds between schedules that it asks for; `cool_down`: after an enacted plan.
    `packing`: share of a node or worker that it fills."""

    name: str
    parameters: Mapping[str, Any]
    period: float
    weighs_itself: bool = False  # it has its own threshold
    cool_down: float = COOL_DOWN_SECONDS
    packing: float = PACKING

    @classmethod
    def of(cls, name: str, scheduler: Scheduler) -> Choice:
        chosen = traits(scheduler)
        return cls(name, parameters_of(scheduler), chosen.period, chosen.weighs_itself, chosen.cool_down, chosen.packing)

    @property
    def objective(self) -> dict[str, Any]:
        """The objective that it minimises, as arguments of `Problem.of`."""
        return {name: self.parameters[name] for name in OBJECTIVE if name in self.parameters}

    @property
    def needs_links(self) -> bool:
        """True if its plans may depend on the costs of links. What a user's own scheduler reads is not known."""
        return ":" in self.name or self.objective.get("minimise") == COST


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
        self.enacts_next = False  # the scheduler is asked next by request
        self.accepted: NewPlan | None = None  # the plans that the newest decision on an answer carries out, if it does
        self._last = 0.0  # time of the last request to the scheduler
        self._enacted_at: float | None = None
        self._watched: int | None = None  # number of the enacted decision whose effect is not measured yet
        self._watch = OverloadWatch()
        self._windows: deque[WindowLoads] = deque(maxlen=WINDOWS_KEPT)
        self._group_windows: deque[WindowLoads] = deque(maxlen=GROUP_WINDOWS_KEPT)
        self._pauses = ReliefPauses()
        self._answers = 0  # of the scheduler
        self._plans: deque[tuple[int, int, float]] = deque(maxlen=DECISIONS_KEPT)  # enacted: answers until then, moves, cost
        self._changed: set[str] = set()  # places whose tasks or key groups the newest accepted plan changes
        self._pressed = False  # a topology falls behind its sources
        self.costs = MoveCosts()

    def set(self, choice: Choice, policy: Policy, enact: bool = False) -> None:
        """Use this scheduler with this policy from now on. Another one is asked at once, as is the same with a policy that may
        change what becomes of its plans. `enact`: its next plan is carried out whatever it gains, cool-down or dry run
        notwithstanding."""
        if choice != self.choice:
            self._pauses.end()
            self._plans.clear()
        if choice is not self.choice or _apart_from_times(policy) != _apart_from_times(self.policy):
            self.ask()
        self.choice, self.policy, self.enacts_next = choice, policy, enact

    def ask(self) -> None:
        """Ask the scheduler at the end of the window."""
        self._asked = True

    @property
    def period(self) -> float:
        return self.policy.period or self.choice.period

    @property
    def cool_down(self) -> float:
        return self.choice.cool_down if self.policy.cool_down is None else self.policy.cool_down

    @property
    def min_gain(self) -> float:
        """Minimum gain of a plan; 0 if the scheduler has its own threshold."""
        if self.policy.min_gain is not None:
            return self.policy.min_gain
        return 0.0 if self.choice.weighs_itself else MIN_GAIN

    @property
    def overload(self) -> float:
        """Load of a node or worker that counts as overload: above what the scheduler fills, or noise would undo its plans."""
        return min(threshold(self.choice.packing), HIGHEST) if self.policy.overload is None else self.policy.overload

    @property
    def fills(self) -> float:
        """Load up to which a plan may fill nodes and workers: what the scheduler fills, unless a user wants less."""
        if self.policy.overload is None:
            return self.choice.packing
        return min(max(self.choice.packing, self.overload - MARGIN), self.overload)

    def remember(self, past: Iterable[Decision]) -> None:
        """Take over the decisions of earlier masters, oldest first: numbering continues from theirs."""
        for decision in past:
            self.decisions.append(decision)
            self._number = max(self._number, decision.number)

    def recall(self, topology: str, loads: Sequence[Load]) -> None:
        """Take the loads of a topology's last run, oldest first: what plans gain is told from noise by them, too."""
        while len(self._windows) < len(loads[-WINDOWS_KEPT:]):
            self._windows.appendleft({})
        for back, load in enumerate(reversed(loads[-WINDOWS_KEPT:]), 1):
            self._windows[-back] = {**self._windows[-back], topology: load}

    # -- when to ask ---------------------------------------------------------------------------------------------------

    def take(self, sample: WindowSample, cluster: Cluster, pressed: bool = False) -> None:
        """Take the measurements of a window. `pressed`: a topology falls behind its sources."""
        self._watch.add(sample, cluster)
        self._windows.append(sample.loads)
        self._group_windows.append({name: Load(load.window_seconds, key_groups=load.key_groups)
                                    for name, load in sample.loads.items()})
        self._pressed = pressed

    def overloaded(self) -> list[PlaceLoad]:
        """The nodes and workers whose overload lasts."""
        return self._watch.lasting(self.overload)

    def due(self, now: float, sample: WindowSample, cluster: Cluster, pressed: bool = False) -> str | None:
        """Called at the end of a window, with its measurements: the reason to ask the scheduler now, or None."""
        self.take(sample, cluster, pressed)
        if self.cooling(now) and not self.enacts_next:
            return None
        overloaded = {place.where for place in self.overloaded()} | ({SOURCES} if pressed else set())
        slots = {slot.number for slot in cluster.slots}
        if self.enacts_next:
            trigger = BY_REQUEST
        elif self._asked:
            trigger = ASKED
        elif overloaded and self._pauses.over(now, overloaded, slots, sample.seconds, self.period):
            trigger = OVERLOAD
        elif now - self._last >= self.period - sample.seconds / 2:  # windows do not end to the millisecond
            trigger = PERIOD
        else:
            return None
        self._asked, self.enacts_next, self._last = False, False, now
        self._pauses.asked(now, overloaded, slots)
        return trigger

    def cooling(self, now: float) -> bool:
        return self._enacted_at is not None and now - self._enacted_at < self.cool_down

    # -- what to do with the answer ------------------------------------------------------------------------------------

    def decide(self, situation: Situation, result: SchedulingResult, trigger: str, at: float) -> Decision:
        """Decide on the scheduler's answer. The outcome is `enacted` if its plans are accepted and to be carried out: those in
        `accepted`, which has only a part of their moves if all of them are too many to relieve an overload."""
        if isinstance(result, CannotPlace):
            return self._decided(trigger, CANNOT_PLACE, result.reason, at)
        reason = "; ".join([result.reason, *map(str, result.overload)])
        if not isinstance(result, NewPlan):
            return self._decided(trigger, NO_CHANGE, reason, at)
        reviewer = self._reviewer(situation)
        self.accepted, reviewed = result, reviewer.review(result.plans)
        if not reviewed.moved:
            return self._decided(trigger, NO_CHANGE, reason, at)
        if not reviewed.accepted and trigger != BY_REQUEST and (part := _relief(reviewer, result)) is not None:
            self.accepted, reviewed = part
            reason = "; ".join([self.accepted.reason, *map(str, self.accepted.overload)])
        if trigger == BY_REQUEST:
            outcome = ENACTED
        elif reviewed.accepted:
            outcome = ADVISED if self.policy.dry_run else ENACTED
        else:
            outcome, reason = NOT_WORTH_IT, f"{reason} ({reviewed.shortfall})"
        self._changed = _places_changed(situation, self.accepted.plans) if outcome == ENACTED else set()
        return self._decided(trigger, outcome, reason, at, reviewed.moved, reviewed.expected)

    def balanced(self, situation: Situation, decision: Decision, at: float) -> tuple[NewPlan, Decision] | None:
        """The plans that only give key groups to other tasks, with the decision on them, if the policy asks for that, the
        decision on the scheduler's own answer leaves everything as it is, and they are accepted."""
        if not self.policy.balance or decision.outcome not in (NO_CHANGE, NOT_WORTH_IT):
            return None
        changed, reasons = Balance().regrouped(situation.graphs, situation.load, situation.plan)
        plans = {graph.name: changed.get(graph.name, situation.plan[graph.name]) for graph in situation.graphs}
        if not changed or not (reviewed := self._reviewer(situation).review(plans)).accepted:
            return None
        self._changed = _places_changed(situation, plans)
        reason = "; ".join(reasons)
        outcome = ADVISED if self.policy.dry_run else ENACTED
        trigger = ASKED if decision.trigger == BY_REQUEST else decision.trigger  # the request was for the scheduler's own plan
        return NewPlan(plans, reason), self._decided(trigger, outcome, reason, at, reviewed.moved, reviewed.expected, BALANCE)

    def _reviewer(self, situation: Situation) -> Reviewer:
        thresholds = Thresholds(self.min_gain, self.overload, self.fills, self.policy.payback, self._settled(situation))
        return Reviewer(situation, thresholds, self._evidence(), self.choice.objective)

    def _settled(self, situation: Situation) -> Settled:
        """The moves and promises of the plans that were enacted for the last answers."""
        recent = [(moves, cost) for answer, moves, cost in self._plans if self._answers - answer < SETTLING_ANSWERS]
        tasks = sum(len(graph.tasks()) for graph in situation.graphs)
        if not recent or not tasks:
            return Settled()
        return Settled(sum(moves for moves, _ in recent) / tasks, recent[-1][1])

    def _evidence(self) -> Evidence:
        """Without a window there is only the estimate to go by."""
        lasting, beyond = (None if not self._windows or self._pressed else
                           {place.where for place in self._watch.to_relieve(share)} for share in (self.overload, 1.0))
        return Evidence(tuple(self._windows), tuple(self._group_windows), lasting, beyond, self.costs, self.policy.strategy)

    def failed(self, error: str, trigger: str, at: float) -> Decision:
        """The scheduler raised, took too long or returned an invalid plan: the plan in force stays."""
        return self._decided(trigger, FAILED, error, at)

    def _decided(self, trigger: str, outcome: str, reason: str, at: float, moved: tuple[str, ...] = (),
                 expected: Mapping[str, Any] | None = None, by: str = "") -> Decision:
        """Add to the decisions. `by`: the scheduler, with its default parameters, if it is not the one in use, whose answer has
        been counted."""
        if not by:
            self._answers += 1
        scheduler, parameters = (by, {}) if by else (self.choice.name, dict(self.choice.parameters))
        return self._add(Decision(self._number + 1, at, scheduler, parameters, trigger, outcome, reason, moved, expected or {}))

    def _add(self, decision: Decision) -> Decision:
        """Add the decision, which has the next number, or count it as a repeat: repeats share one entry."""
        last = self._last_by(decision.scheduler)
        same = last is not None and replace(decision, number=last.number, at=last.at, times=last.times) == last
        if last is not None and same and decision.outcome != ENACTED:
            return self._replace(replace(last, at=decision.at, times=last.times + 1))
        self._number = decision.number
        self.decisions.append(decision)
        return decision

    def _last_by(self, scheduler: str) -> Decision | None:
        """The scheduler's newest decision, if since then no plan was carried out and no other scheduler chosen: `balance` may
        decide beside it."""
        for decision in reversed(self.decisions):
            if decision.scheduler == scheduler:
                return decision
            if decision.outcome == ENACTED or BALANCE not in (decision.scheduler, scheduler):
                return None
        return None

    # -- the outcome ---------------------------------------------------------------------------------------------------

    def enacted(self, decision: Decision, now: float) -> None:
        self._enacted_at, self._watched = now, decision.number
        after = decision.expected.get("after", {})
        self._plans.append((self._answers, int(after.get("moved", 0)), float(after.get("cost", 0.0))))
        self._watch.forget(self._changed)
        self._pauses.end()

    def overtaken(self, decision: Decision, why: str, passes: bool = True) -> Decision:
        """Record that the newest decision could not be carried out, because the plan changed before, for example. `passes`: the
        reason does not last, so the scheduler may be asked again at once, and a user who wants the plan carried out gets the
        next one."""
        self.enacts_next = self.enacts_next or (passes and decision.trigger == BY_REQUEST)
        if passes:
            self._pauses.end()
        self.decisions.pop()  # it is added again, as a repeat if it is one
        self._number = decision.number - 1
        return self._add(replace(decision, outcome=OVERTAKEN, reason=f"{decision.reason} ({why})"))

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


def _apart_from_times(policy: Policy) -> dict[str, Any]:
    return {name: value for name, value in asdict(policy).items() if name not in TIMES}


def _places_of_slots(situation: Situation) -> dict[int, str]:
    """The place of the node of every slot."""
    places = places_of_nodes(situation.cluster)
    return {slot.number: places[slot.node] for slot in situation.cluster.slots}


def _relief(reviewer: Reviewer, answer: NewPlan) -> tuple[NewPlan, Review] | None:
    """The part of the plans that relieves overloads which last, if it is accepted without the rest."""
    part = reviewer.relieving(answer)
    if part is None or not (reviewed := reviewer.review(part.plans)).accepted:
        return None
    return part, reviewed


def _places_changed(situation: Situation, plans: Mapping[str, Plan]) -> set[str]:
    """The nodes and workers that lose or get tasks or key groups by these plans."""
    changed = {name: plan for name, plan in plans.items() if plan is not situation.plan.get(name)}
    return {*_places_of_moves(situation, changed), *_places_regrouped(situation, changed)}


def _places_of_moves(situation: Situation, plans: Mapping[str, Plan]) -> Iterator[str]:
    """The nodes and workers that lose or get tasks by these plans."""
    machine = _places_of_slots(situation)
    for name, plan in plans.items():
        old = situation.plan[name].placement if name in situation.plan else {}
        for task, slot in plan.placement.items():
            for number in {slot, old.get(task, slot)} if old.get(task) != slot else ():
                yield f"worker {number}"
                if number in machine:
                    yield machine[number]


def _places_regrouped(situation: Situation, plans: Mapping[str, Plan]) -> Iterator[str]:
    """The nodes and workers whose tasks lose or get key groups by these plans."""
    machine = _places_of_slots(situation)
    for name, plan in plans.items():
        old = situation.plan[name].key_groups if name in situation.plan else {}
        for component, owners in plan.key_groups.items():
            pairs = zip(old.get(component, owners), owners, strict=False)
            for index in {owner for before, after in pairs if before != after for owner in (before, after)}:
                slot = plan.placement.get(TaskId(component, index))
                if slot in machine:
                    yield from (f"worker {slot}", machine[slot])

"""The elastic loop of one topology: decides when the numbers of tasks change, and records what was expected and what came of
it.

It neither measures nor scales. Its driver calls `end_window` after each load window; if the decision's outcome is `enacted`, it
has the master scale the topology and calls `enacted` or `refused`.

- Growth is urgent: it happens if the present tasks miss the goal in each of the last `settle_windows` windows. Its target has
  half of `hysteresis` to spare.
- Fewer or other tasks are not: the goal must be met with `hysteresis` more load too, and by what is measured, in `patience`
  windows in a row.
- Nothing changes while tasks start or move, during the cool-down, or while the load changes much from window to window; except
  that tasks which cannot keep up in any of the windows grow also then.
- A decision that did not help is not taken again under a similar load.
- If the measured latency stays above the goal though the model finds it met, the model is wrong, and tasks are added as for
  more load. Fewer are not tried again under such a load.
- While the goal is out of reach, that is reported once, and the loop works towards the nearest one that can be reached.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count, takewhile
from typing import Any

from millrace.elastic.allocation import Allocation, Infeasible, Limits, counted, limits_shown
from millrace.elastic.models import ElasticModel, PastRates
from millrace.elastic.nearest_goal import NearestGoal, nearest_goal
from millrace.elastic.network import Network
from millrace.schedulers.parameters import check_parameters, parameter

ELASTIC_DECISIONS_KEPT = 200
WINDOWS_KEPT = 360  # of offered rates, for forecasts
SIMILAR = 0.25  # share by which two loads may differ and count as alike
ONLY_A_LITTLE = 0.1  # the same, for tasks that cannot keep up
HELPED = 0.05  # share by which the latency must fall if growth is to count as a help
MOST_CATCH_UP = 0.25  # share of the offered rate that may be added for a backlog
STEP, MOST_STEPS = 0.05, 20  # of load, by which tasks are added that the model does not ask for
SCALES, ADVISED_ONLY, REFUSED, INFEASIBLE = "enacted", "advised", "refused", "infeasible"
GROW, SHRINK, REARRANGE = "grow", "shrink", "rearrange"


@dataclass(frozen=True)
class ElasticPolicy:
    """Settings of the loop, common to all models."""

    period: float = parameter(5.0, "Length of a load window in seconds, unless windows are shorter anyway.", low=0.1, high=3600)
    cool_down: float = parameter(20.0, "Seconds after a change of parallelism before the next one.", low=0)
    settle_windows: int = parameter(2, "Load windows in a row that must call for more tasks.", low=1, high=100)
    patience: int = parameter(6, "Load windows in a row that must call for fewer or other tasks.", low=1, high=1000)
    steady: float = parameter(0.25, "Share by which the offered rate may change within these windows.", low=0.01, high=10)
    hysteresis: float = parameter(0.1, "Share of additional load with which the goal must be met, too, before tasks end.",
                                  low=0.0, high=2.0)
    min_gain: float = parameter(0.1, "Share by which the latency must fall if as many tasks are to be distributed otherwise.",
                                low=0.0, high=1.0)
    max_shrink: float = parameter(0.5, "Share of a component's tasks that may end at once.", low=0.01, high=1.0)
    catch_up: float = parameter(30.0, "Seconds in which a backlog at the sources should be worked off, as far as a quarter "
                                      "more capacity can.", low=1.0)
    dry_run: bool = parameter(False, "Report decisions without carrying them out.")

    def __post_init__(self) -> None:
        check_parameters(self)


@dataclass(frozen=True)
class ElasticChoice:
    """The model in use, with its parameters and the goal."""

    name: str
    parameters: Mapping[str, Any]
    limits: Limits
    model: ElasticModel


@dataclass(frozen=True)
class ElasticDecision:
    """One decision: its direction, the numbers of tasks before and after, and the latency expected and measured. `helped`: None
    until it is known."""

    number: int
    at: float  # unix time
    topology: str
    model: str
    direction: str
    outcome: str
    reason: str
    before: Mapping[str, int] = field(default_factory=dict)
    par: Mapping[str, int] = field(default_factory=dict)
    offered_rate: float = 0.0
    was_ms: float | None = None  # latency measured before
    expected_ms: float | None = None
    measured_ms: float | None = None  # afterwards
    helped: bool | None = None

    @property
    def changes(self) -> dict[str, int]:
        """The components that get another number of tasks."""
        return {name: tasks for name, tasks in self.par.items() if tasks != self.before.get(name)}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ElasticDecision:
        """Read what `to_json` wrote; missing fields get their defaults."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if data.get(name) is not None})


@dataclass(frozen=True, slots=True)
class ElasticWindow:
    """One load window: the network with its corrections, the measured latency of the topology, tuples that wait at its sources
    (`backlog`), and reasons why the window does
    not count: `settling` (tasks were started or moved in it) and `busy`, which says what is under way; empty if nothing is."""

    at: float  # unix time
    seconds: float
    network: Network
    measured_ms: float | None = None
    backlog: Mapping[str, int] = field(default_factory=dict)
    settling: bool = False
    busy: str = ""


class ElasticLoop:
    """Times are passed in with every call, and are of the master's clock. `numbers`: of its decisions, shared with the loops of
    other topologies."""

    def __init__(self, topology: str, choice: ElasticChoice, policy: ElasticPolicy,
                 numbers: Iterator[int] | None = None) -> None:
        self.topology, self.choice, self.policy = topology, choice, policy
        self.decisions: deque[ElasticDecision] = deque(maxlen=ELASTIC_DECISIONS_KEPT)
        self.standing = "no load window yet"  # why nothing changes just now
        self._numbers = numbers if numbers is not None else count(1)
        self._enacted_at: float | None = None
        self._watched: int | None = None  # number of the decision whose effect is not measured yet
        self._settled = 0  # windows since the last change that count
        self._offered: deque[dict[str, float]] = deque(maxlen=WINDOWS_KEPT)
        # directions of the last windows, "" for none
        self._wanted: deque[str] = deque(maxlen=max(policy.settle_windows, policy.patience))
        self._chosen_after = 0  # number of the last decision before the model was chosen
        self._overloaded = 0  # windows in a row in which the present tasks could not keep up
        self._measured: deque[float | None] = deque(maxlen=policy.patience)  # latencies of the last windows
        self._too_few: deque[tuple[Mapping[str, int], float]] = deque(maxlen=ELASTIC_DECISIONS_KEPT)  # with the offered rate
        self._present: dict[str, int] | None = None  # numbers of tasks in the last window
        self._goal = choice.limits  # or the nearest that can be reached
        self._reported: float | None = None  # the offered rate for which the goal was reported to be out of reach
        self._reached = 0  # windows in a row in which the goal was feasible

    def remember(self, past: Iterable[ElasticDecision]) -> None:
        """Take over earlier decisions, oldest first. None of them keeps this loop from the same decision."""
        self.decisions.extend(past)
        self._chosen_after = max((decision.number for decision in self.decisions), default=0)

    # -- one window ----------------------------------------------------------------------------------------------------

    def end_window(self, now: float, window: ElasticWindow) -> list[ElasticDecision]:
        """The decisions of this window: an earlier one whose effect is known now, a goal that cannot be reached, and a new one.
        If the latter's outcome is `enacted`, the topology is to be scaled."""
        self._offered.append(dict(window.network.offered))
        if self._present != window.network.present:  # earlier windows say nothing about these
            self._present = window.network.present
            self._count_anew()
        if window.busy or window.settling:
            self._settled = 0
            self.standing = window.busy or "tasks have just been started or moved"
            return []
        self._settled += 1
        known = self._observed(window)
        infeasible, new = self._decided(now, window)
        if known is None and new is not None and new.outcome == SCALES:
            known = self._revoked(new)
        return [decision for decision in (known, infeasible, new) if decision is not None]

    def _count_anew(self) -> None:
        """Forget the windows that called for a change."""
        self._overloaded = 0
        self._wanted.clear()
        self._measured.clear()

    def _decided(self, now: float, window: ElasticWindow) -> tuple[ElasticDecision | None, ElasticDecision | None]:
        """The decision that the goal cannot be reached, and the one for other numbers of tasks."""
        network = self.choice.model.load(window.network, self._past(window.seconds))
        rate = network.external_rate
        self._overloaded = self._overloaded + 1 if math.isinf(network.latency(network.present)) else 0
        goal = nearest_goal(self.choice.model, network, self.choice.limits)
        beyond = goal if isinstance(goal, Infeasible) else goal.beyond
        infeasible = self._infeasible(window, rate, beyond)
        if isinstance(goal, Infeasible):
            self.standing = _shown(goal)
            self._wanted.append("")
            return infeasible, None
        self._goal = goal.limits
        self._measured.append(window.measured_ms)
        wish = self._wish(goal, window.backlog)
        if wish.direction != GROW and not wish.urgent and self._over(window.measured_ms):
            reason = f"{window.measured_ms:.1f} ms were measured, above the goal, though {wish.reason}"
            unexplained = not wish.direction and self._stays_over()
            wish = self._beyond_model(goal, reason) if unexplained else _Wish("", goal.need, reason)
        self._wanted.append(wish.direction)
        held_back = self._held_back(now, wish, network)
        self.standing = f"{f'{_shown(beyond)}; meanwhile: ' if beyond is not None else ''}{held_back or wish.reason}"
        if not wish.direction or held_back:
            return infeasible, None
        outcome = ADVISED_ONLY if self.policy.dry_run else SCALES
        if wish.beyond_model:
            self._too_few.append((network.present, rate))
        return infeasible, self._new(ElasticDecision(
            0, window.at, self.topology, self.choice.name, wish.direction, outcome, wish.reason, network.present,
            dict(wish.target.par), rate, window.measured_ms, wish.target.predicted_ms))

    def _wish(self, goal: NearestGoal, backlog: Mapping[str, int]) -> _Wish:
        """The change that would be good, whether or not it is time for it."""
        network, need, limits = goal.network, goal.need, goal.limits
        model, present, policy = self.choice.model, network.present, self.policy
        if missed := model.missed(network, present, limits):
            target = self._with_room(network, need, limits, policy.hysteresis / 2, backlog)
            return _Wish(_direction(present, target), target, f"{missed}: {target.reason}", urgent=True)
        target = self._bounded(network, self._with_room(network, need, limits, policy.hysteresis))
        if target.instances < sum(present.values()) and not model.missed(network, target.par, limits):
            return _Wish(SHRINK, target, f"{sum(present.values())} instances are more than needed: {target.reason}")
        now_ms = network.latency(present) * 1000
        if (limits.t_max_ms is None and limits.c_max is not None and need.predicted_ms is not None
                and need.predicted_ms < (1 - policy.min_gain) * now_ms):
            better = f"{now_ms:.1f} ms could become {need.predicted_ms:.1f} ms: {need.reason}"
            return _Wish(_direction(present, need), need, better)
        return _Wish("", need, f"{counted(present)} meet the goal")

    def _stays_over(self) -> bool:
        """True if the measured latency is above the goal in all of the last windows, and does not fall, as it would while a
        backlog is worked off."""
        known = [latency for latency in self._measured if latency is not None and self._over(latency)]
        return len(known) == self.policy.patience and known[-1] > (1 - HELPED) * known[0]

    def _beyond_model(self, goal: NearestGoal, reason: str) -> _Wish:
        """More tasks than the model asks for: the next allocation that has some, for a larger load."""
        network, present = goal.network, goal.network.present
        for step in range(1, MOST_STEPS + 1):
            larger = self.choice.model.allocate(network.scaled(1 + step * STEP), goal.limits)
            if not isinstance(larger, Infeasible):
                par = {name: max(tasks, larger.par[name]) for name, tasks in present.items()}
                if par != present:
                    target = replace(larger, par=par, predicted_ms=_predicted(network, par))
                    return _Wish(GROW, target, f"{reason}: {target.instances} instances are for {step * STEP:.0%} more load",
                                 urgent=True, beyond_model=True)
        return _Wish("", goal.need, reason)

    def _with_room(self, network: Network, need: Allocation, limits: Limits, room: float,
                   backlog: Mapping[str, int] | None = None) -> Allocation:
        """The allocation for `room` more load and a backlog, or for the load as it is if that is not possible."""
        catch_up = {name: min(tuples / self.policy.catch_up, MOST_CATCH_UP * network.offered.get(name, 0.0))
                    for name, tuples in (backlog or {}).items()}
        more = network.under({name: rate * (1 + room) + catch_up.get(name, 0.0) for name, rate in network.offered.items()})
        roomy = self.choice.model.allocate(more, limits)
        return need if isinstance(roomy, Infeasible) else replace(roomy, predicted_ms=_predicted(network, roomy.par))

    def _bounded(self, network: Network, target: Allocation) -> Allocation:
        """The target, with as many tasks fewer as may end at once."""
        par = {name: max(target.par[name], math.ceil(tasks * (1 - self.policy.max_shrink)))
               for name, tasks in network.present.items()}
        return target if par == dict(target.par) else replace(target, par=par, predicted_ms=_predicted(network, par))

    # -- reasons to wait -----------------------------------------------------------------------------------------------

    def _held_back(self, now: float, wish: _Wish, network: Network) -> str:
        """The reason why the wish is not granted yet; empty if it is."""
        if not wish.direction:
            return ""
        policy = self.policy
        needed = policy.settle_windows if wish.urgent else policy.patience
        if self._enacted_at is not None and now - self._enacted_at < policy.cool_down:
            return f"cooling down for {policy.cool_down - (now - self._enacted_at):.0f} s"
        same = len(list(takewhile(lambda wanted: wanted == wish.direction, reversed(self._wanted))))
        if same < needed:
            return f"{wish.direction} to {counted(wish.target.par)} wanted for {same} of {needed} windows"
        rates = [sum(rates.values()) for rates in list(self._offered)[-needed:]]
        if self._overloaded < needed and max(rates) > (1 + policy.steady) * min(rates):
            return f"the offered rate changes between {min(rates):,.1f} and {max(rates):,.1f} tuples/s"
        if wish.direction == SHRINK and (missed_at := self._missed_at(wish.target.par, network.external_rate)) is not None:
            return f"no more tasks than these missed the goal at {missed_at:,.1f} tuples/s"
        futile = self._futile(wish.direction, wish.target.par, network)
        return f"not repeated: decision {futile.number} did not help under this load" if futile is not None else ""

    def _missed_at(self, par: Mapping[str, int], rate: float) -> float | None:
        """The offered rate, at most a little higher than this, at which as many tasks missed the goal by what was measured."""
        return next((missed for few, missed in self._too_few if missed <= (1 + SIMILAR) * rate
                     and all(tasks <= few.get(name, 0) for name, tasks in par.items())), None)

    def _futile(self, direction: str, par: Mapping[str, int], network: Network) -> ElasticDecision | None:
        """An earlier decision like this one that did not help, under a similar load."""
        before = network.present
        for decision in reversed(self.decisions):
            if decision.helped is not False or decision.direction != direction or decision.number <= self._chosen_after:
                continue
            more = ONLY_A_LITTLE if direction == GROW and self._overloaded else SIMILAR  # a backlog grows: rather try again
            if not _similar(decision.offered_rate, network.external_rate, more):
                continue
            changes = {name: tasks for name, tasks in par.items() if tasks != before.get(name)}
            if direction == GROW and changes.keys() <= decision.changes.keys():
                return decision  # the bottleneck is elsewhere
            if direction == SHRINK and all(par.get(name, 0) <= tasks for name, tasks in decision.changes.items()):
                return decision
            if direction == REARRANGE and dict(par) == dict(decision.par):
                return decision
        return None

    def _past(self, seconds: float) -> PastRates:
        names = dict.fromkeys(name for rates in self._offered for name in rates)
        return PastRates(seconds, {name: tuple(rates.get(name, 0.0) for rates in self._offered) for name in names})

    # -- the record ----------------------------------------------------------------------------------------------------

    def _infeasible(self, window: ElasticWindow, rate: float, beyond: Infeasible | None) -> ElasticDecision | None:
        """A decision that the goal cannot be reached; None if it can, or if that was reported for a similar load already."""
        if beyond is None:
            self._reached += 1
            if self._reached >= self.policy.patience:
                self._reported = None
            return None
        self._reached = 0
        if self._reported is not None and _similar(self._reported, rate):
            return None
        self._reported, present = rate, window.network.present
        return self._new(ElasticDecision(0, window.at, self.topology, self.choice.name, "", INFEASIBLE, _shown(beyond), present,
                                         present, rate, window.measured_ms))

    def _new(self, decision: ElasticDecision) -> ElasticDecision:
        decision = replace(decision, number=next(self._numbers))
        self.decisions.append(decision)
        if decision.outcome == ADVISED_ONLY:
            self._count_anew()
        return decision

    def enacted(self, decision: ElasticDecision, now: float) -> None:
        """The master scales the topology as decided."""
        self._enacted_at, self._watched, self._settled = now, decision.number, 0
        self._count_anew()

    def refused(self, decision: ElasticDecision, why: str, now: float) -> ElasticDecision:
        """The master cannot scale the topology as decided. The next try is after the cool-down."""
        self._enacted_at = now
        self._count_anew()
        return self._replace(replace(decision, outcome=REFUSED, reason=f"{decision.reason} ({why})"))

    def _observed(self, window: ElasticWindow) -> ElasticDecision | None:
        """The last enacted decision with the latency measured since: as soon as it has helped, or when it should have. A
        backlog takes some windows to be worked off."""
        watched = self._watched_decision
        if watched is None or self._settled < self.policy.settle_windows:
            return None
        if window.network.present != dict(watched.par):
            self._watched = None
            return self._replace(replace(watched, outcome=REFUSED, reason=f"{watched.reason} (not carried out: there are "
                                                                          f"{counted(window.network.present)})"))
        helped = self._helped(watched, window.measured_ms)
        late = self._settled >= max(self.policy.patience, self.policy.settle_windows)
        if not late and not (helped and watched.direction != SHRINK):
            return None
        self._watched = None
        return self._replace(replace(watched, measured_ms=window.measured_ms, helped=helped))

    def _helped(self, decision: ElasticDecision, measured: float | None) -> bool:
        """False if more tasks did not lower the latency, or fewer miss the goal."""
        if decision.direction == SHRINK:
            return not self._over(measured)
        met = self._goal.t_max_ms is not None and not self._over(measured)
        return met or measured is None or decision.was_ms is None or measured <= (1 - HELPED) * decision.was_ms

    def _over(self, measured: float | None) -> bool:
        """True if the measured latency is above the goal, or above the nearest that can be reached."""
        t_max = self._goal.t_max_ms
        return t_max is not None and measured is not None and measured > t_max

    def _revoked(self, new: ElasticDecision) -> ElasticDecision | None:
        """A decision for fewer tasks that did not help: more are needed again before it could be judged, under no more load
        than it allowed for."""
        watched = self._watched_decision
        allowed = (1 + self.policy.hysteresis) * (watched.offered_rate if watched is not None else 0.0)
        if watched is None or watched.direction != SHRINK or new.direction != GROW or new.offered_rate > allowed:
            return None
        self._watched = None
        return self._replace(replace(watched, measured_ms=new.was_ms, helped=False))

    @property
    def _watched_decision(self) -> ElasticDecision | None:
        return next((decision for decision in self.decisions if decision.number == self._watched), None)

    def _replace(self, decision: ElasticDecision) -> ElasticDecision:
        for position, known in enumerate(self.decisions):
            if known.number == decision.number:
                self.decisions[position] = decision
        return decision


@dataclass(frozen=True, slots=True)
class _Wish:
    """A change that would be good; no direction if the present numbers are as good. `urgent`: the goal is missed.
    `beyond_model`: by what is measured, though the model finds it met."""

    direction: str
    target: Allocation
    reason: str
    urgent: bool = False
    beyond_model: bool = False


def _direction(present: Mapping[str, int], target: Allocation) -> str:
    before, after = sum(present.values()), target.instances
    if dict(present) == dict(target.par):
        return ""
    return GROW if after > before else SHRINK if after < before else REARRANGE


def _shown(infeasible: Infeasible) -> str:
    return infeasible.reason + (f". Possible: {limits_shown(infeasible.nearest)}" if infeasible.nearest else "")


def _predicted(network: Network, par: Mapping[str, int]) -> float | None:
    latency = network.latency(par) * 1000
    return latency if math.isfinite(latency) else None


def _similar(one: float, other: float, by: float = SIMILAR) -> bool:
    """True if these are rates of a similar load: they differ at most by this share."""
    low, high = sorted((one, other))
    return high <= (1 + by) * low

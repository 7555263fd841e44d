"""The elastic loop of one topology: decides when the numbers of tasks change, and records what was expected and what came of
it.

It neither measures nor scales. Its driver calls `end_window` after each load window, which may be shorter than its own; if the
decision's outcome is `enacted`, it has the master scale the topology and calls `enacted` or `refused`.

- Growth is urgent: it happens if the present tasks miss the goal in each of the last `settle_windows` windows. Its target has
  half of `hysteresis` to spare.
- Fewer or other tasks are not: the goal must be met with `hysteresis` more load too, and by what is measured, in `patience`
  windows in a row.
- Nothing changes while tasks start or move, during the cool-down, or while the load changes much from window to window; except
  that tasks which cannot keep up in any of the windows grow also then.
- A decision that did not help is not taken again under a similar load for `retry_after` seconds. Fewer tasks are judged by the
  median of the windows since, so that one bad window decides nothing.
- If the measured latency stays above the goal though the model finds it met, the model is wrong, and tasks are added as for
  more load. Fewer are not tried again under such a load for as long.
- While a backlog waits at the sources, no task ends, even if nothing more is offered. A backlog that does not fall makes tasks
  grow by at most a quarter of the load that was carried when it was seen.
- While the goal is out of reach, that is reported once, and the loop works towards the nearest one that can be reached.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import median, median_low
from typing import Any

from millrace.elastic.allocation import Allocation, Infeasible, Limits, counted, limits_shown
from millrace.elastic.elastic_decision import (
    ADVISED_ONLY,
    GROWTH,
    INFEASIBLE,
    REARRANGE,
    REFUSED,
    SCALES,
    SHRINK,
    SUPERSEDED,
    ElasticDecision,
)
from millrace.elastic.elastic_policy import ElasticPolicy
from millrace.elastic.elastic_window import ElasticWindow, JoinedWindows
from millrace.elastic.kept_rates import KeptRates
from millrace.elastic.models import ElasticModel
from millrace.elastic.nearest_goal import NearestGoal, nearest_goal
from millrace.elastic.network import Network
from millrace.elastic.past_decisions import PastDecisions
from millrace.elastic.usual_rates import UsualRates

HELPED = 0.05  # share by which the latency must fall if growth is to count as a help
MOST_CATCH_UP = 0.25  # share of the load that may be added for a backlog
STEP, MOST_STEPS = 0.05, 20  # of load, by which tasks are added that the model does not ask for


@dataclass(frozen=True)
class ElasticChoice:
    """The model in use, with its parameters and the goal."""

    name: str
    parameters: Mapping[str, Any]
    limits: Limits
    model: ElasticModel


class ElasticLoop:
    """Times are passed in with every call, and are of the master's clock. `numbers`: of its decisions, shared with the loops of
    other topologies."""

    def __init__(self, topology: str, choice: ElasticChoice, policy: ElasticPolicy,
                 numbers: Iterator[int] | None = None) -> None:
        self.topology, self.choice, self.policy = topology, choice, policy
        self.past = PastDecisions(numbers, policy.retry_after)
        self.standing = "no load window yet"  # why nothing changes just now
        self._enacted_at: float | None = None
        self._watched: int | None = None  # number of the decision whose effect is not measured yet
        self._settled = 0  # windows since the last change that count
        self._since: deque[float] = deque(maxlen=max(policy.settle_windows, policy.patience))  # latencies measured in them
        self._windows = JoinedWindows(policy.period)
        self._offered = KeptRates(policy.period, choice.parameters.get("season", 0.0))
        longest = max(policy.settle_windows, policy.patience)
        self._wanted: deque[str] = deque(maxlen=longest)  # directions of the last windows, "" for none
        self._rates: deque[float] = deque(maxlen=longest)  # of all spouts together, in the last windows that count
        self._usual = UsualRates()
        self._refusals = 0  # in a row
        self._overloaded = 0  # windows in a row in which the present tasks could not keep up
        self._measured: deque[float | None] = deque(maxlen=policy.patience)  # latencies of the last windows
        self._backlogs: deque[int] = deque(maxlen=policy.patience)  # tuples that waited in the last windows
        self._before_growth: dict[str, float] | None = None  # rates of the spouts when tasks first grew for the backlog
        self._present: dict[str, int] | None = None  # numbers of tasks in the last window
        self._goal = choice.limits  # or the nearest that can be reached
        self._reported = False  # that the goal is out of reach
        self._reached = 0  # windows in a row in which the goal was feasible

    @property
    def decisions(self) -> deque[ElasticDecision]:
        """The newest decisions, in order of time."""
        return self.past.kept

    def remember(self, past: Iterable[ElasticDecision]) -> None:
        """Take over earlier decisions, oldest first. None of them keeps this loop from the same decision."""
        self.past.remember(past)

    # -- one window ----------------------------------------------------------------------------------------------------

    def end_window(self, now: float, window: ElasticWindow) -> list[ElasticDecision]:
        """The decisions of this window: an earlier one whose effect is known now, a goal that cannot be reached, and a new one.
        If the latter's outcome is `enacted`, the topology is to be scaled. A window shorter than the period is joined with the
        next ones, and nothing is decided before."""
        joined = self._windows.add(window)
        return self._end_own_window(now, joined) if joined is not None else []

    def _end_own_window(self, now: float, window: ElasticWindow) -> list[ElasticDecision]:
        self._offered.add(window.seconds, window.network.offered)
        if self._present != window.network.present:  # earlier windows say nothing about these
            self._present = window.network.present
            self._count_anew()
        if window.busy or window.settling:
            self._settle_anew()
            self.standing = window.busy or "tasks have just been started or moved"
            return []
        self._settled += 1
        if window.measured_ms is not None:
            self._since.append(window.measured_ms)
        self._rates.append(sum(window.rates.values()) if window.waiting else window.network.external_rate)
        known = self._observed(window)
        infeasible, new = self._decided(now, window)
        revoked = self._revoked(new) if new is not None and new.outcome == SCALES else None
        if revoked is not None and known is not None and known.number == revoked.number:
            known = None
        return [decision for decision in (known, revoked, infeasible, new) if decision is not None]

    def _settle_anew(self) -> None:
        """Forget the windows since the last change."""
        self._settled = 0
        self._since.clear()

    def _count_anew(self) -> None:
        """Forget the windows that called for a change."""
        self._overloaded = 0
        self._wanted.clear()
        self._measured.clear()
        self._backlogs.clear()

    def _decided(self, now: float, window: ElasticWindow) -> tuple[ElasticDecision | None, ElasticDecision | None]:
        """The decision that the goal cannot be reached, and the one for other numbers of tasks."""
        network = self.choice.model.load(self._usual.bounded(window.seconds, window.network), self._offered.past)
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
        self._backlogs.append(window.waiting)
        wish = self._wish_behind(network, goal, window) if window.waiting else self._wish_measured(goal, window)
        wish = self._in_steps(network, wish)
        self._wanted.append(wish.direction)
        if not window.waiting:
            self._before_growth = None
        held_back = self._held_back(now, window.at, wish, network)
        self.standing = f"{f'{_shown(beyond)}; meanwhile: ' if beyond is not None else ''}{held_back or wish.reason}"
        if not wish.direction or held_back:
            return infeasible, None
        if window.waiting and wish.direction == GROWTH and self._before_growth is None:
            self._before_growth = window.rates
        outcome = ADVISED_ONLY if self.policy.dry_run else SCALES
        if self.policy.dry_run:
            self._enacted_at = now
            self._count_anew()
        if wish.beyond_model:
            self.past.too_few(network.present, rate, window.at)
        return infeasible, self.past.add(ElasticDecision(
            0, window.at, self.topology, self.choice.name, wish.direction, outcome, wish.reason, network.present,
            dict(wish.target.par), rate, sum(window.carried.values()), window.measured_ms, wish.target.predicted_ms))

    def _wish_measured(self, goal: NearestGoal, window: ElasticWindow) -> _Wish:
        """The change that would be good by the model and by the measured latency."""
        wish = self._wish(goal)
        if wish.direction == GROWTH or wish.urgent or not self._over(window.measured_ms):
            return wish
        reason = f"{window.measured_ms:.1f} ms were measured, above the goal, though {wish.reason}"
        unexplained = not wish.direction and self._stays_over()
        return self._beyond_model(goal, reason) if unexplained else _Wish("", goal.need, reason)

    def _wish(self, goal: NearestGoal) -> _Wish:
        """The change that would be good by the model, whether or not it is time for it."""
        network, need, limits = goal.network, goal.need, goal.limits
        model, present, policy = self.choice.model, network.present, self.policy
        if missed := model.missed(network, present, limits):
            target = self._with_room(goal, policy.hysteresis / 2)
            return _Wish(_direction(present, target), target, f"{missed}: {target.reason}", urgent=True)
        target = self._bounded(network, self._with_room(goal, policy.hysteresis))
        if target.instances < sum(present.values()) and not model.missed(network, target.par, limits):
            return _Wish(SHRINK, target, f"{sum(present.values())} instances are more than needed: {target.reason}")
        now_ms = network.latency(present) * 1000
        if (limits.t_max_ms is None and limits.c_max is not None and need.predicted_ms is not None
                and need.predicted_ms < (1 - policy.min_gain) * now_ms):
            better = f"{now_ms:.1f} ms could become {need.predicted_ms:.1f} ms: {need.reason}"
            return _Wish(_direction(present, need), need, better)
        return _Wish("", need, f"{counted(present)} meet the goal")

    def _wish_behind(self, network: Network, goal: NearestGoal, window: ElasticWindow) -> _Wish:
        """The change that would be good while a backlog waits: no fewer tasks, except where c_max demands it. `network`: under
        the offered load."""
        model, present = self.choice.model, network.present
        waiting = f"{window.waiting:,} tuples wait at the sources"
        drain = nearest_goal(model, network.under(self._catch_up_rates(network, window)), self.choice.limits)
        if isinstance(drain, Infeasible):
            drain = goal
        stands = self._stands()
        missed = model.missed(goal.network, present, goal.limits)
        if not missed and stands:
            missed = model.missed(drain.network, present, drain.limits)
        if missed:
            target = _no_fewer(drain, self._with_room(drain, self.policy.hysteresis / 2))
            return _Wish(_direction(present, target), target, f"{missed}, and {waiting}: {target.reason}", urgent=True)
        if stands and not window.draining and any(window.carried.values()):  # more tasks are no use to spouts that rest
            return self._beyond_model(goal, f"{waiting} and do not become fewer, though {counted(present)} meet the goal")
        return _Wish("", drain.need, f"{waiting} and are worked off")

    def _catch_up_rates(self, network: Network, window: ElasticWindow) -> dict[str, float]:
        """The rates of the spouts for which tasks are sized while a backlog waits. They do not rise with the growth for it,
        or it would never end: a source with a backlog emits whatever the tasks can process."""
        known = window.rates if self._before_growth is None else self._before_growth
        rates = {name: max(offered, known.get(name, 0.0)) for name, offered in network.offered.items()}
        return {name: rate + min(window.backlog.get(name, 0) / self.policy.catch_up, MOST_CATCH_UP * rate)
                for name, rate in rates.items()}

    def _stands(self) -> bool:
        """True if a backlog has waited in all of the last windows and does not fall."""
        known = self._backlogs
        return len(known) == self.policy.patience and min(known) > 0 and known[-1] > (1 - HELPED) * known[0]

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
                    return _Wish(GROWTH, target, f"{reason}: {target.instances} instances would carry {step * STEP:.0%} more",
                                 urgent=True, beyond_model=True)
        return _Wish("", goal.need, reason)

    def _with_room(self, goal: NearestGoal, room: float) -> Allocation:
        """The allocation for `room` more load, or for the load as it is if that is not possible."""
        roomy = self.choice.model.allocate(goal.network.scaled(1 + room), goal.limits)
        return goal.need if isinstance(roomy, Infeasible) else replace(roomy, predicted_ms=_predicted(goal.network, roomy.par))

    def _bounded(self, network: Network, target: Allocation) -> Allocation:
        """The target, with as many tasks fewer as may end at once."""
        par = {name: max(target.par[name], math.ceil(tasks * (1 - self.policy.max_shrink)))
               for name, tasks in network.present.items()}
        return target if par == dict(target.par) else replace(target, par=par, predicted_ms=_predicted(network, par))

    def _in_steps(self, network: Network, wish: _Wish) -> _Wish:
        """The change, with at most `max_growth` times the tasks of a component: what a task can do is known of the present ones
        only."""
        par = {name: min(wish.target.par[name], max(math.floor(tasks * self.policy.max_growth), tasks + 1))
               for name, tasks in network.present.items()}
        if par == dict(wish.target.par):
            return wish
        target = replace(wish.target, par=par, predicted_ms=_predicted(network, par))
        return replace(wish, target=target, direction=_direction(network.present, target),
                       reason=f"{wish.reason}; {target.instances} at first")

    # -- reasons to wait -----------------------------------------------------------------------------------------------

    def _held_back(self, now: float, at: float, wish: _Wish, network: Network) -> str:
        """The reason why the wish is not granted yet; empty if it is. `at`: unix time."""
        if not wish.direction:
            return ""
        policy = self.policy
        needed = policy.settle_windows if wish.urgent else policy.patience
        if self._enacted_at is not None and now - self._enacted_at < self._pause:
            return f"cooling down for {self._pause - (now - self._enacted_at):.0f} s"
        same = len(list(takewhile(lambda wanted: wanted == wish.direction, reversed(self._wanted))))
        if same < needed:
            return f"{wish.direction} to {counted(wish.target.par)} wanted for {same} of {needed} windows"
        rates = list(self._rates)[-needed:]
        if self._overloaded < needed and max(rates) > (1 + policy.steady) * min(rates):
            return f"the offered rate changes between {min(rates):,.1f} and {max(rates):,.1f} tuples/s"
        missed_at = self.past.missed_at(at, wish.target.par, network.external_rate)
        if wish.direction == SHRINK and missed_at is not None:
            return f"as many tasks missed the goal at {missed_at:,.1f} tuples/s, by what was measured"
        futile = self.past.futile(at, wish.direction, wish.target.par, network, bool(self._overloaded))
        if futile is not None:
            return f"not repeated: decision {futile.number} did not help under this load"
        advised = self.past.same(at, ADVISED_ONLY, wish.target.par, network.present)
        return f"advised by decision {advised.number}" if advised is not None and policy.dry_run else ""

    @property
    def _pause(self) -> float:
        """Seconds after the last change, or the last one that was refused: longer after each refusal in a row."""
        policy = self.policy
        if self._refusals < 2:
            return policy.cool_down
        longest = max(policy.retry_after, policy.cool_down)
        return min(max(policy.cool_down, policy.period) * 2.0 ** min(self._refusals - 1, 30), longest)

    # -- the record ----------------------------------------------------------------------------------------------------

    def _infeasible(self, window: ElasticWindow, rate: float, beyond: Infeasible | None) -> ElasticDecision | None:
        """A decision that the goal cannot be reached; None if it can, or if that was reported already."""
        if beyond is None:
            self._reached += 1
            if self._reached >= self.policy.patience:
                self._reported = False
            return None
        self._reached = 0
        if self._reported:
            return None
        self._reported, present = True, window.network.present
        return self.past.add(ElasticDecision(
            0, window.at, self.topology, self.choice.name, "", INFEASIBLE, _shown(beyond), present, present, rate,
            sum(window.carried.values()), window.measured_ms))

    def enacted(self, decision: ElasticDecision, now: float) -> None:
        """The master scales the topology as decided."""
        self._enacted_at, self._watched, self._refusals = now, decision.number, 0
        self._settle_anew()
        self._count_anew()

    def refused(self, decision: ElasticDecision, why: str, now: float) -> ElasticDecision:
        """The master cannot scale the topology as decided. The next try is after the cool-down, and after twice as long each
        time that it is refused again."""
        self._enacted_at = now
        self._refusals += 1
        self._count_anew()
        return self.past.put(replace(decision, outcome=REFUSED, reason=f"{decision.reason} ({why})"))

    def _observed(self, window: ElasticWindow) -> ElasticDecision | None:
        """The last enacted decision with the latency measured since: as soon as it has helped, or when it should have. A
        backlog takes some windows to be worked off. None as long as nothing is measured by which it could be judged."""
        watched = self.past.of_number(self._watched)
        if watched is None or self._settled < self.policy.settle_windows:
            return None
        if window.network.present != dict(watched.par):
            self._watched = None
            return self.past.put(_superseded(watched, window.network.present))
        measured = self._measured_since(watched)
        helped = self._helped(watched, measured, window)
        late = self._settled >= max(self.policy.patience, self.policy.settle_windows) or _only_a_step(watched)
        if helped is None or (not late and not (helped and watched.direction != SHRINK)):
            return None
        self._watched = None
        return self.past.put(replace(watched, measured_ms=measured, helped=helped))

    def _measured_since(self, decision: ElasticDecision) -> float | None:
        """The latency by which a decision is judged. Fewer tasks: the median since. Otherwise that of the last few windows,
        the lower one of two: the latency falls while a backlog is worked off."""
        if not self._since:
            return None
        if decision.direction == SHRINK:
            return median(self._since)
        return median_low(list(self._since)[-self.policy.settle_windows:])

    def _helped(self, decision: ElasticDecision, measured: float | None, window: ElasticWindow) -> bool | None:
        """False if more tasks did not lower the latency, or fewer miss the goal; None if nothing tells. Where latency is no
        goal, the load of the tasks decides; for tasks that were not yet meant to keep up, what they process."""
        if _only_a_step(decision) and sum(window.carried.values()) >= (1 + HELPED) * decision.carried_rate:
            return True
        if "t_max_ms" not in self.choice.model.GOALS:
            network = self.choice.model.load(window.network, self._offered.past)
            return not self.choice.model.missed(network, network.present, self._goal)
        if measured is None:
            return None
        if decision.direction == SHRINK:
            return not self._over(measured)
        met = self._goal.t_max_ms is not None and not self._over(measured)
        return met or decision.was_ms is None or measured <= (1 - HELPED) * decision.was_ms

    def _over(self, measured: float | None) -> bool:
        """True if the measured latency is above the goal, or above the nearest that can be reached."""
        t_max = self._goal.t_max_ms
        return t_max is not None and measured is not None and measured > t_max

    def _revoked(self, new: ElasticDecision) -> ElasticDecision | None:
        """A decision for fewer tasks that did not help: more are needed again, under no more load than it allowed for."""
        undone = self.past.undone(new, self.policy.hysteresis)
        if undone is None:
            return None
        if undone.number == self._watched:
            self._watched, undone = None, replace(undone, measured_ms=new.was_ms)
        return self.past.put(replace(undone, helped=False))


@dataclass(frozen=True, slots=True)
class _Wish:
    """A change that would be good; no direction if the present numbers are as good. `urgent`: the goal is missed.
    `beyond_model`: by what is measured, though the model finds it met."""

    direction: str
    target: Allocation
    reason: str
    urgent: bool = False
    beyond_model: bool = False


def _only_a_step(decision: ElasticDecision) -> bool:
    """True if the tasks were not yet meant to keep up."""
    return decision.direction == GROWTH and decision.expected_ms is None and decision.carried_rate > 0


def _direction(present: Mapping[str, int], target: Allocation) -> str:
    before, after = sum(present.values()), target.instances
    if dict(present) == dict(target.par):
        return ""
    return GROWTH if after > before else SHRINK if after < before else REARRANGE


def _no_fewer(goal: NearestGoal, target: Allocation) -> Allocation:
    """The target with no task less than at present, unless that would be more than c_max."""
    par = {name: max(tasks, target.par[name]) for name, tasks in goal.network.present.items()}
    if par == dict(target.par) or (goal.limits.c_max is not None and sum(par.values()) > goal.limits.c_max):
        return target
    return replace(target, par=par, predicted_ms=_predicted(goal.network, par))


def _superseded(decision: ElasticDecision, present: Mapping[str, int]) -> ElasticDecision:
    """A decision that cannot be judged, since there are other numbers of tasks than it was for."""
    undone = all(present.get(name) == decision.before.get(name) for name in decision.changes)
    if undone:
        return replace(decision, outcome=REFUSED, reason=f"{decision.reason} (not carried out: there are {counted(present)})")
    return replace(decision, outcome=SUPERSEDED, reason=f"{decision.reason} (not judged: there "
                                                        f"are {counted(present)} by now)")


def _shown(infeasible: Infeasible) -> str:
    return infeasible.reason + (f". Possible: {limits_shown(infeasible.nearest)}" if infeasible.nearest else "")


def _predicted(network: Network, par: Mapping[str, int]) -> float | None:
    latency = network.latency(par) * 1000
    return latency if math.isfinite(latency) else None

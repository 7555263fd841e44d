"""Decides how many workers there should be: when Spark is asked for more, and which one is given back.

It neither starts nor ends a worker. Its driver, master/workers/capacity.py, tells it what there is and carries its decisions
out, one at a time. Workers are added if there are fewer than the minimum, if tasks have no slot, if a topology cannot be scaled
for want of room, or if workers stay overloaded and a new one would get tasks: a scheduler would move some, or elasticity start
some. A worker is given back if it has had no tasks, or little to do, for a while; tasks
that it has must fit on the other workers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from millrace.config import AUTO_COOLDOWN, AUTO_IDLE, AUTO_MAX, AUTO_MIN, AUTO_SHARE
from millrace.control.pauses import doubled_pause
from millrace.errors import BadParameter
from millrace.schedulers.parameters import check_parameters, parameter, with_parameters

AUTO_OFF = "off"
BY_CAPACITY = "workers auto"  # the cause of what it changes
OVERLOADED_WINDOWS = 2  # consecutive windows of overload after which workers are added
FIRST_PAUSE, LAST_PAUSE = 10.0, 3600.0  # seconds after a request that failed, doubled with each further one
NOBODY_USES_IT = ("neither a scheduler would move tasks to it, nor elasticity start some there. Choose one with `millrace "
                  "scheduler set` or `millrace elastic set`")
LOOKED_AT = 3  # workers with tasks for which it is worked out whether the others have room for these


@dataclass(frozen=True)
class AutoWorkers:
    """Limits of the number of workers and the pace of its changes. They are off if `max` is 0."""

    min: int = parameter(AUTO_MIN.default, AUTO_MIN.about, low=1)
    max: int = parameter(AUTO_MAX.default, AUTO_MAX.about, low=0)
    idle: float = parameter(AUTO_IDLE.default, AUTO_IDLE.about, low=0)
    cool_down: float = parameter(AUTO_COOLDOWN.default, AUTO_COOLDOWN.about, low=0)
    share: float = parameter(AUTO_SHARE.default, AUTO_SHARE.about, low=0, high=0.8)

    def __post_init__(self) -> None:
        check_parameters(self)
        if 0 < self.max < self.min:
            raise BadParameter(f"{self.min}..{self.max} workers were requested, but the most are fewer than the fewest. Give "
                               f"{self.max}..{self.min}, or {self.min}..{self.min} for a fixed number")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> AutoWorkers:
        """The settings of the engine with which it starts."""
        return cls(*(setting.of(settings) for setting in (AUTO_MIN, AUTO_MAX, AUTO_IDLE, AUTO_COOLDOWN, AUTO_SHARE)))

    def changed(self, limits: str, values: Mapping[str, Any]) -> AutoWorkers:
        """The settings with these changes. `limits`: MIN..MAX, or off."""
        return with_parameters(AutoWorkers, {**asdict(self), **values, **_limits(limits)}, "workers auto")

    @property
    def on(self) -> bool:
        return self.max > 0

    def __str__(self) -> str:
        return f"{self.min}..{self.max}" if self.on else AUTO_OFF


def _limits(text: str) -> dict[str, int]:
    """The limits that a user has given as MIN..MAX, or off."""
    if text.strip() == AUTO_OFF:
        return {"max": 0}
    given = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", text)
    if given is None:
        raise BadParameter(f"{text!r} is neither MIN..MAX, for example 2..6, nor {AUTO_OFF}")
    if int(given[2]) < 1:
        raise BadParameter(f"{text!r}: at most 0 workers are none. Give at least 1, or {AUTO_OFF}")
    return {"min": int(given[1]), "max": int(given[2])}


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A worker that has joined. `tasks`: those that it has, without ackers. `load`: the share of a core, or of its loop's time,
    that is in use, whichever is more; `heaviest`: that of its heaviest task. `stays`: why it cannot be removed."""

    slot: int
    executor: str = ""
    tasks: int = 0
    load: float = 0.0
    heaviest: float = 0.0
    stays: str = ""


@dataclass(frozen=True, slots=True)
class Shortage:
    """The number of workers that are missing, and why. `useless`: why more of them would not help; empty if they would."""

    workers: int
    reason: str
    useless: str = ""


@dataclass(frozen=True, slots=True)
class Workforce:
    """The workers as they are. `starting`: slots whose processes are being started, or started again. `under_way`: a change
    that must end first. `unplaced`: tasks have no slot, or a scheduler has none for them. `load_after`: the highest load of
    another worker or its node once a worker has handed its tasks over; None if they have no place."""

    workers: Sequence[WorkerSeen]
    load_after: Callable[[int], float | None]
    starting: int = 0
    under_way: str = ""
    unplaced: Shortage | None = None

    @property
    def count(self) -> int:
        return len(self.workers) + self.starting


@dataclass(frozen=True, slots=True)
class Add:
    """Ask Spark for so many more workers. `for_tasks`: tasks are to be placed there; False: the minimum asks for them."""

    count: int
    reason: str
    for_tasks: bool = False


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Remove this worker."""

    slot: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stay:
    """Change nothing. `short`: workers are missing all the same, and someone should know."""

    reason: str
    short: bool = False


Request = Add | GiveBack
CapacityDecision = Request | Stay


def shortage_of(workers: Sequence[WorkerSeen], nodes: Mapping[str, float], overload: float, *, moves: bool = True,
                grows: bool = False) -> Shortage | None:
    """The workers that are missing by the load of a window. A worker that one task alone overloads does not count: no placement
    relieves it. `nodes`: the share of each node's CPU that is in use. `overload`: the share from which on a worker or node is
    overloaded. `moves`: a scheduler would move tasks to a new worker; `grows`: elasticity would start tasks there."""
    full = [worker for worker in workers if worker.load >= overload > worker.heaviest and worker.tasks > 1]
    crowded = sorted(name for name, used in nodes.items() if used >= overload)
    if not full and not crowded:
        return None
    parts = [f"worker {worker.slot} is busy for {worker.load:.0%} of the time" for worker in full[:1]]
    parts += [f"so are {len(full) - 1} others" if len(full) > 2 else "so is another"] if len(full) > 1 else []
    parts += [f"node {name} uses {nodes[name]:.0%} of its CPU" for name in crowded[:1]]
    missing = math.ceil(sum(worker.load for worker in workers) / max(overload, 0.01)) - len(workers)
    return Shortage(max(1, missing), ", ".join(parts), "" if moves or grows else NOBODY_USES_IT)


@dataclass(slots=True)
class _Pace:
    """Requests of one kind that have failed in a row, and the time before which there is no other."""

    failures: int = 0
    not_before: float = float("-inf")

    def failed(self, now: float, first: float) -> None:
        self.failures += 1
        self.not_before = now + doubled_pause(self.failures, max(first, FIRST_PAUSE), LAST_PAUSE)

    def worked(self) -> None:
        self.failures, self.not_before = 0, float("-inf")


class WorkerCapacity:
    """One request is under way at a time: after `decide` has returned one, `added`, `given_back` or `failed` must be called."""

    def __init__(self, settings: AutoWorkers) -> None:
        self.settings = settings
        self.request: Request | None = None
        self._adding, self._giving_back = _Pace(), _Pace()
        self._changed_at = float("-inf")  # time when the number of workers was last changed
        self._quiet_since: dict[int, float] = {}  # slot -> time since which it has had nothing or little to do
        self._untried: set[int] = set()  # slots added for tasks that have had none yet
        self._overload: Shortage | None = None
        self._windows = 0  # consecutive windows of overload

    def set(self, settings: AutoWorkers) -> None:
        """Use these settings from now on. Failures of the past count no more."""
        self.settings = settings
        self._adding.worked()
        self._giving_back.worked()
        self._quiet_since.clear()

    def window(self, overload: Shortage | None) -> None:
        """The shortage by the load of the last window."""
        self._overload = overload
        self._windows = self._windows + 1 if overload is not None else 0

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decide(self, now: float, seen: Workforce) -> CapacityDecision:
        """The request to make now, or the reason to stay. A request that is returned counts as under way."""
        if not self.settings.on:
            return Stay("off")
        self._note(now, seen.workers)
        if self.request is not None:
            return Stay("a request is under way")
        if seen.under_way:
            return Stay(f"nothing is changed while {seen.under_way}")
        decision = self._decided(now, seen)
        if not isinstance(decision, Stay):
            self.request = decision
        return decision

    def _note(self, now: float, workers: Sequence[WorkerSeen]) -> None:
        """Note since when workers have had little to do."""
        quiet = [worker.slot for worker in workers if not worker.tasks or worker.load <= self.settings.share > 0]
        self._quiet_since = {slot: self._quiet_since.get(slot, now) for slot in quiet}
        self._untried -= {worker.slot for worker in workers if worker.tasks}

    def _decided(self, now: float, seen: Workforce) -> CapacityDecision:
        cooling = now - self._changed_at < self.settings.cool_down
        if seen.count > self.settings.max:
            return self._shrink(now, seen, cooling, f"{_there(seen.count)}, and the maximum is {self.settings.max}")
        shortage = self._shortage(seen)
        if shortage is not None:
            return self._grow(now, seen, cooling, shortage)
        if seen.count <= self.settings.min:
            return Stay(f"{_there(seen.count)}, the minimum")
        if seen.starting:
            return Stay("not all workers have joined")
        return self._shrink(now, seen, cooling)

    def _shortage(self, seen: Workforce) -> Shortage | None:
        if seen.count < self.settings.min:
            reason = f"{_there(seen.count)}, and the minimum is {self.settings.min}"
            return Shortage(self.settings.min - seen.count, reason)
        if seen.unplaced is not None:
            return seen.unplaced
        empty = any(not worker.tasks for worker in seen.workers)  # a scheduler can use that first
        return None if self._windows < OVERLOADED_WINDOWS or empty or seen.starting else self._overload

    def _grow(self, now: float, seen: Workforce, cooling: bool, shortage: Shortage) -> CapacityDecision:
        if shortage.useless:
            return Stay(f"{shortage.reason}; no worker is added: {shortage.useless}", short=True)
        room = self.settings.max - seen.count
        if room < 1:
            return Stay(f"{shortage.reason}; no worker is added: {_there(seen.count)}, the maximum. Raise it with `millrace "
                        "workers auto MIN..MAX`", short=True)
        if cooling or now < self._adding.not_before:
            return Stay(f"{shortage.reason}; a request for more workers waits for the end of a pause", short=not cooling)
        # Spark may have room for some of them: a smaller request follows one that was refused.
        count = max(1, min(shortage.workers, room) >> self._adding.failures)
        return Add(count, shortage.reason, for_tasks=seen.count >= self.settings.min)

    def _shrink(self, now: float, seen: Workforce, cooling: bool, too_many: str = "") -> CapacityDecision:
        open_ones = [worker for worker in seen.workers if not worker.stays] if len(seen.workers) > 1 else []
        ready = open_ones if too_many else [worker for worker in open_ones if self._quiet_for(worker.slot, now)]
        order = sorted(ready, key=lambda worker: _preference(worker, seen.workers, {each.slot for each in ready}))
        if cooling or now < self._giving_back.not_before:
            return Stay("a pause after the last change is not over")
        for worker in order[:LOOKED_AT]:
            if not worker.tasks:
                return GiveBack(worker.slot, too_many or f"it has had no tasks for {self.settings.idle:g} s")
            after = seen.load_after(worker.slot)
            if after is not None and (too_many or after <= self.settings.share):
                return GiveBack(worker.slot, too_many or f"its tasks fit on other workers, which are then busy for at most "
                                                         f"{after:.0%} of the time")
        if not too_many:
            return Stay("there are as many workers as are needed")
        staying = [f"worker {worker.slot}: {worker.stays}" for worker in seen.workers if worker.stays]
        return Stay("; ".join([f"{too_many}, but none can be given back", *staying[:1]]))

    def _quiet_for(self, slot: int, now: float) -> bool:
        """True if the worker has had little to do for long enough."""
        return slot in self._quiet_since and now - self._quiet_since[slot] >= self.settings.idle

    # -- outcomes of requests ------------------------------------------------------------------------------------------

    def added(self, now: float, slots: Collection[int]) -> None:
        self._untried |= set(slots) if isinstance(self.request, Add) and self.request.for_tasks else set()
        self._adding.worked()
        self._over(now)

    def given_back(self, now: float) -> None:
        slot = self.request.slot if isinstance(self.request, GiveBack) else -1
        self._giving_back.worked()
        if slot in self._untried:  # it was of no use: another one would not be either
            self._untried.discard(slot)
            self._adding.failed(now, self.settings.cool_down)
        self._over(now)

    def failed(self, now: float) -> None:
        """The request was refused, or could not be carried out: the number of workers is as before."""
        (self._adding if isinstance(self.request, Add) else self._giving_back).failed(now, self.settings.cool_down)
        self.request = None

    def _over(self, now: float) -> None:
        self.request, self._changed_at, self._windows, self._overload = None, now, 0, None


def _there(workers: int) -> str:
    return "there is 1 worker" if workers == 1 else f"there are {workers} workers"


def _preference(worker: WorkerSeen, workers: Sequence[WorkerSeen], ready: Collection[int]) -> tuple[Any, ...]:
    """Sorts the workers that could be given back: first those without tasks, then those whose executor is then free, at once or
    when its other workers are given back as well; then the least loaded, and the newest."""
    on_executor = Counter(other.slot in ready for other in workers if other.executor == worker.executor)
    return worker.tasks > 0, on_executor[False], on_executor[True], worker.load, -worker.slot

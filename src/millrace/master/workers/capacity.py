"""The control of the number of workers, on the master's thread: it looks at workers and loads, lets
`control/scheduling/capacity.py` decide, and requests or gives back workers through the pool."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, Protocol

from millrace.control.events import Say
from millrace.control.moves import PERSON
from millrace.control.scheduling.capacity import (
    BY_CAPACITY,
    Add,
    AutoWorkers,
    CapacityDecision,
    GiveBack,
    Request,
    Shortage,
    Stay,
    WorkerCapacity,
    WorkerSeen,
    Workforce,
    shortage_of,
)
from millrace.control.scheduling.overload import machine_loads
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import STARTING, STOPPING, WAITING
from millrace.control.wording import workers_named
from millrace.errors import MillraceError, NoRoom
from millrace.master.scheduling.loop import SchedulingLoop
from millrace.master.state_view import MasterView
from millrace.master.workers.pool import WorkerPool
from millrace.model.graph import ACKER, TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.sample import WindowSample
from millrace.schedulers.base import NewPlan
from millrace.schedulers.registry import OFF

log = logging.getLogger("millrace.master")
LOOK_SECONDS = 0.5  # between two decisions
WAIT_SECONDS = 30.0  # that tasks without a slot wait for workers that Spark restarts by itself
REFUSED_SECONDS = 120.0  # for which a change of parallelism that was refused asks for workers: someone may try again


class CapacityPort(Protocol):
    """The part of the master that the control of the number of workers uses."""

    @property
    def state(self) -> MasterView: ...
    @property
    def scheduling(self) -> SchedulingLoop: ...
    @property
    def pool(self) -> WorkerPool: ...

    def say(self, message: Say) -> None:
        """Report something to users."""


class CapacityLoop:
    """Called on the master's thread. `trouble`: why the last request could not be fulfilled; empty if it was."""

    def __init__(self, settings: Mapping[str, Any], master: CapacityPort) -> None:
        self._master = master
        self._control = WorkerCapacity(AutoWorkers.of(settings))
        self._answer: Future[dict[str, Any]] | None = None
        self._last: CapacityDecision = Stay("no decision yet")
        self._sample: WindowSample | None = None  # the last one that was looked at
        self._look_at = float("-inf")
        self._waits_since: float | None = None  # time since which tasks have had no slot
        self._refused: tuple[float, str] | None = None  # until when a change of parallelism asks for workers, and why
        self.trouble = ""

    # -- requests of users ---------------------------------------------------------------------------------------------

    def choose(self, limits: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
        """Use these limits (MIN..MAX, or off) and settings from now on; those that are left out stay as they are."""
        self._master.pool.checked()
        current = self._control.settings
        self._control.set(current.changed(limits if limits is not None else str(current), values))
        self.trouble = ""
        self._master.say(Say(f"workers auto {self._control.settings} is in use", cause=PERSON))
        return self.settings()

    def settings(self) -> dict[str, Any]:
        """Limits and settings in use, what was decided last, and what is under way, as `workers auto` prints them."""
        settings, request = self._control.settings, self._control.request
        return {"on": settings.on, **asdict(settings), "decision": self._last.reason if settings.on else "",
                "under_way": _named(request) if request is not None else "", "trouble": self.warning}

    @property
    def warning(self) -> str:
        """The reason why there are fewer workers than are needed; empty if there are enough, as far as is known."""
        if not self._control.settings.on:
            return ""
        short = isinstance(self._last, Stay) and self._last.short
        return self.trouble or (self._last.reason if short else "")

    # -- decisions -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        if self._answer is not None and self._answer.done():
            self._finish(now, self._answer)
        if now < self._look_at or not self._control.settings.on or self._master.pool.supply is None:
            return
        self._look_at = now + LOOK_SECONDS
        scheduling = self._master.scheduling
        if scheduling.sample is not None and scheduling.sample is not self._sample and not scheduling.asking:
            self._sample = scheduling.sample
            self._control.window(self._overload(now, self._sample))
        self._last = self._control.decide(now, self._seen(now))
        if not isinstance(self._last, Stay):
            self._carry_out(now, self._last)

    def _overload(self, now: float, sample: WindowSample) -> Shortage | None:
        """The workers that are missing by the load of the window, unless tasks have moved: that may have helped."""
        generator = self._master.scheduling.generator
        if generator.cooling(now) or any(load.settling for load in sample.loads.values()):
            return None
        nodes = {machine.name: machine.share for machine in machine_loads(sample, self._master.state.cluster())}
        return shortage_of(list(self._workers()), nodes, generator.overload,
                           moves=generator.choice.name != OFF and not generator.policy.dry_run,
                           grows=self._master.scheduling.elastic.grows)

    def _seen(self, now: float) -> Workforce:
        supply = self._master.pool.checked()
        starting = supply.slots() - self._master.state.workers.keys()
        return Workforce(list(self._workers()), self._load_after, len(starting), self._under_way(), self._unplaced(now))

    def _under_way(self) -> str:
        """The change that must end first; empty if there is none."""
        state = self._master.state
        for name, topology in state.topologies.items():
            if topology.migration is not None or not topology.handover.at_rest:
                return f"tasks of {name} move"
            if topology.scaling is not None:
                return f"{name} is being scaled"
            if topology.status in (STARTING, STOPPING):
                return f"{name} is {topology.status}"
        for slot in state.workers:
            if state.leaving(slot):
                return f"worker {slot} is being {state.leaving(slot)}"
        return "workers are being changed by hand" if self._control.request is None and self._master.pool.under_way else ""

    def _unplaced(self, now: float) -> Shortage | None:
        """The shortage if tasks wait for a slot: those of topologies, those for which the scheduler in use has none, or those
        that a topology was not given for want of room."""
        waiting = [name for name, topology in self._master.state.topologies.items() if topology.status == WAITING]
        self._waits_since = (now if self._waits_since is None else self._waits_since) if waiting else None
        if self._waits_since is not None and now - self._waits_since >= WAIT_SECONDS:
            return Shortage(1, f"tasks of {', '.join(waiting)} have no slot")
        scheduling = self._master.scheduling
        if scheduling.unplaced:
            return Shortage(1, f"scheduler {scheduling.generator.choice.name} finds no place: {scheduling.unplaced}")
        if self._refused is not None and now < self._refused[0]:
            return Shortage(1, self._refused[1])
        return None

    def refused(self, now: float, error: NoRoom) -> None:
        """Note that a topology could not be scaled because there was no room for its tasks."""
        self._refused = now + max(REFUSED_SECONDS, 2 * self._control.settings.cool_down), str(error)

    # -- loads ---------------------------------------------------------------------------------------------------------

    def _workers(self) -> Iterator[WorkerSeen]:
        state = self._master.state
        hosted: dict[int, list[tuple[TopologyState, TaskId]]] = {slot: [] for slot in state.workers}
        for topology in state.topologies.values():
            for task, place in topology.places.items():
                if place.slot in hosted:
                    hosted[place.slot].append((topology, task))
        for slot, tasks in sorted(hosted.items()):
            own = [(topology, task) for topology, task in tasks if task.component != ACKER]
            fixed = next((f"{task} of {topology.graph.name} cannot be moved" for topology, task in own
                          if not topology.graph.movable(task)), "")
            yield WorkerSeen(slot, state.workers[slot].executor, len(own), self._load(slot),
                             max((self._task_load(topology.graph, task, slot) for topology, task in own), default=0.0), fixed)

    def _load(self, slot: int) -> float:
        """The share of a core, or of its loop's time, that the worker uses; 0 if it was not measured."""
        measured = self._sample.workers.get(slot) if self._sample is not None else None
        if measured is None:
            return 0.0
        busy = min(measured.busy, 1.0)  # more if a long call that ended in the window had begun before
        return max(busy, measured.cpu_mhz / max(self._master.state.workers[slot].node.mhz, 1e-9))

    def _task_load(self, graph: TopologyGraph, task: TaskId, slot: int) -> float:
        """The same of a task, if it runs on that worker."""
        load = self._sample.loads.get(graph.name, Load()) if self._sample is not None else Load()
        if task not in load.tasks:
            return 0.0
        blocking = task.component != ACKER and graph.component(task.component).blocking
        busy = 0.0 if blocking else load.capacity(task)
        return max(busy, load.tasks[task].cpu_mhz / max(self._master.state.workers[slot].node.mhz, 1e-9))

    def _load_after(self, slot: int) -> float | None:
        """The highest load of a worker, or of its node, that gets tasks of this worker when it is removed; None if they have no
        place."""
        state = self._master.state
        gets: defaultdict[int, float] = defaultdict(float)
        mhz: defaultdict[int, float] = defaultdict(float)
        for name, topology in state.topologies.items():
            tasks = [task for task, place in topology.places.items() if place.slot == slot]
            if not tasks:
                continue
            result = state.placed(topology.graph, topology.plan, without=[slot])
            if not isinstance(result, NewPlan):
                return None
            for task in tasks:
                target = result.plans[name].placement[task]
                gets[target] += self._task_load(topology.graph, task, target)
                mhz[target] += self._mhz(name, task)
        workers = [self._load(target) + more for target, more in gets.items()]
        return max([*workers, *self._nodes_after(slot, mhz)], default=0.0)

    def _mhz(self, topology: str, task: TaskId) -> float:
        load = self._sample.loads.get(topology) if self._sample is not None else None
        return load.tasks[task].cpu_mhz if load is not None and task in load.tasks else 0.0

    def _nodes_after(self, source: int, mhz: Mapping[int, float]) -> Iterator[float]:
        """The share of their CPU that nodes use which get tasks. `mhz`: by worker, the CPU that its new tasks use."""
        workers = self._master.state.workers
        more: defaultdict[str, float] = defaultdict(float)
        for slot, used in mhz.items():
            more[workers[slot].node.name] += used
        more[workers[source].node.name] -= sum(mhz.values())
        for name, used in more.items():
            measured = self._sample.nodes.get(name) if self._sample is not None else None
            if measured is not None and used > 0 and measured.capacity_mhz > 0:
                yield (measured.cpu_mhz + used) / measured.capacity_mhz

    # -- requests to the pool ------------------------------------------------------------------------------------------

    def _carry_out(self, now: float, request: Request) -> None:
        if not self.trouble:  # else it is a further try, which would fill the events
            self._master.say(Say(f"{_named(request)}: {request.reason}", cause=BY_CAPACITY))
        try:
            self._answer = (self._master.pool.add(request.count) if isinstance(request, Add)
                            else self._master.pool.remove(request.slot, BY_CAPACITY))
        except MillraceError as error:
            self._failed(now, request, error)

    def _finish(self, now: float, answer: Future[dict[str, Any]]) -> None:
        request, self._answer, error = self._control.request, None, answer.exception()
        assert request is not None
        if error is not None:
            self._failed(now, request, error)
            return
        self.trouble, result = "", answer.result()
        if isinstance(request, GiveBack):
            self._control.given_back(now)
            executor = f"; executor {result['executor']} was given back" if result["executor_given_back"] else ""
            self._master.say(Say(f"worker {request.slot} was given back{executor}", cause=BY_CAPACITY))
        else:
            self._control.added(now, result["slots"])
            self._refused = None
            self._master.scheduling.workers_joined()
            self._master.say(Say(f"{workers_named(result['slots'])} added", cause=BY_CAPACITY))

    def _failed(self, now: float, request: Request, error: BaseException) -> None:
        """Report a request that failed; the same failure only once."""
        self._control.failed(now)
        why = str(error) if isinstance(error, MillraceError) else f"{type(error).__name__}: {error}"
        what = "no worker could be added" if isinstance(request, Add) else f"worker {request.slot} was not given back"
        log.info("workers auto: %s: %s", what, why)
        before, self.trouble = self.trouble, f"{what}: {why}. It is tried again, less and less often"
        if self.trouble != before:
            self._master.say(Say(self.trouble, level="warning", cause=BY_CAPACITY))


def _named(request: Request) -> str:
    if isinstance(request, GiveBack):
        return f"worker {request.slot} is to be given back"
    return "1 more worker is requested" if request.count == 1 else f"{request.count} more workers are requested"

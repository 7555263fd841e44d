"""Handlers of requests to a running master, one for each verb. Everything here runs on the master's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from millrace.control.events import Event, Moved, Paused, Rebalanced, Regrouped, Rescaled, Unpaused, Withdrawn
from millrace.control.moves import BY_HANDOVER
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import STARTING
from millrace.control.wording import tasks_listed
from millrace.errors import UnknownName
from millrace.master.checkpoints.state_queries import StateQueries
from millrace.master.requests.record import slot_of, task_named
from millrace.master.requests.server import MasterRequest, Verb
from millrace.master.requests.status import Overview, load_of, plans_of, workers_of
from millrace.master.requests.taps import TapDirectory
from millrace.master.scheduling.elastic import Elasticity
from millrace.master.scheduling.loop import SchedulingLoop
from millrace.master.state_view import MasterView
from millrace.model.graph import ACKER, TaskId


class TopologyVerbs:
    """Verbs that change running topologies. `tell` lets the master decide on an event; `kill` takes a topology and the seconds
    for its tuples in flight."""

    def __init__(self, state: MasterView, tell: Callable[[Event], None], kill: Callable[[str, float], None]) -> None:
        self._state, self._tell, self._end = state, tell, kill

    def verbs(self) -> dict[str, Verb]:
        return {"kill": self._kill, "pause": self._pause, "unpause": self._unpause, "move": self._move,
                "cancel move": self._cancel_move, "scale": self._scale, "regroup": self._regroup,
                "rebalance": self._rebalance}

    def _kill(self, request: MasterRequest) -> str:
        name: str = request["topology"]
        self._end(name, float(request.get("wait", 10.0)))
        return name

    def _pause(self, request: MasterRequest) -> str:
        self._tell(Paused(request["topology"]))
        return str(request["topology"])

    def _unpause(self, request: MasterRequest) -> str:
        self._tell(Unpaused(request["topology"]))
        return str(request["topology"])

    def _move(self, request: MasterRequest) -> dict[str, Any]:
        """Move a task. `topology` defaults to the one that has the task, `strategy` to hand-over."""
        try:
            task, slot = TaskId.parse(str(request["task"])), int(request["slot"])
        except ValueError as error:
            raise UnknownName(str(error)) from None
        name: str = request.get("topology") or self._topology_with_task(task)
        topology = self._state.topology(name)
        source = topology.places[task].slot if task in topology.places else None
        strategy = str(request.get("strategy") or BY_HANDOVER)
        self._tell(Moved(name, task, slot, strategy, dict(request.get("parameters") or {})))
        keyed = task.component != ACKER and topology.graph.component(task.component).keyed
        return {"topology": name, "task": str(task), "from": source, "to": slot, "keyed": keyed,
                "waves": topology.waves is not None, "batched": topology.batched, "strategy": strategy,
                **_awaited(topology, task in topology.handover.waiting)}

    def _cancel_move(self, request: MasterRequest) -> dict[str, Any]:
        """Cancel the move of a task, and those of its key groups to other tasks. `topology` defaults to the one that has the
        task."""
        task = task_named(request["task"])
        name: str = request.get("topology") or self._topology_with_task(task)
        topology = self._state.topology(name)
        handover = topology.handover
        groups = [group for moving in handover.groups_leaving(task) for group in moving.groups]
        groups += [group for _, group in handover.groups_waiting(task, topology.key_groups)]
        self._tell(Withdrawn(name, task))
        return {"topology": name, "task": str(task), "groups": sorted(groups),
                "splits": task.component in topology.graph.splits, "worker": slot_of(topology, task)}

    def _rebalance(self, request: MasterRequest) -> dict[str, Any]:
        """Migrate a topology. `placement`: the new slot of each task that moves."""
        name, strategy = str(request["topology"]), str(request.get("strategy") or BY_HANDOVER)
        wanted = {task_named(task): int(slot) for task, slot in request["placement"].items()}
        places = self._state.topology(name).places
        before = {task: places[task].slot for task in wanted if task in places}
        self._tell(Rebalanced(name, wanted, strategy, dict(request.get("parameters") or {})))
        moves = [{"task": str(task), "from": before[task], "to": slot} for task, slot in sorted(wanted.items())
                 if before[task] != slot]
        return {"topology": name, "strategy": strategy, "moves": moves}

    def _scale(self, request: MasterRequest) -> dict[str, Any]:
        """Change the parallelism. `par`: component -> tasks. `topology` defaults to the one that has these components.
        `changed` is also true if the numbers are the same and a change to them that was given up is completed.
        `key_groups_moved` is null while the change is under way."""
        par: dict[str, int] = dict(request["par"])
        name: str = request.get("topology") or self._topology_with_components(par)
        topology = self._state.topology(name)
        before = {component: topology.graph.component(component).par for component in par}
        owners = {component: topology.key_groups[component] for component in par if component in topology.key_groups}
        self._tell(Rescaled(name, par))
        wanted = {component: list(topology.scaling.owners[component] if topology.scaling is not None
                                  and component in topology.scaling.owners else topology.key_groups[component])
                  for component in owners}
        fewest = sum(old != new for component, groups in owners.items()
                     for old, new in zip(groups, wanted[component], strict=True))
        under_way = topology.scaling is not None
        return {"topology": name, "from": before, "to": par, "version": topology.version, "batched": topology.batched,
                "changed": before != par or under_way, "key_groups": wanted,
                "splits": sorted(topology.graph.splits.keys() & par.keys()), "key_groups_moved": None if under_way else fewest,
                "key_groups_minimum": fewest}

    def _regroup(self, request: MasterRequest) -> dict[str, Any]:
        """Change the owners of key groups: group -> index of a task. `topology` defaults to the one that has the component."""
        component: str = request["component"]
        owners = {int(group): int(owner) for group, owner in request["owners"].items()}
        name: str = request.get("topology") or self._topology_with_components([component])
        topology = self._state.topology(name)
        before = topology.handover.owners_to_be(component, topology.key_groups.get(component, ()))
        self._tell(Regrouped(name, component, owners))
        moved = {group: {"from": before[group], "to": owner} for group, owner in sorted(owners.items())
                 if before[group] != owner}
        waits = any((component, group) in topology.handover.regrouping for group in moved)
        return {"topology": name, "component": component, "groups": moved,
                "splits": component in topology.graph.splits, "batched": topology.batched, **_awaited(topology, waits)}

    def _topology_with_components(self, components: Iterable[str]) -> str:
        topologies = {name: {component.name for component in topology.graph.components}
                      for name, topology in self._state.topologies.items()}
        matches = [name for name, names in topologies.items() if names.issuperset(components)]
        if len(matches) == 1:
            return matches[0]
        wanted = ", ".join(map(repr, components))
        if matches:
            raise UnknownName(f"{', '.join(matches)} all have {wanted}: choose one with --topology")
        running = "; ".join(f"{name} has {', '.join(sorted(names))}" for name, names in topologies.items())
        raise UnknownName(f"no running topology has {wanted}; {running or 'none is running'}")

    def _topology_with_task(self, task: TaskId) -> str:
        topologies = {name: topology.graph.tasks() for name, topology in self._state.topologies.items()}
        matches = [name for name, tasks in topologies.items() if task in tasks]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UnknownName(f"{', '.join(matches)} all have a task {task}: choose one with --topology")
        running = tasks_listed(task for tasks in topologies.values() for task in tasks)
        raise UnknownName(f"no running topology has a task {task}; there are {running}")


def _awaited(topology: TopologyState, waits: bool) -> dict[str, Any]:
    """Fields for what a move waits for, if it does: tasks that move, or whose key groups do, and the start of the topology."""
    moving = sorted({moving.task for moving in topology.handover.batch}) if waits else []
    return {"waits_for": list(map(str, moving)), "starting": waits and topology.status == STARTING}


class Pool(Protocol):
    """Adds, removes and restarts workers."""

    def add(self, count: int) -> Future[dict[str, Any]]: ...
    def remove(self, slot: int) -> Future[dict[str, Any]]: ...
    def restart(self, slot: int) -> Future[dict[str, Any]]: ...


class WorkerLimits(Protocol):
    """Controls the number of workers."""

    def choose(self, limits: str | None, values: Mapping[str, Any]) -> dict[str, Any]: ...
    def settings(self) -> dict[str, Any]: ...


def worker_verbs(master: Overview, pool: Pool, auto: WorkerLimits) -> dict[str, Verb]:
    """Verbs about workers."""
    return {"workers": lambda request: workers_of(master),
            "workers auto": lambda request: auto.choose(request["limits"], request["values"]),
            "workers auto show": lambda request: auto.settings(),
            "workers add": lambda request: pool.add(int(request["count"])),
            "workers remove": lambda request: pool.remove(int(request["slot"])),
            "workers restart": lambda request: pool.restart(int(request["slot"]))}


def scheduler_verbs(scheduling: SchedulingLoop, state: MasterView) -> dict[str, Verb]:
    """Verbs about load, plans and the scheduler."""

    def choose(request: MasterRequest) -> Future[dict[str, Any]]:
        return scheduling.choose(request["name"], request["parameters"], request["policy"], request.get("estimator"),
                                 request.get("estimator_parameters"), bool(request.get("enact")))

    return {"plan": lambda request: plans_of(state),
            "load": lambda request: load_of(state, scheduling, request.get("topology")),
            "situation": lambda request: scheduling.situation_with_links().to_json(),
            "scheduler show": lambda request: scheduling.settings(),
            "scheduler history": lambda request: scheduling.past(int(request["limit"])),
            "scheduler set": choose, **_elastic_verbs(scheduling.elastic)}


def _elastic_verbs(elastic: Elasticity) -> dict[str, Verb]:
    """Verbs about numbers of tasks that change by themselves. `topology` defaults to the only one that runs."""
    return {"elastic set": lambda request: elastic.choose(request.get("topology"), str(request["model"]),
                                                          dict(request.get("values") or {})),
            "elastic off": lambda request: elastic.off(request.get("topology")),
            "elastic show": lambda request: elastic.settings(request.get("topology")),
            "elastic history": lambda request: elastic.past(int(request["limit"]), request.get("topology"))}


def reading_verbs(state: MasterView, queries: StateQueries, taps: TapDirectory, store: str) -> dict[str, Verb]:
    """Verbs that read state and streams of running topologies. `store`: the place of the checkpoints."""

    def query(request: MasterRequest) -> Future[dict[str, Any]]:
        return queries.query(request.get("topology"), request["component"], request["key"], request["state"])

    return {"has": lambda request: request["topology"] in state.topologies,
            "state": lambda request: queries.overview(request.get("topology")),
            "query": query,
            "taps": lambda request: taps.describe(request["topology"], request["component"]),
            "store": lambda request: store}

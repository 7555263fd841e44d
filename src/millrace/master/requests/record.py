"""Requests about the past and the present of running topologies: events, migrations, and moves under way."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from millrace.control.scaling import BY_SCALING
from millrace.control.strategies.steps import step_name
from millrace.control.topology_state import TopologyState
from millrace.control.wording import tasks_listed
from millrace.errors import UnknownName, UnknownTopology
from millrace.master.load.migration_log import MigrationLog
from millrace.master.requests.server import MasterRequest, Verb
from millrace.master.state_view import MasterView
from millrace.model.graph import TaskId


class KeptRecord:
    """The events and migrations that are kept, and the names in them. `ended`: topologies that have ended recently."""

    def __init__(self, state: MasterView, log: MigrationLog, events: Iterable[dict[str, Any]], ended: Iterable[str]) -> None:
        self._state, self._log, self._events, self._ended = state, log, events, ended

    def events(self, topology: str | None, task: str | None) -> list[dict[str, Any]]:
        """The events of a topology, with those of the whole cluster; or only those that concern a task: they name it, or are
        about its topology as a whole."""
        self._check_topology(topology)
        found = [event for event in self._events if topology is None or event["topology"] in ("", topology)]
        if task is None:
            return found
        wanted, by_topology = task_named(task), self._known_tasks(topology)
        known = set().union(*by_topology.values())
        if wanted not in known:
            of = f" of {topology!r}" if topology is not None else ""
            raise UnknownName(f"no task {wanted}{of} is running or on record; known: {tasks_listed(known)}")
        its = {name for name, tasks in by_topology.items() if name and wanted in tasks}
        return [event for event in found
                if str(wanted) in event["tasks"] or (not event["tasks"] and event["topology"] in its)]

    def migrations(self, topology: str | None, number: int | None) -> list[dict[str, Any]]:
        """The migrations of a topology; or one of them, in full."""
        self._check_topology(topology)
        if number is None:
            return self._log.past(topology)
        found = self._log.one(number)
        if topology not in (None, found["topology"]):
            raise UnknownName(f"migration {number} is not of {topology!r} but of {found['topology']!r}")
        return [found]

    def _check_topology(self, name: str | None) -> None:
        running = list(self._state.topologies)
        if name is None or name in running:
            return
        past = {*self._ended, *(event["topology"] for event in self._events if event["topology"]),
                *(row["topology"] for row in self._log.past())}.difference(running)
        if name not in past:
            raise UnknownTopology(f"no topology named {name!r} is running or on record; running: "
                                  f"{', '.join(running) or 'none'}; on record: {', '.join(sorted(past)) or 'none'}")

    def _known_tasks(self, topology: str | None) -> dict[str, set[TaskId]]:
        """The tasks of a topology, or of all, that run or that the record names: by topology, with "" for those that an event
        of the whole cluster names."""
        known = {name: set(each.graph.tasks()) for name, each in self._state.topologies.items()}
        for row in self._log.past(topology):
            known.setdefault(row["topology"], set()).update(TaskId.parse(move["task"]) for move in row.get("moved", ()))
        for event in self._events:
            known.setdefault(event["topology"], set()).update(map(TaskId.parse, event["tasks"]))
        return {name: tasks for name, tasks in known.items() if topology in (None, name)}


def record_verbs(state: MasterView, log: MigrationLog, events: Iterable[dict[str, Any]],
                 ended: Iterable[str]) -> dict[str, Verb]:
    record = KeptRecord(state, log, events, ended)

    def migrations(request: MasterRequest) -> list[dict[str, Any]]:
        number = request.get("id")
        return record.migrations(request.get("topology"), None if number is None else int(number))

    return {"events": lambda request: record.events(request.get("topology"), request.get("task")),
            "migrations": migrations,
            "moves": lambda request: moves_of(state, time.monotonic(), request.get("topology"))}


def task_named(name: Any) -> TaskId:
    try:
        return TaskId.parse(str(name))
    except ValueError as error:
        raise UnknownName(str(error)) from None


def moves_of(state: MasterView, now: float, topology: str | None) -> list[dict[str, Any]]:
    """The moves that are under way or wait, by topology."""
    topologies = state.topologies.values() if topology is None else [state.topology(topology)]
    return [_moves(each, now) for each in topologies
            if not each.handover.at_rest or each.migration is not None or each.scaling is not None]


def _moves(topology: TopologyState, now: float) -> dict[str, Any]:
    handover = topology.handover
    moving = [{"task": str(moving.task), "groups": list(moving.groups), "splits": moving.splits,
               "to_task": str(moving.target), "from": moving.old.slot, "to": moving.new.slot, "cause": str(moving.cause),
               "armed": moving.armed >= handover.base[0], "taken": moving.taken, "precopied_bytes": moving.copied_bytes}
              for moving in handover.batch]
    return {"topology": topology.graph.name, "phase": handover.phase,
            "seconds": round(now - handover.began, 3) if moving else 0.0, "progress": round(handover.progress, 3),
            "moving": moving, "migration": _migration(topology, now),
            "waiting": [*_tasks_waiting(topology), *_groups_waiting(topology)]}


def _migration(topology: TopologyState, now: float) -> dict[str, Any] | None:
    """The migration that is under way, by another strategy than hand-over of single moves, or the change of parallelism."""
    migration, scaling = topology.migration, topology.scaling
    if scaling is not None:
        return {"strategy": BY_SCALING, "cause": str(scaling.cause), "seconds": round(now - scaling.began, 3),
                "step": scaling.phase, "progress": round(scaling.progress, 3), "tasks": sorted(map(str, scaling.joining)),
                "trouble": scaling.trouble}
    if migration is None:
        return None
    return {"strategy": migration.strategy, "cause": str(migration.cause), "seconds": round(now - migration.began, 3),
            "step": step_name(migration.step) if migration.step is not None else "", "progress": round(migration.progress, 3),
            "tasks": sorted(map(str, migration.moves)), "trouble": migration.trouble}


def _tasks_waiting(topology: TopologyState) -> list[dict[str, Any]]:
    return [{"task": str(task), "groups": [], "splits": False, "to_task": str(task), "from": topology.places[task].slot,
             "to": wanted.slot, "cause": str(wanted.cause)} for task, wanted in sorted(topology.handover.waiting.items())
            if task in topology.places]


def _groups_waiting(topology: TopologyState) -> list[dict[str, Any]]:
    """One row for the key groups that go from one task to another for one cause."""
    rows: dict[tuple[TaskId, TaskId, str], list[int]] = {}
    for (name, group), wanted in sorted(topology.handover.regrouping.items()):
        source, target = TaskId(name, topology.key_groups[name][group]), TaskId(name, wanted.owner)
        rows.setdefault((source, target, str(wanted.cause)), []).append(group)
    return [{"task": str(source), "groups": groups, "splits": source.component in topology.graph.splits,
             "to_task": str(target), "from": slot_of(topology, source), "to": slot_of(topology, target), "cause": cause}
            for (source, target, cause), groups in rows.items()]


def slot_of(topology: TopologyState, task: TaskId) -> int | None:
    """The slot of a task; None while it has none after a loss."""
    place = topology.places.get(task)
    return place.slot if place is not None else None

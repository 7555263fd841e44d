"""Requests about the past and the present of running topologies: events, migrations, and moves under way."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from millrace.control.topology_state import TopologyState
from millrace.errors import UnknownName
from millrace.master.load.migration_log import MigrationLog
from millrace.master.requests.server import MasterRequest, Verb
from millrace.master.state_view import MasterView
from millrace.model.graph import TaskId


def record_verbs(state: MasterView, log: MigrationLog, events: Iterable[dict[str, Any]]) -> dict[str, Verb]:
    def migrations(request: MasterRequest) -> list[dict[str, Any]]:
        number = request.get("id")
        return log.past(request.get("topology")) if number is None else [log.one(int(number))]

    return {"events": lambda request: events_of(events, request.get("topology"), request.get("task")),
            "migrations": migrations,
            "moves": lambda request: moves_of(state, time.monotonic(), request.get("topology"))}


def task_named(name: Any) -> TaskId:
    try:
        return TaskId.parse(str(name))
    except ValueError as error:
        raise UnknownName(str(error)) from None


def events_of(events: Iterable[dict[str, Any]], topology: str | None, task: str | None) -> list[dict[str, Any]]:
    """The events of a topology, with those of the whole cluster; or only those that name a task."""
    wanted = str(task_named(task)) if task is not None else None
    return [event for event in events if (topology is None or event["topology"] in ("", topology))
            and (wanted is None or wanted in event["tasks"])]


def moves_of(state: MasterView, now: float, topology: str | None) -> list[dict[str, Any]]:
    """The moves that are under way or wait, by topology."""
    topologies = state.topologies.values() if topology is None else [state.topology(topology)]
    return [_moves(each, now) for each in topologies
            if not each.handover.at_rest]


def _moves(topology: TopologyState, now: float) -> dict[str, Any]:
    handover = topology.handover
    moving = [{"task": str(moving.task), "groups": list(moving.groups), "to_task": str(moving.target),
               "from": moving.old.slot, "to": moving.new.slot, "cause": str(moving.cause),
               "armed": moving.armed >= handover.base[0], "taken": moving.taken, "precopied_bytes": moving.copied_bytes}
              for moving in handover.batch]
    return {"topology": topology.graph.name, "phase": handover.phase,
            "seconds": round(now - handover.began, 3) if moving else 0.0, "progress": round(handover.progress, 3),
            "moving": moving, "waiting": [*_tasks_waiting(topology), *_groups_waiting(topology)]}


def _tasks_waiting(topology: TopologyState) -> list[dict[str, Any]]:
    return [{"task": str(task), "groups": [], "to_task": str(task), "from": topology.places[task].slot, "to": wanted.slot,
             "cause": str(wanted.cause)} for task, wanted in sorted(topology.handover.waiting.items())
            if task in topology.places]


def _groups_waiting(topology: TopologyState) -> list[dict[str, Any]]:
    """One row for the key groups that go from one task to another for one cause."""
    rows: dict[tuple[TaskId, TaskId, str], list[int]] = {}
    for (name, group), wanted in sorted(topology.handover.regrouping.items()):
        source, target = TaskId(name, topology.key_groups[name][group]), TaskId(name, wanted.owner)
        rows.setdefault((source, target, str(wanted.cause)), []).append(group)
    return [{"task": str(source), "groups": groups, "to_task": str(target), "from": _slot(topology, source),
             "to": _slot(topology, target), "cause": cause} for (source, target, cause), groups in rows.items()]


def _slot(topology: TopologyState, task: TaskId) -> int | None:
    """The slot of a task; None while it has none after a loss."""
    place = topology.places.get(task)
    return place.slot if place is not None else None

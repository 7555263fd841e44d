"""Requests about the past and the present of running topologies: events, migrations, and moves under way."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from millrace.control.moves import RESTING, Handover
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
    return [_moves(each.graph.name, each.handover, now) for each in topologies
            if each.handover.phase != RESTING or each.handover.waiting]


def _moves(name: str, handover: Handover, now: float) -> dict[str, Any]:
    moving = [{"task": str(moving.task), "from": moving.old.slot, "to": moving.new.slot, "cause": str(moving.cause),
               "armed": moving.armed >= handover.base[0], "taken": moving.taken, "precopied_bytes": moving.copied_bytes}
              for moving in handover.batch]
    waiting = [{"task": str(task), "to": wanted.slot, "cause": str(wanted.cause)}
               for task, wanted in sorted(handover.waiting.items())]
    return {"topology": name, "phase": handover.phase, "seconds": round(now - handover.began, 3) if moving else 0.0,
            "progress": round(handover.progress, 3), "moving": moving, "waiting": waiting}

"""Hand-overs in which a worker is killed in a chosen phase."""

from __future__ import annotations

from millrace.control.moves import RESTING, Moving
from millrace.model.graph import TaskId
from support.processes.ending import kill_and_wait
from support.topologies.audited import StatefulStream

COUNT = TaskId("count", 0)
OLD, NEW, UPSTREAM = "old", "new", "upstream"


def at_rest(stream: StatefulStream) -> bool:
    return stream.state.status == "running" and stream.state.handover.at_rest


def killed_in(stream: StatefulStream, phase: str, role: str) -> int:
    """Move a task back and forth until a worker in that role is killed in that phase of the hand-over; returns its slot."""
    master, killed = stream.master, list[int]()

    def act() -> bool:
        handover, state = stream.state.handover, stream.state
        if not killed and handover.phase == RESTING and at_rest(stream):
            workers = sorted(master.state.workers)
            master.move(stream.name, COUNT, workers[(workers.index(state.places[COUNT].slot) + 1) % len(workers)])
        moving = handover.moving(COUNT)
        if not killed and moving is not None and handover.phase == phase:
            victim = _victim_of(stream, moving, role)
            if victim is not None:
                killed.append(victim)
                kill_and_wait(master.connections[victim].hello.pid)
        return bool(killed)

    stream.until(act)
    return killed[0]


def _victim_of(stream: StatefulStream, moving: Moving, role: str) -> int | None:
    """The slot to kill: that of the old or the new incarnation, or that of a sender that is on neither; None if all are."""
    slots = {OLD: moving.old.slot, NEW: moving.new.slot}
    senders = {stream.state.places[task].slot for task in stream.state.graph.upstream(moving.task.component)}
    others = sorted(senders - set(slots.values()))
    return slots[role] if role in slots else next(iter(others), None)

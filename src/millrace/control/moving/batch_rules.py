"""Rules of a batch of moves: which of them fail together, and what must be committed before they switch."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.control.assignment import SWITCH
from millrace.control.moves import Moving, at_stake, connected
from millrace.control.topology_state import TopologyState


def failing_with(topology: TopologyState, moves: list[Moving]) -> list[Moving]:
    """The moves that fail if these fail after they have switched. If a task that gives or takes key groups is lost, none of its
    other moves can end; and the task at the other end of one that cannot lacks groups, or has too many, until it is restored.
    Exactly once, all tasks are restored anyway."""
    if topology.graph.exactly_once or any(moving.retires for moving in moves):
        return together(topology, moves)
    return connected(topology.handover.batch, at_stake(moves))


def together(topology: TopologyState, moves: list[Moving]) -> list[Moving]:
    """These moves; all of the batch if tasks retire. They are of one component, and none may end that has others after it."""
    return list(topology.handover.batch) if any(moving.retires for moving in moves) else moves


def publishes(topology: TopologyState) -> bool:
    """True if tasks retire whose output is visible only once it is committed: one more wave must be."""
    graph = topology.graph
    return graph.exactly_once and any(moving.retires and graph.component(moving.task.component).commits
                                      for moving in topology.handover.batch)


def changes_receivers(batch: Iterable[Moving]) -> bool:
    """True if tuples that are on their way to a task would go to another one after the batch."""
    return any((moving.groups and not moving.splits) or moving.retires for moving in batch)


def overtook_receivers(topology: TopologyState) -> bool:
    """True if the last wave has saved tuples for tasks that may not be their receivers after the batch: a roll-back would give
    them to the wrong task, or to none."""
    return topology.checkpoint is not None and topology.checkpoint.overtook and changes_receivers(topology.handover.batch)


def in_place(topology: TopologyState, moving: Moving) -> bool:
    """True if the tasks that a move still needs are the incarnations that it began with."""
    places = topology.places
    if moving.splits and topology.handover.phase == SWITCH:
        return places.get(moving.target) == moving.new
    if moving.groups:
        return places.get(moving.task) == moving.old and places.get(moving.target) == moving.new
    return places.get(moving.task) == (moving.new if topology.handover.phase == SWITCH else moving.old)

"""Chooses the moves of a topology that are carried out next: those of tasks, of key groups, or of tasks that retire."""

from __future__ import annotations

from collections.abc import Container

from millrace.control.assignment import Place
from millrace.control.moves import BatchLimits, Moving, batch_of, group_batch, retiring_batch
from millrace.control.scaling import GROW, HOLD
from millrace.control.topology_state import TopologyState
from millrace.model.graph import TaskId


def next_batch(topology: TopologyState, workers: Container[int]) -> list[Moving]:
    """The moves that wait and can be carried out together: tasks or key groups, in turns if both wait, then tasks that retire.
    They wait no longer. `workers`: the slots that have one."""
    handover, migration, scaling = topology.handover, topology.migration, topology.scaling
    if migration is not None:  # key groups move after it
        return _next_tasks(topology, workers) if migration.hands_over else []
    if scaling is not None and scaling.phase in (HOLD, GROW):
        return []
    if handover.groups_next:
        moves = _next_groups(topology) or _next_tasks(topology, workers)
    else:
        moves = _next_tasks(topology, workers) or _next_groups(topology)
    return moves or _next_retiring(topology)


def _next_tasks(topology: TopologyState, workers: Container[int]) -> list[Moving]:
    handover = topology.handover
    handover.waiting = {task: wanted for task, wanted in handover.waiting.items() if wanted.slot in workers
                        and task in topology.places and topology.places[task].slot != wanted.slot}
    sizes = topology.checkpoint.task_sizes() if topology.checkpoint is not None else {}
    tasks = batch_of(topology.graph, handover.waiting, BatchLimits.of(topology.graph.config), sizes)
    if tasks:
        handover.supersede(topology.plan)
        topology.version += 1
    return [Moving(handover.next_number(), task, task, topology.places[task], Place(wanted.slot, topology.version),
                   wanted.cause) for task in tasks for wanted in [handover.waiting.pop(task)]]


def _next_groups(topology: TopologyState) -> list[Moving]:
    handover, places = topology.handover, topology.places
    handover.regrouping = {group: wanted for group, wanted in handover.regrouping.items()
                           if topology.key_groups[group[0]][group[1]] != wanted.owner}
    moves = []
    batch = group_batch(topology.graph, topology.key_groups, handover.regrouping, BatchLimits.of(topology.graph.config),
                        topology.checkpoint.group_sizes() if topology.checkpoint is not None else {})
    for (name, old, new), groups in batch.items():
        source, target = TaskId(name, old), TaskId(name, new)
        if source in places and target in places:
            causes = [handover.regrouping.pop((name, group)).cause for group in groups]
            moves.append(Moving(handover.next_number(), source, target, places[source], places[target], causes[0],
                                tuple(groups), splits=name in topology.graph.splits))
    return moves


def _next_retiring(topology: TopologyState) -> list[Moving]:
    handover, places = topology.handover, topology.places
    handover.retiring = {task: cause for task, cause in handover.retiring.items() if task in places}
    tasks = retiring_batch(topology.graph, handover.retiring, BatchLimits.of(topology.graph.config))
    if tasks:
        topology.version += 1  # senders must know that they get nothing more before they switch
    return [Moving(handover.next_number(), task, task, places[task], places[task], handover.retiring.pop(task), retires=True)
            for task in tasks]

"""Placement of backups: the slots that keep the fragments of each task's snapshots."""

from __future__ import annotations

import re
from collections.abc import Mapping

from millrace.config import BACKUP_BLOCKS
from millrace.errors import BadParameter, TopologyError
from millrace.model.graph import TaskId, TopologyGraph
from millrace.state.erasure import Code
from millrace.state.holders import holders, shape

NO_BACKUP = "none"


def backup_shape(graph: TopologyGraph) -> tuple[int, int] | None:
    """The topology's setting as (raw, check) blocks; None if it is not set."""
    setting = BACKUP_BLOCKS.of(graph.config)
    if setting is None:
        return None
    if setting == NO_BACKUP:
        return 0, 0
    match = re.fullmatch(r"(\d+)\+(\d+)", setting)
    if match is None:
        raise TopologyError(f"{BACKUP_BLOCKS.key} = {setting!r} must be r+c, for example 7+3, or {NO_BACKUP}")
    try:
        code = Code(int(match[1]), int(match[2]))
    except BadParameter as error:
        raise TopologyError(f"{BACKUP_BLOCKS.key} = {setting!r}: {error}") from None
    return code.r, code.c


def backups(graph: TopologyGraph, slots: Mapping[TaskId, int], node_of: Mapping[int, str]) \
        -> tuple[tuple[int, int], list[tuple[TaskId, list[int]]]]:
    """(raw, check) blocks, and for each task with state the slots that keep its blocks."""
    requested = backup_shape(graph)
    r, c = (0, 0) if requested == (0, 0) or len(node_of) < 2 else shape(len(node_of), requested)
    if not r:
        return (0, 0), []
    placed = []
    for component in graph.components:
        if not component.stateful:
            continue
        upstream = [slots[task] for task in graph.upstream(component.name) if task in slots]
        layer = [TaskId(component.name, index) for index in range(component.par)]
        for task in layer:
            if task in slots:
                ring = [slots[other] for other in layer[task.index + 1:] + layer[:task.index] if other in slots]
                placed.append((task, holders(slots[task], upstream, ring, node_of, r + c)))
    return (r, c), placed

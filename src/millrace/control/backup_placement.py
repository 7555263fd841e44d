"""Who keeps the fragments of whose snapshots."""

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
    """What the topology asks for: raw and check blocks; None if it leaves that to us."""
    asked = BACKUP_BLOCKS.of(graph.config)
    if asked is None:
        return None
    if asked == NO_BACKUP:
        return 0, 0
    match = re.fullmatch(r"(\d+)\+(\d+)", asked)
    if match is None:
        raise TopologyError(f"{BACKUP_BLOCKS.key} = {asked!r} must be r+c, for example 7+3, or {NO_BACKUP}")
    try:
        code = Code(int(match[1]), int(match[2]))
    except BadParameter as error:
        raise TopologyError(f"{BACKUP_BLOCKS.key} = {asked!r}: {error}") from None
    return code.r, code.c


def backups(graph: TopologyGraph, slots: Mapping[TaskId, int], node_of: Mapping[int, str]) \
        -> tuple[tuple[int, int], list[tuple[TaskId, list[int]]]]:
    """The shape of the blocks, and for each task with state the slots that keep its blocks."""
    asked = backup_shape(graph)
    r, c = (0, 0) if asked == (0, 0) or len(node_of) < 2 else shape(len(node_of), asked)
    if not r:
        return (0, 0), []
    found = []
    for component in graph.components:
        if not component.stateful:
            continue
        upstream = [slots[task] for task in graph.upstream(component.name) if task in slots]
        layer = [TaskId(component.name, index) for index in range(component.par)]
        for task in layer:
            if task in slots:
                ring = [slots[other] for other in layer[task.index + 1:] + layer[:task.index] if other in slots]
                found.append((task, holders(slots[task], upstream, ring, node_of, r + c)))
    return (r, c), found

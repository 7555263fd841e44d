"""Chooses the workers that hold the blocks of a task's state: upstream workers first, spread as widely as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from millrace.state.erasure import Code

LARGEST = (7, 3)
SMALL = {0: (0, 0), 1: (1, 0), 2: (1, 1), 3: (2, 1)}  # by the number of other workers
CHECK_SHARE = 0.3


def shape(workers: int, configured: tuple[int, int] | None = None) -> tuple[int, int]:
    """Raw and check blocks (r, c) for a task in a cluster of `workers` workers. (0, 0): no other worker can hold any."""
    if configured is not None:
        r, c = configured
        return Code(r, c).r, c  # raises if they are invalid
    others = max(0, workers - 1)
    if others in SMALL:
        return SMALL[others]
    if others >= sum(LARGEST):
        return LARGEST
    c = max(1, round(CHECK_SHARE * others))
    return others - c, c


def holders(task_slot: int, upstream_slots: Sequence[int], layer_slots: Sequence[int], node_of: Mapping[int, str],
            blocks: int) -> list[int]:
    """The worker slot that holds block b, for each b. `node_of` maps live workers to their nodes.

    Each block goes to the worker, then the node, with the fewest blocks of the task. Among equals, workers of upstream tasks
    come first, then the next ones in the ring of the task's own layer, then any others."""
    candidates = _enough(_by_preference(task_slot, upstream_slots, layer_slots, node_of), node_of, blocks)
    on_worker: Counter[int] = Counter()
    on_node: Counter[str] = Counter()
    chosen: list[int] = []
    for _ in range(blocks if candidates else 0):
        slot = min(candidates, key=lambda slot: (on_worker[slot], on_node[node_of[slot]]))  # the first of equals
        on_worker[slot] += 1
        on_node[node_of[slot]] += 1
        chosen.append(slot)
    return chosen


def _enough(candidates: Sequence[int], node_of: Mapping[int, str], blocks: int) -> Sequence[int]:
    """The first candidates, up to as many nodes as there are blocks: each block goes to another of these nodes, so in a large
    cluster nobody has to look at the rest."""
    nodes: set[str] = set()
    for end, slot in enumerate(candidates, 1):
        nodes.add(node_of[slot])
        if len(nodes) == blocks:
            return candidates[:end]
    return candidates


def _by_preference(task_slot: int, upstream: Sequence[int], layer: Sequence[int], node_of: Mapping[int, str]) -> list[int]:
    here = layer.index(task_slot) if task_slot in layer else -1
    ring = [*layer[here + 1 :], *layer[: here + 1]]
    alive = [slot for slot in dict.fromkeys([*upstream, *ring, *sorted(node_of)]) if slot in node_of]
    return [slot for slot in alive if slot != task_slot] or alive

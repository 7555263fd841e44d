"""The time that moves take, as with hand-over in the live engine: state is copied while its task goes on, and what has changed
meanwhile is sent while the task pauses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.control.moves import BY_HANDOVER
from millrace.schedulers.problem import Flags, Floats, Ints
from millrace.simulation.world import Machines, World, sums_at

MEGABYTE = 1e6
STATE_SHARE = 0.01


@dataclass(frozen=True)
class MoveModel:
    """`switch_seconds`: from the decision until tasks without state have moved; `pause_seconds`: that a task without state
    stands still. `state_share`: state of a task that gets its tuples by key, as a share of its memory. `bytes_per_second`: of
    state that a node sends, and receives; `again`: share of the state that has changed during the copy."""

    switch_seconds: float = 2.0
    pause_seconds: float = 0.05
    state_share: float = STATE_SHARE
    bytes_per_second: float = 100e6
    again: float = 0.02

    def state(self, world: World) -> Floats:
        """Bytes of the state of each task."""
        keyed = {(graph.name, part.name) for graph in world.graphs for part in graph.components if part.keyed}
        has_state = np.array([(name, task.component) in keyed for name, task in world.tasks], dtype=bool)
        state: Floats = np.where(has_state, world.memory * MEGABYTE * self.state_share, 0.0)
        return state

    def seconds(self, state: Floats, moved: Flags, before: Ints, after: Ints, machines: Machines) -> float:
        """From the decision until all tasks have moved: each node sends and receives the state of its tasks at its rate."""
        if not moved.any():
            return self.switch_seconds
        count = len(machines.node_machine)
        sent, received = (sums_at(machines.slot_node[slots[moved]], state[moved], count) for slots in (before, after))
        return self.switch_seconds + float(np.maximum(sent, received).max()) / self.bytes_per_second

    def pauses(self, state: Floats) -> Floats:
        """Seconds that each task stands still when it moves."""
        pauses: Floats = self.pause_seconds + self.again * state / self.bytes_per_second
        return pauses

    def records(self, world: World, state: Floats, moved: Flags) -> Iterator[dict[str, Any]]:
        """The records of these moves as the live engine has them, one for each topology."""
        rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        pauses = self.pauses(state)
        for number in np.flatnonzero(moved).tolist():
            name, task = world.tasks[number]
            rows[name].append({"task": str(task), "groups": [], "pause_ms": 1000 * pauses[number],
                               "precopied_bytes": int(state[number]), "delta_bytes": int(self.again * state[number])})
        yield from ({"strategy": BY_HANDOVER, "topology": name, "moved": moves} for name, moves in rows.items())

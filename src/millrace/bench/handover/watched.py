"""Moves tasks of a running topology in one plan, and watches in the master's state how that goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from millrace.control.events import Rebalanced, Regrouped, Replanned
from millrace.control.moves import BY_ROLLBACK, Moving
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import RUNNING
from millrace.errors import MillraceError
from millrace.master.service import Master
from millrace.model.graph import TaskId
from millrace.model.plan import Plan

LIMIT_SECONDS = 120.0
COUNTING = "count"  # the component with keyed state


class WatchedMove:
    """One plan with moves. `began`, `ended`: when it was requested and when every task worked at its new place. `pause`: by
    hand-over, the longest time in which a moved task did not work, by its workers; by a roll-back, the time in which no task
    worked, from the roll-back until all had restored their state, by the master."""

    def __init__(self, master: Master, name: str, targets: Mapping[TaskId, int], strategy: str,
                 clock: Callable[[], float] = time.monotonic, owners: Mapping[int, int] | None = None) -> None:
        """`targets`: the new slot of each task that moves. `owners`: the new owner of each key group of the counting tasks that
        moves; no task moves then."""
        self._master, self._name, self._targets, self._strategy, self._clock = master, name, targets, strategy, clock
        self._owners = owners or {}
        self.moving: dict[int, Moving] = {}  # by number
        self.began = self.ended = self.pause = 0.0
        self._rolled_back_at: float | None = None
        self._epoch = 0

    @property
    def copied_bytes(self) -> int:
        """State that was copied while the old incarnations worked."""
        return sum(moving.copied_bytes for moving in self.moving.values())

    @property
    def delta_bytes(self) -> int:
        """State that was handed over while a task paused."""
        return sum(moving.delta_bytes for moving in self.moving.values())

    def run(self) -> None:
        """Move the tasks. Raises `MillraceError` if some did not arrive, or not in the way that was asked for."""
        self._master.call(self._request)
        look = self._look_at_roll_back if self._strategy == BY_ROLLBACK else self._look_at_hand_over
        over = self._master.wait_until(look, LIMIT_SECONDS)
        places = self._master.call(lambda: {task: self._topology().places.get(task) for task in self._targets})
        late = [str(task) for task, slot in self._targets.items() if (place := places[task]) is None or place.slot != slot]
        owners = self._master.call(lambda: self._topology().key_groups[COUNTING])
        late += [f"key group {group}" for group, owner in self._owners.items() if owners[group] != owner]
        rolled_back = self._master.call(lambda: self._topology().epoch) != self._epoch
        if not over or late or rolled_back != (self._strategy == BY_ROLLBACK):
            what = "the topology was rolled back" if over and not late else \
                f"{', '.join(late) or 'the moves'} did not arrive within {LIMIT_SECONDS:g} s, or not at all"
            raise MillraceError(f"{what}; last events:\n"
                                + "\n".join(event["text"] for event in list(self._master.events)[-10:]))

    def _topology(self) -> TopologyState:
        return self._master.state.topology(self._name)

    def _request(self) -> None:
        """Runs on the master's thread, so that the plan is that of the topology."""
        topology = self._topology()
        self._epoch, self.began = topology.epoch, self._clock()
        if self._strategy == BY_ROLLBACK:
            self._master.tell(Rebalanced(self._name, self._targets, BY_ROLLBACK))
            return
        if self._owners:
            self._master.tell(Regrouped(self._name, COUNTING, self._owners))
            self._look_at_hand_over()
            return
        plan = Plan(topology.version, {**topology.plan.placement, **self._targets}, topology.key_groups)
        self._master.tell(Replanned({self._name: plan}, {self._name: topology.version}, "measured by bench handover"))
        self._look_at_hand_over()

    def _look_at_hand_over(self) -> bool:
        """True if no move is left. Runs on the master's thread after each of its turns, so no batch of moves is missed."""
        topology = self._topology()
        self.moving.update((moving.number, moving) for moving in topology.handover.batch)
        if not topology.handover.at_rest:
            return False
        self.ended = self._clock()
        self.pause = max((moving.pause for moving in self.moving.values()), default=0.0)
        return True

    def _look_at_roll_back(self) -> bool:
        """True if the topology has been rolled back and runs again."""
        topology, now = self._topology(), self._clock()
        if topology.epoch == self._epoch:
            return False
        if self._rolled_back_at is None:
            self._rolled_back_at = now
        if topology.status != RUNNING:
            return False
        self.ended, self.pause = now, now - self._rolled_back_at
        return True

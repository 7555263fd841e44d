"""Acking between the tasks of a worker and the ackers, wherever they are. One tracker per topology in each worker.

Everything is summed up here first: the acks of a whole turn of the loop leave as one message per acker's worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from millrace.control.acking import Ledger, acker_of, make_root
from millrace.runtime import wire

if TYPE_CHECKING:
    from millrace.runtime.spout_task import SpoutTask

Send = Callable[[int, wire.DataMessage], None]


class Tracker:
    """`send(slot, message)` reaches another worker; ledgers of ackers in this one are asked directly."""

    def __init__(self, topology: int, slot: int, generation: int, send: Send,
                 tell: Callable[[tuple[int, int], list[int], list[int]], None]) -> None:
        self.topology, self.slot, self.generation = topology, slot, generation
        self._send, self._tell = send, tell
        self.ledgers: dict[int, Ledger] = {}  # acker index -> its ledger, for ackers that run here
        self.acker_slots: list[int | None] = []  # acker index -> slot of its worker
        self._sums: dict[int, int] = {}
        self._opened: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._failed: list[int] = []
        self._turn = 0

    # -- called by tasks ---------------------------------------------------------------------------------------------

    def new_root(self, noise: int) -> int:
        """A root for a spout of this worker: at an acker of this worker if there is one, else at the next in turn."""
        if self.ledgers:
            acker = min(self.ledgers)
        else:
            self._turn = (self._turn + 1) % max(1, len(self.acker_slots))
            acker = self._turn
        return make_root(acker, noise)

    def open(self, root: int, edges: int, owner: SpoutTask) -> None:
        self._opened.setdefault((owner.number, owner.incarnation), []).append((root, edges))

    def add(self, root: int, edges: int) -> None:
        sums = self._sums
        sums[root] = sums.get(root, 0) ^ edges

    def fail(self, roots: Iterable[int]) -> None:
        self._failed.extend(roots)

    # -- called by the worker ----------------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Pass everything on. Returns whether there was anything."""
        if not (self._sums or self._opened or self._failed):
            return False
        opened, self._opened = self._opened, {}
        sums, self._sums = self._sums, {}
        failed, self._failed = self._failed, []
        for owner, pairs in opened.items():
            for slot, mine in self._by_slot(pairs, lambda pair: pair[0]).items():
                if slot == self.slot:
                    self.on_roots(owner, mine)
                else:
                    self._send(slot, wire.Roots(self.slot, self.generation, self.topology, *owner, mine))
        for slot, pairs in self._by_slot(sums.items(), lambda pair: pair[0]).items():
            changed = [pair for pair in pairs if pair[1]]
            if slot == self.slot:
                self.on_acks(changed)
            elif changed:
                self._send(slot, wire.Acks(self.slot, self.generation, self.topology, changed))
        for slot, roots in self._by_slot(failed, lambda root: root).items():
            if slot == self.slot:
                self.on_fails(roots)
            else:
                self._send(slot, wire.Fails(self.slot, self.generation, self.topology, roots))
        return True

    def _by_slot(self, items: Iterable[Any], root_of: Callable[[Any], int]) -> dict[int, list[Any]]:
        """Items by the worker that has their acker. An acker that is nowhere loses them: the root will time out."""
        found: dict[int, list[Any]] = {}
        slots = self.acker_slots
        for item in items:
            acker = acker_of(root_of(item))
            slot = slots[acker] if acker < len(slots) else None
            if slot is not None:
                found.setdefault(slot, []).append(item)
        return found

    # -- for the ackers of this worker ---------------------------------------------------------------------------------

    def on_roots(self, owner: tuple[int, int], pairs: list[tuple[int, int]]) -> None:
        finished: list[int] = []
        failed: list[int] = []
        for root, edges in pairs:
            ledger = self.ledgers.get(acker_of(root))
            verdict = ledger.open(root, edges, owner) if ledger is not None else None
            if verdict is not None:
                (finished if verdict else failed).append(root)
        if finished or failed:
            self._tell(owner, finished, failed)

    def on_acks(self, pairs: list[tuple[int, int]]) -> None:
        done: dict[tuple[int, int], list[int]] = {}
        for root, edges in pairs:
            ledger = self.ledgers.get(acker_of(root))
            owner = ledger.ack(root, edges) if ledger is not None else None
            if owner is not None:
                done.setdefault(owner, []).append(root)
        for owner, roots in done.items():
            self._tell(owner, roots, [])

    def on_fails(self, roots: list[int]) -> None:
        for root in roots:
            ledger = self.ledgers.get(acker_of(root))
            owner = ledger.fail(root) if ledger is not None else None
            if owner is not None:
                self._tell(owner, [], [root])

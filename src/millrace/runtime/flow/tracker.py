"""Connects the tasks of a worker to the ackers of their topology, here or elsewhere. One tracker per topology in each worker.

Acks are combined first: those of a whole turn of the loop leave as one message per worker with ackers. The XOR ledger itself is
in control/ledger.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from millrace.control.ledger import ACKER_SHIFT, Ledger, Owner, acker_of, make_root
from millrace.runtime.clock import SystemClock
from millrace.runtime.wire import messages as wire

SendData = Callable[[int, wire.DataMessage], None]
TIMED_CALLS = 16  # of the ackers of a worker, of which one is timed: a clock costs more than a root
EARLY_LIMIT = 4096  # messages kept for an acker that a newer plan, not yet seen here, places on this worker


class RootOwner(Protocol):
    """The spout task that a root belongs to."""

    number: int
    incarnation: int
    to_ackers: defaultdict[int, int]


class Tracker:
    """`send(slot, message)` sends to another worker; ledgers of ackers in this worker are called directly. `tell` passes the
    verdicts on roots to the spout task that owns them. `cpu`: CPU seconds of the thread. A task's `to_ackers` counts its
    messages to each acker, before those of a whole worker are combined: that depends on who else is there."""

    def __init__(self, topology: int, slot: int, generation: int, send: SendData,
                 tell: Callable[[Owner, list[int], list[int]], None], cpu: Callable[[], float] = SystemClock.cpu) -> None:
        self.topology, self.slot, self.generation = topology, slot, generation
        self._send, self._tell, self._cpu = send, tell, cpu
        self.ledgers: dict[int, Ledger] = {}  # acker index -> its ledger, for ackers that run here
        self.cpu_seconds: defaultdict[int, float] = defaultdict(float)  # acker index -> time in its ledger, an estimate
        self._calls = 0
        self.acker_slots: list[int | None] = []  # acker index -> slot of its worker
        self.version = 0  # of the plan that places the ackers
        self._early: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._sums: dict[int, int] = {}
        self._opened: dict[Owner, list[tuple[int, int]]] = {}
        self._failed: list[int] = []
        self._turn = 0

    # -- called by tasks ---------------------------------------------------------------------------------------------

    def new_root(self, noise: int) -> int:
        """Make a root for a spout of this worker: at an acker here if there is one, else at the next in turn."""
        if self.ledgers:
            acker = min(self.ledgers)
        else:
            self._turn = (self._turn + 1) % max(1, len(self.acker_slots))
            acker = self._turn
        return make_root(acker, noise)

    def open(self, root: int, edges: int, owner: RootOwner) -> None:
        self._opened.setdefault((self.slot, owner.number, owner.incarnation), []).append((root, edges))
        owner.to_ackers[root >> ACKER_SHIFT] += 1

    def add(self, root: int, edges: int, to_ackers: defaultdict[int, int]) -> None:
        sums = self._sums
        sums[root] = sums.get(root, 0) ^ edges
        to_ackers[root >> ACKER_SHIFT] += 1

    def fail(self, roots: Iterable[int], to_ackers: defaultdict[int, int]) -> None:
        for root in roots:
            self._failed.append(root)
            to_ackers[root >> ACKER_SHIFT] += 1

    # -- called by the worker ----------------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Send everything collected. Returns whether there was anything."""
        if not (self._sums or self._opened or self._failed):
            return False
        opened, self._opened = self._opened, {}
        sums, self._sums = self._sums, {}
        failed, self._failed = self._failed, []
        for owner, pairs in opened.items():
            self._send_roots(owner, pairs)
        self._send_acks([pair for pair in sums.items() if pair[1]])
        self._send_fails(failed)
        return True

    def _send_roots(self, owner: Owner, pairs: list[tuple[int, int]]) -> None:
        for slot, items in self._by_slot(pairs, lambda pair: pair[0]).items():
            if slot == self.slot:
                self.on_roots(owner, items, self.version)
            else:
                self._send(slot, wire.Roots(self.slot, self.generation, self.topology, self.version, owner, items))

    def _send_acks(self, pairs: list[tuple[int, int]]) -> None:
        for slot, items in self._by_slot(pairs, lambda pair: pair[0]).items():
            if slot == self.slot:
                self.on_acks(items, self.version)
            else:
                self._send(slot, wire.Acks(self.slot, self.generation, self.topology, self.version, items))

    def _send_fails(self, roots: list[int]) -> None:
        for slot, items in self._by_slot(roots, lambda root: root).items():
            if slot == self.slot:
                self.on_fails(items, self.version)
            else:
                self._send(slot, wire.Fails(self.slot, self.generation, self.topology, self.version, items))

    # -- when ackers move ----------------------------------------------------------------------------------------------

    def retire(self, acker: int) -> None:
        """Hand over the ledger of an acker that moved; messages that still come here for it are forwarded."""
        ledger, slot = self.ledgers.pop(acker, None), self._slot_of(acker)
        self.cpu_seconds.pop(acker, None)
        if ledger is None:
            return
        sums, failed = ledger.hand_over()
        if slot == self.slot:  # it moved away and back, and this worker has not seen the plan in between
            self._early.append((self.on_handover, (acker, sums, failed, self.version)))
        else:
            self._hand_over(acker, sums, failed)

    def settle(self) -> None:
        """After a new plan: handle early messages whose acker may be here now."""
        early, self._early = self._early, []
        for call, arguments in early:
            call(*arguments)

    def _not_here(self, roots: Iterable[Any], version: int, call: Callable[..., None], arguments: tuple[Any, ...],
                  forward: Callable[[], None]) -> None:
        """Handle a message for an acker that is not here. If its sender has a newer plan, keep it until that plan arrives; if
        an older one, forward it, which cannot loop."""
        if version > self.version:
            if len(self._early) < EARLY_LIMIT:
                self._early.append((call, arguments))
        elif all(self._slot_of(acker_of(root)) != self.slot for root in roots):
            forward()

    def _slot_of(self, acker: int) -> int | None:
        return self.acker_slots[acker] if 0 <= acker < len(self.acker_slots) else None

    def _by_slot(self, items: Iterable[Any], root_of: Callable[[Any], int]) -> dict[int, list[Any]]:
        """Group items by the slot of their acker. Items of an unplaced acker are lost: their roots time out."""
        groups: dict[int, list[Any]] = {}
        for item in items:
            slot = self._slot_of(acker_of(root_of(item)))
            if slot is not None:
                groups.setdefault(slot, []).append(item)
        return groups

    # -- for the ackers of this worker ---------------------------------------------------------------------------------

    def _begun(self) -> float | None:
        """The CPU time at which a call begins, if it is one that is timed."""
        self._calls += 1
        return None if self._calls % TIMED_CALLS else self._cpu()

    def _ended(self, begun: float | None, pairs: list[tuple[int, int]]) -> None:
        """Charge the time of the calls since the last timed one to the acker of a root of this one."""
        if begun is not None and pairs:
            self.cpu_seconds[acker_of(pairs[-1][0])] += (self._cpu() - begun) * TIMED_CALLS

    def on_roots(self, owner: Owner, pairs: list[tuple[int, int]], version: int) -> None:
        finished: list[int] = []
        failed: list[int] = []
        away: list[tuple[int, int]] = []
        begun = self._begun()
        for root, edges in pairs:
            ledger = self.ledgers.get(acker_of(root))
            if ledger is None:
                away.append((root, edges))
                continue
            verdict = ledger.open(root, edges, owner)
            if verdict is not None:
                (finished if verdict else failed).append(root)
        self._ended(begun, pairs)
        if finished or failed:
            self._tell(owner, finished, failed)
        if away:
            self._not_here((root for root, _ in away), version, self.on_roots, (owner, away, version),
                            lambda: self._send_roots(owner, away))

    def on_acks(self, pairs: list[tuple[int, int]], version: int) -> None:
        done: dict[Owner, list[int]] = {}
        away: list[tuple[int, int]] = []
        begun = self._begun()
        for root, edges in pairs:
            ledger = self.ledgers.get(acker_of(root))
            if ledger is None:
                away.append((root, edges))
                continue
            owner = ledger.ack(root, edges)
            if owner is not None:
                done.setdefault(owner, []).append(root)
        self._ended(begun, pairs)
        for owner, roots in done.items():
            self._tell(owner, roots, [])
        if away:
            self._not_here((root for root, _ in away), version, self.on_acks, (away, version),
                            lambda: self._send_acks(away))

    def on_fails(self, roots: list[int], version: int) -> None:
        away: list[int] = []
        for root in roots:
            ledger = self.ledgers.get(acker_of(root))
            if ledger is None:
                away.append(root)
                continue
            owner = ledger.fail(root)
            if owner is not None:
                self._tell(owner, [], [root])
        if away:
            self._not_here(away, version, self.on_fails, (away, version), lambda: self._send_fails(away))

    def on_handover(self, acker: int, sums: list[tuple[int, int, Owner | None]], failed: list[int], version: int) -> None:
        """Merge the ledger of the acker's previous incarnation."""
        if acker not in self.ledgers:
            self._not_here([], version, self.on_handover, (acker, sums, failed, version), lambda: self._hand_over(
                acker, sums, failed))
            return
        for root, total, owner in sums:
            if owner is None:
                self.on_acks([(root, total)], version)
            else:
                self.on_roots(owner, [(root, total)], version)
        self.on_fails(failed, version)

    def _hand_over(self, acker: int, sums: list[tuple[int, int, Owner | None]], failed: list[int]) -> None:
        slot = self._slot_of(acker)
        if slot is not None and slot != self.slot:
            self._send(slot, wire.LedgerHandover(self.slot, self.generation, self.topology, self.version, acker, sums, failed))

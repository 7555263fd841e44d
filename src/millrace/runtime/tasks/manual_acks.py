"""Acks by hand: verdicts of a bolt on single tuples, and the chunks that wait until all their tuples are acked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.api.tuple import Tuple
from millrace.runtime.flow.channel import Delivery
from millrace.runtime.tasks.unacked import UnackedChunks

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask


class ManualAcks:
    """`by_hand`: the bolt acks its tuples, not the engine."""

    def __init__(self, task: BoltTask) -> None:
        self._task = task
        self.by_hand = False
        self.unacked = UnackedChunks()
        self.verdicts: list[tuple[Tuple | str, bool]] = []  # not settled yet; True for an ack

    def ack(self, tup: Tuple | str) -> None:
        self.verdicts.append((tup, True))

    def fail(self, tup: Tuple | str) -> None:
        self.verdicts.append((tup, False))

    def keeps(self, delivery: Delivery) -> bool:
        """Keep an executed chunk until its tuples are acked. False: it can be closed."""
        if not self.by_hand or delivery.failed:
            return False
        component = self._task.component
        if delivery.left and (delivery.lineage.roots or (component.acks_itself and component.auto_ack)):
            self.unacked.add(delivery)
        return True

    def settle_verdicts(self) -> None:
        verdicts, self.verdicts = self.verdicts, []
        for tup, acked in verdicts:
            delivery, index = self.unacked.find(tup)
            if delivery is not None:
                self._settle(delivery, index, tup, acked)

    def settle_failures(self, opened: list[Delivery]) -> None:
        """The engine acks for this bolt, so its acks are redundant; its failures count."""
        verdicts, self.verdicts = self.verdicts, []
        for tup, acked in verdicts:
            delivery, index = self.unacked.find(tup, opened)
            if delivery is not None and not acked and not delivery.failed and any(other is delivery for other in opened):
                self._fail(delivery, index, tup)

    def _fail(self, delivery: Delivery, index: int, tup: Tuple | str) -> None:
        task = self._task
        task.meters.failed += 1
        if not isinstance(tup, Tuple):
            tup = Tuple(task.reader.rows(delivery, task.component.named_rows)[index], delivery, index)
        task.dead_letters.fail_or_drop(tup, delivery, "failed by the bolt")

    def _settle(self, delivery: Delivery, index: int, tup: Tuple | str, acked: bool) -> None:
        if delivery.done is None:
            delivery.done = set()
        if index in delivery.done or delivery.failed:
            return
        if not acked:
            self._fail(delivery, index, tup)
            if not delivery.failed:
                self._task.settling.settle()  # the dead letter; its own verdict closes the tuple
                return
        delivery.done.add(index)
        delivery.left -= 1
        if delivery.failed or not delivery.left:
            self.unacked.remove(delivery)
            self._task.settling.close(delivery)
            self._task.inbox.pay()

    def fail_all(self) -> None:
        """Fail the chunks that the bolt still holds: their roots are replayed."""
        for delivery in self.unacked.take_all():
            delivery.failed = True
            self._task.meters.failed += delivery.count
            self._task.settling.close(delivery)

    def expire(self, before: float) -> None:
        """Forget chunks that arrived before this time and were never acked: their roots have long timed out."""
        self.unacked.expire(before)
        self._task.inbox.pay()

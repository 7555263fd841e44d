"""*Settle*: sends the output of a bolt, anchored to the chunks it came from, and then closes these chunks with the ackers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millrace.api.tuple import Tuple
from millrace.runtime.flow.channel import Delivery, Lineage
from millrace.runtime.flow.routing import rows_of_batch
from millrace.runtime.tasks.outbox import EmitGroup
from millrace.runtime.tasks.user_errors import USER_ERRORS

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask

OPEN_DELIVERIES = 64  # a bolt settles after this many input chunks even if it emitted little


class Settling:
    """Chunks of one bolt from their execution until their output is sent. Runs on the worker's loop."""

    def __init__(self, task: BoltTask) -> None:
        self._task = task
        self.open: list[Delivery] = []  # executed; their output has not been sent
        self._since = 0.0  # time when the first of them was

    def executed(self, delivery: Delivery) -> None:
        """Settle later if more input waits and there is little output yet."""
        task = self._task
        if not self.open:
            self._since = task.execution.ended
        self.open.append(delivery)
        if (not task.inbox.waiting or len(self.open) >= OPEN_DELIVERIES
                or task.waiting() >= task.chunk_tuples):
            self.settle()

    def settle(self) -> None:
        acks = self._task.acks
        opened, self.open = self.open, []
        emitted = self._task.meters.emitted
        if acks.verdicts and not acks.by_hand:
            acks.settle_failures(opened)
        take = self._task.outbox.take
        while groups := take():  # sending may add dead letters
            for group in groups:
                self._send_group(group, opened)
        if opened and (sent := self._task.meters.emitted - emitted):
            self._task.meters.outbox_latency.record(self._task.worker.clock.now() - self._since, sent)
        for delivery in opened:
            if not acks.keeps(delivery):
                self.close(delivery)
        if acks.verdicts:
            acks.settle_verdicts()

    def _send_group(self, group: EmitGroup, opened: list[Delivery]) -> None:
        task = self._task
        deliveries = (opened if group.anchors is None and task.component.auto_anchor
                      else self._anchored(group.anchors or [], opened))
        lineage = self._lineage(deliveries)
        try:
            edges = task.sender.send(group, lineage)
        except USER_ERRORS as error:  # of a custom grouping
            task.meters.failed += 1
            task.report_error(error, None)
            if lineage.roots and lineage.attempt < task.max_fails:
                self._fail_all(deliveries, opened)
                return
            edges = self._send_singly(group, lineage)
        for root in lineage.roots:
            task.topology.tracker.add(root, edges, task.to_ackers)

    def _lineage(self, deliveries: list[Delivery]) -> Lineage:
        """The lineage of output that descends from these chunks."""
        if len(deliveries) == 1 and deliveries[0].lineage.birth:
            return deliveries[0].lineage
        roots = tuple(dict.fromkeys(root for delivery in deliveries for root in delivery.lineage.roots))
        attempt = max((delivery.lineage.attempt for delivery in deliveries), default=0)
        birth = min((delivery.lineage.birth for delivery in deliveries), default=0.0) or self._task.worker.clock.now()
        origin = min((delivery.lineage.origin for delivery in deliveries if delivery.lineage.origin), default=0.0)
        return Lineage(roots, attempt, birth, origin)

    def _anchored(self, anchors: Iterable[Tuple | str], opened: list[Delivery]) -> list[Delivery]:
        """The chunks that explicit anchors belong to."""
        deliveries = (self._task.acks.unacked.find(anchor, opened)[0] for anchor in anchors)
        return list({id(delivery): delivery for delivery in deliveries if delivery is not None}.values())

    def _fail_all(self, deliveries: list[Delivery], opened: list[Delivery]) -> None:
        for delivery in deliveries:
            delivery.failed = True
            if not any(other is delivery for other in opened) and self._task.acks.unacked.remove(delivery):
                self.close(delivery)

    def _send_singly(self, group: EmitGroup, lineage: Lineage) -> int:
        """The last attempt: send each tuple separately, so that only those that cannot be sent are dropped."""
        edges = 0
        for row in group.body if isinstance(group.body, list) else rows_of_batch(group.body):
            try:
                edges ^= self._task.sender.send(group._replace(body=[row]), lineage)
            except USER_ERRORS as error:
                self._task.unsendable(group.output, row, error)
        return edges

    def close(self, delivery: Delivery) -> None:
        """Report a finished chunk to the ackers."""
        task = self._task
        if delivery.failed:
            task.topology.tracker.fail(delivery.lineage.roots, task.to_ackers)
        elif delivery.left >= 0:
            for root in delivery.lineage.roots:
                task.topology.tracker.add(root, delivery.edge, task.to_ackers)
            task.meters.acked += delivery.count
        task.meters.process_latency.record(task.worker.clock.now() - delivery.arrived, delivery.count)

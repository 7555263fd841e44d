"""Keeps the order between two senders, one of which takes over from the other: input from the new one waits for the end of
the old one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from millrace.runtime.flow.channel import Delivery, Inlet
from millrace.runtime.wire.messages import HandoverMark

Incarnation = tuple[int, int]  # number and incarnation of a task
EndedSender = tuple[int, int, int]  # number and incarnation of a task, and the move for which it sends nothing more


class Held:
    """Input from a new sender. `after`: the old one; `worker`: slot and generation of its worker."""

    def __init__(self, after: EndedSender, worker: tuple[int, int]) -> None:
        self.after, self.worker = after, worker
        self.deliveries: deque[Delivery] = deque()


class Succession:
    """Input that is held back gets no credit, so its senders wait and it stays bounded."""

    def __init__(self) -> None:
        self.held: dict[Incarnation, Held] = {}
        self._ended: set[EndedSender] = set()  # whose successors have not started yet
        self._all_ended: dict[int, tuple[int, int]] = {}  # by task: everything before this incarnation and move has ended

    def holds(self, delivery: Delivery) -> bool:
        """Keep the delivery back if its sender has to wait."""
        held = self.held.get((delivery.inlet.source, delivery.inlet.incarnation))
        if held is None:
            return False
        held.deliveries.append(delivery)
        return True

    def start(self, inlet: Inlet, mark: HandoverMark) -> None:
        """A sender begins with what was another's."""
        before = mark.task, mark.incarnation, mark.move
        if before in self._ended:
            self._ended.discard(before)
        elif before[1:] >= self._all_ended.get(mark.task, (0, 0)):
            self.held[inlet.source, inlet.incarnation] = Held(before, (mark.slot, mark.generation))

    def end(self, inlet: Inlet, move: int, past: int) -> deque[Delivery]:
        """The old sender will send nothing more of what moves. Returns the input that waited for this. `past`: moves with a
        lower number have ended."""
        sender = inlet.source, inlet.incarnation, move
        self._forget_ended(inlet.source, (inlet.incarnation, past if move >= past else 0))
        successor = next((key for key, held in self.held.items() if held.after == sender), None)
        if successor is None:
            self._ended.add(sender)
            return deque()
        return self.held.pop(successor).deliveries

    def _forget_ended(self, task: int, before: tuple[int, int]) -> None:
        """Remember all ends of a task before this incarnation and move together. They have come, because a channel keeps the
        order, but their successors may never start here: their START was lost, or they started before this task did."""
        self._all_ended[task] = max(before, self._all_ended.get(task, before))
        self._ended = {ended for ended in self._ended if ended[0] != task or ended[1:] >= before}

    def end_of(self, sender: Incarnation) -> list[deque[Delivery]]:
        """Returns the input that waited for any end of this sender, a queue for each."""
        return self._release(lambda held: held.after[:2] == sender)

    def end_lost(self, is_lost: Callable[[int, int], bool]) -> list[deque[Delivery]]:
        """Returns the input that waited for senders whose workers are gone: their end will not come. One queue for each."""
        return self._release(lambda held: is_lost(*held.worker))

    def _release(self, is_due: Callable[[Held], bool]) -> list[deque[Delivery]]:
        return [self.held.pop(key).deliveries for key in [key for key, held in self.held.items() if is_due(held)]]

    def awaits(self, sender: Incarnation) -> bool:
        return any(held.after[:2] == sender for held in self.held.values())

    @property
    def tuples(self) -> int:
        return sum(delivery.count for held in self.held.values() for delivery in held.deliveries)

"""Keeps the order between two incarnations of a sender: input from the new one waits for the end of the old one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from millrace.runtime.flow.channel import Delivery, Inlet
from millrace.runtime.wire.messages import HandoverMark

Incarnation = tuple[int, int]  # number and incarnation of a task


class Held:
    """Input from a new incarnation. `after`: the old one; `worker`: slot and generation of its worker."""

    def __init__(self, after: Incarnation, worker: tuple[int, int]) -> None:
        self.after, self.worker = after, worker
        self.deliveries: deque[Delivery] = deque()


class Succession:
    """Input that is held back gets no credit, so its senders wait and it stays bounded."""

    def __init__(self) -> None:
        self.held: dict[Incarnation, Held] = {}
        self._ended: set[Incarnation] = set()  # whose successors have not started yet

    def holds(self, delivery: Delivery) -> bool:
        """Keep the delivery back if its sender has to wait."""
        held = self.held.get((delivery.inlet.source, delivery.inlet.incarnation))
        if held is None:
            return False
        held.deliveries.append(delivery)
        return True

    def start(self, inlet: Inlet, mark: HandoverMark) -> None:
        """A new incarnation has started to send."""
        before = inlet.source, mark.incarnation
        if before in self._ended:
            self._ended.discard(before)
        else:
            self.held[inlet.source, inlet.incarnation] = Held(before, (mark.slot, mark.generation))

    def end(self, inlet: Inlet) -> deque[Delivery]:
        """The old incarnation will send nothing more. Returns the input that waited for this."""
        sender = inlet.source, inlet.incarnation
        successor = next((key for key, held in self.held.items() if held.after == sender), None)
        if successor is None:
            self._ended.add(sender)
            return deque()
        return self.held.pop(successor).deliveries

    def end_lost(self, is_alive: Callable[[int, int], bool]) -> deque[Delivery]:
        """Returns the input that waited for incarnations whose workers are gone: their end will not come."""
        released: deque[Delivery] = deque()
        for key in [key for key, held in self.held.items() if not is_alive(*held.worker)]:
            released += self.held.pop(key).deliveries
        return released

    def awaits(self, sender: Incarnation) -> bool:
        return any(held.after == sender for held in self.held.values())

    @property
    def tuples(self) -> int:
        return sum(delivery.count for held in self.held.values() for delivery in held.deliveries)

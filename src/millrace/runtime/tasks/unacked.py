"""Chunks with tuples that a bolt will ack by hand."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.api.tuple import Tuple
from millrace.runtime.flow.channel import Delivery


class Held:
    """From the time they have been executed until all their tuples are acked. `tuples`: how many there are in them."""

    def __init__(self) -> None:
        self._chunks: dict[str, Delivery] = {}
        self.tuples = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, delivery: Delivery) -> None:
        self._chunks[delivery.key] = delivery
        self.tuples += delivery.count

    def let_go(self, delivery: Delivery) -> bool:
        """Whether it was held."""
        if self._chunks.pop(delivery.key, None) is None:
            return False
        self.tuples -= delivery.count
        return True

    def forget(self, before: float) -> None:
        """Those that arrived before that time."""
        for delivery in [delivery for delivery in self._chunks.values() if delivery.arrived < before]:
            self.let_go(delivery)

    def find(self, tup: Tuple | str, opened: Sequence[Delivery] = ()) -> tuple[Delivery | None, int]:
        """The chunk that a tuple, or a tuple's id, belongs to, and its place there. `opened`: others that it may be in."""
        if isinstance(tup, Tuple):
            delivery, index = tup.origin, tup.index
        else:
            key, _, place = str(tup).rpartition(":")
            delivery = self._chunks.get(key) or next((one for one in opened if one.key == key), None)
            index = int(place) if place.isdecimal() else -1
        known = isinstance(delivery, Delivery) and 0 <= index < delivery.count
        return (delivery if known else None), index

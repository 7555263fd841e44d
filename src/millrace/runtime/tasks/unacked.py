"""Executed chunks whose tuples a bolt has yet to ack by hand."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.api.tuple import Tuple
from millrace.runtime.flow.channel import Delivery


class UnackedChunks:
    """Chunks from their execution until all their tuples are acked. `tuples`: the total number of tuples in them."""

    def __init__(self) -> None:
        self._chunks: dict[str, Delivery] = {}
        self.tuples = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def add(self, delivery: Delivery) -> None:
        self._chunks[delivery.key] = delivery
        self.tuples += delivery.count

    def remove(self, delivery: Delivery) -> bool:
        """Return whether the chunk was here."""
        if self._chunks.pop(delivery.key, None) is None:
            return False
        self.tuples -= delivery.count
        return True

    def take_all(self) -> list[Delivery]:
        chunks, self._chunks, self.tuples = list(self._chunks.values()), {}, 0
        return chunks

    def expire(self, before: float) -> None:
        """Remove chunks that arrived before this time."""
        for delivery in [delivery for delivery in self._chunks.values() if delivery.arrived < before]:
            self.remove(delivery)

    def find(self, tup: Tuple | str, opened: Sequence[Delivery] = ()) -> tuple[Delivery | None, int]:
        """Find the chunk of a tuple, or of a tuple's id, and the index there. Chunks in `opened` are searched too."""
        if isinstance(tup, Tuple):
            delivery, index = tup.origin, tup.index
        else:
            key, _, place = str(tup).rpartition(":")
            delivery = self._chunks.get(key) or next((chunk for chunk in opened if chunk.key == key), None)
            index = int(place) if place.isdecimal() else -1
        known = isinstance(delivery, Delivery) and 0 <= index < delivery.count
        return (delivery if known else None), index

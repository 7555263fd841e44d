"""Keys of a skewed stream whose hot keys change over time."""

from __future__ import annotations

import random
from itertools import accumulate

TABLE_RANKS = 1 << 16  # ranks drawn in advance, which tuples have in turn
GOLDEN = 0.618  # share of the keys between the hottest key before a shift and after it


class ShiftingKeys:
    """The key of each tuple, a number below `keys`. The key of rank r has weight 1 / r ** `zipf` (0: all are equally frequent),
    and every `shift` seconds other keys have the first ranks; without `shift` they keep them."""

    def __init__(self, keys: int, zipf: float = 0.0, shift: float | None = None, seed: int = 1) -> None:
        self.keys, self.shift = keys, shift
        self._stride = max(1, round(GOLDEN * keys))
        weights = list(accumulate(1.0 / rank**zipf for rank in range(1, keys + 1)))
        self._ranks = random.Random(f"keys {seed}").choices(range(keys), cum_weights=weights, k=TABLE_RANKS)

    def key_of(self, number: int, seconds: float) -> int:
        """The key of tuple `number` of the stream, which is due at that time."""
        return (self._ranks[number % TABLE_RANKS] + self.hottest(seconds)) % self.keys

    def hottest(self, seconds: float) -> int:
        """The key with the first rank at a time."""
        return 0 if self.shift is None else int(seconds // self.shift) * self._stride % self.keys

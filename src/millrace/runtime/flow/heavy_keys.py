"""The most frequent keys of a stream, estimated from a sample in little memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

KEPT = 32  # keys
RECENT = 2000  # tuples of the sample that count fully: older ones fade
ENOUGH = 64  # tuples of the sample, fewer of which tell nothing
SHOWN = 4
LEAST_SHARE = 1 / KEPT  # of the tuples, for a key to count as frequent
LONGEST_KEY = 100  # characters


class HeavyKeys:
    """A Space-Saving sketch (Metwally 2005) of keys that are frequent among those added together: one that is not known takes
    the place of the rarest, with its count. Counts are halved when there are many, so that it follows a stream whose hot keys
    change."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts: dict[Any, tuple[int, int]] = {}  # by key: its key group, and its count at most
        self._total = 0

    def add(self, counted: Sequence[tuple[Any, int, int]]) -> None:
        """Add (key, key group, tuples) for each key of a part of the sample."""
        counts, size = self._counts, sum(tuples for _, _, tuples in counted)
        least = LEAST_SHARE * size
        for key, group, tuples in counted:
            if tuples < least:
                continue
            if key in counts:
                counts[key] = group, counts[key][1] + tuples
            elif len(counts) < KEPT:
                counts[key] = group, tuples
            else:
                rarest = min(counts, key=lambda known: counts[known][1])
                counts[key] = group, counts.pop(rarest)[1] + tuples
        self._total += size
        if self._total > RECENT:
            self._total //= 2
            self._counts = {key: (group, count // 2) for key, (group, count) in counts.items() if count > 1}

    def above(self, share: float) -> list[Any]:
        """The keys with at least this share of the tuples; none while there are too few."""
        if self._total < ENOUGH:
            return []
        return [key for key, (_, count) in self._counts.items() if count >= share * self._total]

    def shares(self) -> list[tuple[str, int, float]]:
        """(key as text, key group, share of the tuples) of the few most frequent keys, those that are rare left out."""
        frequent = sorted(self._counts.items(), key=lambda item: -item[1][1])[:SHOWN]
        return [(_text(key), group, count / self._total) for key, (group, count) in frequent
                if count > LEAST_SHARE * self._total]


def _text(key: Any) -> str:
    text = repr(key)
    text = text if len(text) <= LONGEST_KEY else f"{text[:LONGEST_KEY - 3]}..."
    return text.encode("utf-8", "backslashreplace").decode()

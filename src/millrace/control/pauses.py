"""Pauses before something that failed is tried again."""

from __future__ import annotations

MOST_DOUBLINGS = 30  # beyond any limit in use, and far from what a float can hold


def doubled_pause(failures: int, first: float, last: float) -> float:
    """Seconds to wait after so many failures in a row: `first` after one, doubled with each further one up to `last`."""
    return min(first * 2.0 ** min(failures - 1, MOST_DOUBLINGS), last) if failures > 0 else 0.0

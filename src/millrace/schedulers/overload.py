"""Overload of nodes and workers: the one definition by which schedulers rate placements and by which plans are accepted.

A place is a worker, with a core and a loop, or a node, with its CPU and, counted apart, its memory. Its excess is what is used
there beyond a share of what it has. Two shares count: 1, beyond which nobody can use more, and a threshold below it. A measured
load never exceeds 1, since a loop or core that is asked for more shows 1, so the threshold tells that a running place is full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Shares = NDArray[np.float64]
PlaceNumbers = NDArray[np.int64]

ROUNDING = 1 + 1e-9  # a load exceeds a capacity only by more than a rounding error
MARGIN = 0.05  # the threshold is so far above the share that a scheduler fills, or noise would undo its plans
HIGHEST = 0.97  # threshold of measured loads, at most: a place that is always full shows no more than 1, less its noise
PER_MOVE = 0.01  # excess that every move must relieve, as a share of a place
NO_EXCESS = 1e-9  # a difference of excess below this is a rounding error


def threshold(packing: float) -> float:
    """The share from which on a place is overloaded, for a scheduler that fills places up to the share `packing`."""
    return min(packing + MARGIN, 1.0)


@dataclass(frozen=True, slots=True)
class FillLimits:
    """Shares of nodes and workers: `packing`, up to which a scheduler fills them, and `overload`, above which they are
    overloaded. A task that needs more than `packing` may have a place for itself."""

    packing: float
    overload: float

    @classmethod
    def of(cls, packing: float, overload: float | None = None) -> FillLimits:
        return cls(packing, threshold(packing) if overload is None else overload)

    @property
    def of_new_plans(self) -> FillLimits:
        """The limits of placements from scratch: nothing that runs has to stay where there is a bit more than `packing`."""
        return FillLimits(self.packing, self.packing)


WHOLE = FillLimits(1.0, 1.0)  # all that there is


def beyond(used: Shares, limit: Shares, scale: Shares) -> Shares:
    """The excess of places: what they use beyond their limit, in units of `scale`, added up over the resources. `used` and
    `limit` have a row for each resource, and further axes that agree; `scale` has a number for each."""
    over: Shares = (np.maximum(used - limit, 0.0) / scale.reshape(-1, *[1] * (used.ndim - 1))).sum(axis=0)
    return over


def excess_of_places(used: Shares, has: Shares, share: float, alone: Shares | float = 0.0) -> Shares:
    """The excess of places beyond this share of what they have: 1 is as much as the largest place has. `alone`: the part of
    each place that one task may fill, see `needs_alone`; it is no excess."""
    return beyond(used, np.maximum(has * share, alone) * ROUNDING, np.maximum(has.max(axis=1, initial=0.0), 1e-9))


def needs_alone(needs: Shares, places: PlaceNumbers, has: Shares, share: float) -> Shares:
    """(resources, places): the part of each place that its heaviest task may fill alone, because it needs more than this share
    of the largest place: at most all that there is or, if no place has as much, all that it needs."""
    alone = np.zeros_like(has)
    for row, need, each, most in zip(alone, needs, has, has.max(axis=1, initial=0.0)):
        large = np.flatnonzero((places >= 0) & (need > most * share * ROUNDING))
        np.maximum.at(row, places[large], need[large])
        np.minimum(row, each, out=row, where=row <= most * ROUNDING)
    return alone


def relieves(before: Shares, after: Shares, moves: int) -> bool:
    """True if moves relieve an overload: the excess of all places falls by enough for the number of moves, and that of none
    rises."""
    less = fallen(before, after)
    return less > NO_EXCESS and less >= PER_MOVE * moves and not rises(before, after)


def fallen(before: Shares, after: Shares) -> float:
    """By how much the excess of all places together falls."""
    return float(before.sum() - after.sum())


def rises(before: Shares, after: Shares) -> bool:
    """True if a place is overloaded that was not, or is so further."""
    return bool((after > before + NO_EXCESS * np.maximum(before, 1.0)).any())

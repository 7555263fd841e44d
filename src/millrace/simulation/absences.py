"""Nodes that are away for a time: failures by chance, and nodes that leave and join as planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

REPAIR_SECONDS = 600.0  # that a failed node is away, on average


@dataclass(frozen=True, slots=True)
class Absence:
    """A node that is away from `begin` until `end`, in seconds. One that joins later is away from 0."""

    node: str
    begin: float
    end: float


def failures(nodes: Sequence[str], per_hour: float, hours: float, rng: np.random.Generator,
             repair_seconds: float = REPAIR_SECONDS) -> tuple[Absence, ...]:
    """Failures of any of the nodes at random times, each followed by a repair."""
    count = int(rng.poisson(per_hour * hours))
    begins = np.sort(rng.uniform(0, hours * 3600, count))
    return tuple(Absence(nodes[int(rng.integers(len(nodes)))], float(begin), float(begin + rng.exponential(repair_seconds)))
                 for begin in begins)


def away(absences: Sequence[Absence], begin: float, end: float) -> frozenset[str]:
    """The nodes that are away in this window: those that are at its beginning, and that leave before its middle."""
    middle = (begin + end) / 2
    return frozenset(absence.node for absence in absences if absence.begin <= middle < absence.end)

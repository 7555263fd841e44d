"""The plan of faults: kinds, their order, and the end of a run. The seed alone decides it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from random import Random

QUIET_SECONDS = 2.0  # at most, between a wave that is committed again and the next fault
OVERLAPPING = 0.25  # share of the faults after which the next one does not wait for that wave
EXTRA_SECONDS = 240.0  # at most, beyond the time that was asked for, until each kind of fault had an effect

KILL_ONE, KILL_TWO, KILL_ALL_BUT_ONE, KILL_EXECUTOR = "worker killed", "two killed", "all but one killed", "executor killed"
STOP, HUNG, SLOW_SINK = "worker stopped", "code hung", "sink slow"
STORE_AWAY, MOVE, PAUSE = "store away", "task moved", "paused"
KILL_DRIVER, TAKEOVER = "driver killed", "driver overtaken"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `quiet`: seconds before it. `draw`: seed for the choice of its victims among those that exist then.
    `alone`: the next fault waits until this one is recovered from."""

    kind: str
    quiet: float
    draw: int
    alone: bool


def plan_of_faults(seed: int, kinds: Sequence[str]) -> Iterator[Fault]:
    """Endless rounds of all kinds of faults, each round in its own order; the same for the same seed. The fault before a pause
    is always recovered from first: the time of a pause does not count, so it would cut the gap of that fault short."""
    chance = Random(seed)
    drawn = (kind for _ in count() for kind in chance.sample(kinds, len(kinds)))
    for kind, following in pairwise(drawn):
        overlapping = chance.random() < OVERLAPPING and following != PAUSE
        yield Fault(kind, chance.uniform(0, QUIET_SECONDS), chance.getrandbits(32), not overlapping)


def is_over(now: float, end: float, effective: Counter[str], kinds: Sequence[str]) -> bool:
    """True if the time is up and each kind of fault had an effect, and in any case when the extra time is up."""
    return now >= end and (all(effective[kind] for kind in kinds) or now >= end + EXTRA_SECONDS)

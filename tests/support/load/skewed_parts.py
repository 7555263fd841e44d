"""A source whose keys are skewed: most tuples have a few hot keys, which belong to one task at first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping, stable_hash
from millrace.api.keyed.declared import CounterState
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.config import KEY_GROUP_COUNT
from millrace.connectors.generator import GeneratorSpout
from millrace.model.plan import initial_key_groups
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import FakeLedger, Tally

TALLIES = 4
GROUPS: int = KEY_GROUP_COUNT.default


def _keys(owner: int, number: int) -> list[str]:
    """Keys of different key groups that belong to this task at first."""
    owners, found = initial_key_groups(GROUPS, TALLIES), dict[int, str]()
    for candidate in (f"key {n}" for n in range(100_000)):
        group = stable_hash(candidate) % GROUPS
        if owners[group] == owner and group not in found:
            found[group] = candidate
            if len(found) == number:
                break
    return list(found.values())


HOT = _keys(0, 8)
COLD = [key for owner in range(TALLIES) for key in _keys(owner, 10)[8:]]


class Skewed(GeneratorSpout):
    """Of ten tuples, eight have hot keys."""

    outputs: ClassVar[list[str]] = ["key", "number"]

    def generate(self, position: int) -> tuple[Any, ...]:
        number = self.ordinal(position)
        return skewed_key(number), number


class OneKey(GeneratorSpout):
    """Of ten tuples, nine have the same key."""

    outputs: ClassVar[list[str]] = ["key", "number"]

    def generate(self, position: int) -> tuple[Any, ...]:
        number = self.ordinal(position)
        return part_key(number), number


class SlowTally(Tally):
    """Takes 0.2 ms of virtual time for each tuple."""

    pause: ClassVar[Callable[[float], None]]  # set by the test: it advances the cluster's clock

    def process(self, tup: Tuple) -> None:
        SlowTally.pause(0.0002)
        super().process(tup)


class PartialSums(GeneratorSpout):
    """Of ten tuples, nine have the same key; each is a partial sum."""

    outputs: ClassVar[list[str]] = ["key", "sum", "count"]

    def generate(self, position: int) -> tuple[Any, ...]:
        number = self.ordinal(position)
        return part_key(number), number, 1


class Totals(Bolt):
    """Adds up partial sums by key, and emits the new total."""

    outputs: ClassVar[list[str]] = ["key", "sum", "count"]
    sums = CounterState()
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        key, amount, count = tup.values
        self.sums[key] += amount
        self.counts[key] += count
        self.emit((key, self.sums[key], self.counts[key]))

    @staticmethod
    def merge(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return one[0], one[1] + other[1], one[2] + other[2]


def part_key(number: int) -> str:
    return HOT[0] if number % 10 else COLD[number // 10 % len(COLD)]


def true_totals(limit: int) -> dict[str, tuple[int, int]]:
    """The sum and the number of all numbers of each key, by the numbers of the source alone."""
    totals: dict[str, tuple[int, int]] = {}
    for number in range(limit):
        total, count = totals.get(part_key(number), (0, 0))
        totals[part_key(number)] = total + number, count + 1
    return totals


def last_totals(guarantee: str) -> dict[str, tuple[int, int]]:
    """The newest total of each key; totals of a key must have come in order."""
    last: dict[str, tuple[int, int]] = {}
    for key, total, count in parts.VISIBLE if guarantee == "exactly-once" else parts.WRITTEN:
        assert count > last.get(key, (0, 0))[1], f"count {count} of {key} came after {last[key]}"
        last[key] = total, count
    return last


def skewed_key(number: int) -> str:
    keys = HOT if number % 10 < 8 else COLD
    return keys[number // 10 % len(keys)]


def true_rows(limit: int) -> Counter[tuple[str, int]]:
    """The rows that must have come, by the numbers of the source alone."""
    return Counter((skewed_key(number), number) for number in range(limit))


class SkewedTally(Topology):
    numbers = Skewed.spec(par=2)
    tally = Tally.spec(inputs={numbers: Grouping.fields("key")}, par=TALLIES)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class OneHotKey(Topology):
    numbers = OneKey.spec(par=2)
    tally = SlowTally.spec(inputs={numbers: Grouping.fields("key")}, par=TALLIES)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)


class MergedSums(Topology):
    numbers = PartialSums.spec(par=2)
    tally = Totals.spec(inputs={numbers: Grouping.fields("key")}, par=TALLIES)
    ledger = FakeLedger.spec(inputs={tally: Grouping.fields("key")}, par=2)

"""Topologies whose streams are read from outside through a tap."""

from __future__ import annotations

from typing import Any

from millrace import Bolt, CounterState, Grouping, ListState, Topology
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.tap import Tap

WORDS = ("mill", "race", "wheel", "water", "stone")


class Numbers(GeneratorSpout):
    """Every number once over all tasks, with a word."""

    outputs = ["number", "word"]

    def generate(self, position: int) -> list[Any]:
        number = self.ordinal(position)
        return [number, WORDS[number % len(WORDS)]]


class Counted(Bolt):
    """Passes the numbers on with the count of their word so far."""

    outputs = ["number", "word", "count"]
    counts = CounterState()
    pairs = ListState()

    def process(self, tup: Any) -> None:
        number, word = tup.values
        self.counts[word] += 1
        self.pairs[word] = [number, word]
        self.emit([number, word, self.counts[word]])


class Tapped(Topology):
    """Without state; at least once unless configured otherwise."""

    numbers = Numbers.spec(par=2)
    out = Tap.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)


class CountedTap(Topology):
    """With keyed state."""

    numbers = Numbers.spec(par=2)
    count = Counted.spec(inputs={numbers: Grouping.fields("word")}, par=2)
    out = Tap.spec(inputs={count: Grouping.SHUFFLE}, par=2)


class TwoWidths(Topology):
    """A tap of streams whose rows do not form one table."""

    numbers = Numbers.spec()
    count = Counted.spec(inputs={numbers: Grouping.fields("word")})
    out = Tap.spec(inputs={numbers: Grouping.SHUFFLE, count: Grouping.SHUFFLE})

"""Topologies that a streaming DataFrame feeds, and the files that it reads; workers import this module."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from millrace import Bolt, CounterState, Grouping, Spout, Topology, Tuple
from millrace.connectors.sinks import JsonLinesSink
from millrace.connectors.tap import Tap


class CountLines(Bolt):
    """How often each line came, as keyed state; passes them on."""

    outputs = ["line"]
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        self.counts[tup.values.line] += 1
        self.emit(tup.values)


class KeepLines(Bolt):
    """Never says that it is done with one."""

    acks_itself = True

    def process(self, tup: Tuple) -> None: ...


def keeping(dataframe: Any, **options: Any) -> type[Topology]:
    class Keeping(Topology):
        lines = Spout.from_dataframe(dataframe, **options)
        keep = KeepLines.spec(inputs={lines: Grouping.SHUFFLE})

    return Keeping


def writing(dataframe: Any, **options: Any) -> type[Topology]:
    """Every line to a file of the directory `path`."""

    class Writing(Topology):
        lines = Spout.from_dataframe(dataframe, par=2, **options)
        sink = JsonLinesSink.spec(inputs={lines: Grouping.SHUFFLE}, par=2)

    return Writing


def counting(dataframe: Any, **options: Any) -> type[Topology]:
    """The same, counted on the way."""

    class Counting(Topology):
        lines = Spout.from_dataframe(dataframe, par=2, **options)
        count = CountLines.spec(inputs={lines: Grouping.fields("line")}, par=2)
        sink = JsonLinesSink.spec(inputs={count: Grouping.SHUFFLE}, par=2)

    return Counting


def tapping(dataframe: Any, **options: Any) -> type[Topology]:
    """Out again as it came in."""

    class Tapping(Topology):
        lines = Spout.from_dataframe(dataframe, par=2, **options)
        out = Tap.spec(inputs={lines: Grouping.SHUFFLE}, par=2)

    return Tapping


class Incoming:
    """A directory of text files that grows; no line is in it twice."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        self.lines: list[str] = []

    def add(self, files: int, lines: int) -> None:
        for _ in range(files):
            number = len(self.lines)
            fresh = [f"line {number + i}" for i in range(lines)]
            hidden = self.directory / f".{number}"
            hidden.write_text("".join(f"{line}\n" for line in fresh))
            self.lines += fresh
            hidden.rename(self.directory / f"{number:08}.txt")  # whole when it is seen


def written(directory: Path) -> Counter[str]:
    """What the sinks have, and how often. The last record of a file may be torn by a kill."""
    found: Counter[str] = Counter()
    for path in directory.glob("part-*"):
        for record in path.read_text().split("\n")[:-1]:
            found[json.loads(record)["line"]] += 1
    return found

"""Topologies fed by a streaming DataFrame, and the files that it reads; workers import this module."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from millrace import Bolt, CounterState, Grouping, Spout, Topology, Tuple
from millrace.connectors.sinks import JsonLinesSink
from millrace.connectors.tap import Tap


class CountLines(Bolt):
    """Counts each line in keyed state, and emits it."""

    outputs = ["line"]
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        self.counts[tup.values.line] += 1
        self.emit(tup.values)


class KeepLines(Bolt):
    """Never acks a tuple."""

    acks_itself = True

    def process(self, tup: Tuple) -> None: ...


def keeping(dataframe: Any, **options: Any) -> type[Topology]:
    class Keeping(Topology):
        lines = Spout.from_dataframe(dataframe, **options)
        keep = KeepLines.spec(inputs={lines: Grouping.SHUFFLE})

    return Keeping


def writing(dataframe: Any, **options: Any) -> type[Topology]:
    """Writes every line to a file in the directory `path`."""

    class Writing(Topology):
        lines = Spout.from_dataframe(dataframe, par=2, **options)
        sink = JsonLinesSink.spec(inputs={lines: Grouping.SHUFFLE}, par=2)

    return Writing


def counting(dataframe: Any, **options: Any) -> type[Topology]:
    """Counts every line, then writes it as `writing` does."""

    class Counting(Topology):
        lines = Spout.from_dataframe(dataframe, par=2, **options)
        count = CountLines.spec(inputs={lines: Grouping.fields("line")}, par=2)
        sink = JsonLinesSink.spec(inputs={count: Grouping.SHUFFLE}, par=2)

    return Counting


def tapping(dataframe: Any, **options: Any) -> type[Topology]:
    """Emits every line to a tap."""

    class Tapping(Topology):
        lines = Spout.from_dataframe(dataframe, par=2, **options)
        out = Tap.spec(inputs={lines: Grouping.SHUFFLE}, par=2)

    return Tapping


class Incoming:
    """A growing directory of text files in which no line occurs twice."""

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
            hidden.rename(self.directory / f"{number:08}.txt")  # readers see it complete


def written(directory: Path) -> Counter[str]:
    """The lines that the sinks have written, with their counts. A kill may tear the last record of a file."""
    lines: Counter[str] = Counter()
    for path in directory.glob("part-*"):
        for record in path.read_text().split("\n")[:-1]:
            lines[json.loads(record)["line"]] += 1
    return lines

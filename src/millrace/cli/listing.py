"""Tables that fit the terminal: optional columns are dropped where it is narrow, and long text is wrapped with an indent."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

GAP = 2
NAME_WIDTH = 20  # a longer name is broken over several lines before columns are dropped
LONGEST_EVENT = 300  # characters; --json has the whole text
NARROWEST = 20
_TASK = r"[^\s,\[\]]+\[\d+\]"
_SEVERAL_TASKS = re.compile(rf"{_TASK}(?:, {_TASK})+")


def plain_console(stderr: bool = False) -> Console:
    """A console that takes no text for markup, whatever users call their components."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Figures are aligned right and never wrapped, other cells are aligned left. `spare`: may be dropped."""

    title: str
    cells: Sequence[str]
    figures: bool = True
    spare: bool = False

    @property
    def width(self) -> int:
        return max(cell_len(line) for line in [*self.title.split("\n"), *self.cells])


class Listing:
    """A table without rules, with as many of its spare columns as fit."""

    def __init__(self, title: str, *columns: Column, style: str = "bold") -> None:
        self._title, self._columns, self._style = title, columns, style

    def fitting(self, width: int) -> list[Column]:
        """The columns to show: all that are not spare, and spare ones while there is room."""
        name, *others = self._columns
        room = width - min(name.width, NAME_WIDTH) - sum(column.width + GAP for column in others if not column.spare)
        fitting = [name]
        for column in others:
            room -= column.width + GAP if column.spare else 0
            if room >= 0 or not column.spare:
                fitting.append(column)
        return fitting

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield Hanging(self._title, style=self._style)
        columns = self.fitting(options.max_width)
        room = options.max_width - sum(column.width + GAP for column in columns[1:])
        lines = max(column.title.count("\n") for column in columns)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        for column in columns:
            table.add_column("\n" * (lines - column.title.count("\n")) + column.title, overflow="fold",
                             justify="right" if column.figures else "left", no_wrap=column.figures,
                             min_width=min(column.width, NAME_WIDTH) if column is columns[0] else None)
        for name, *others in zip(*(column.cells for column in columns), strict=True):
            table.add_row(Text(broken(name, max(room, NAME_WIDTH))), *map(Text, others))
        yield table


@dataclass(frozen=True, slots=True)
class Hanging:
    """A line of text with a label; continuation lines are indented by the width of the label."""

    text: str
    label: str = ""
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(hanging(self.text, self.label, options.max_width), style=self.style)


def hanging(text: str, label: str, width: int) -> str:
    """The label with the text to its right. Long words such as paths are not broken."""
    indent = " " * cell_len(label)
    return textwrap.fill(text, max(width, len(indent) + NARROWEST), initial_indent=label, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False) or label.rstrip()


def broken(name: str, width: int) -> str:
    """Break a name into lines of at most `width`, after a dash, dot or underscore if possible."""
    lines = [""]
    for part in re.split(r"(?<=[-_.])", name):
        if cell_len(lines[-1] + part) > width and lines[-1]:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def short_hosts(hosts: Iterable[str]) -> dict[str, str]:
    """Map each host to the first part of its name, if those parts are unique."""
    names = set(hosts)
    first = {name: name.partition(".")[0] for name in names}
    unique = len(set(first.values())) == len(names) and not any(part.isdigit() for part in first.values())
    return first if unique else {name: name for name in names}


def task_names(tasks: Iterable[str]) -> str:
    """count[0], count[1], count[2], split[4] as count[0..2], split[4]."""
    indexes: dict[str, list[int]] = {}
    for task in tasks:
        component, _, index = task.rstrip("]").rpartition("[")
        indexes.setdefault(component, []).append(int(index))
    return ", ".join(f"{component}[{ranges(numbers)}]" for component, numbers in indexes.items())


def ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as 0..2, 5."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def shortened(text: str) -> str:
    """Shorten an event that names many tasks, to a few lines at most."""
    short = _SEVERAL_TASKS.sub(lambda several: task_names(several[0].split(", ")), text)
    return short if len(short) <= LONGEST_EVENT else f"{short[:LONGEST_EVENT]} ..."

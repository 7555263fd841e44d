"""Aims of the benchmarks: a figure of a result, and its bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Result = dict[str, Any]
Figure = float | tuple[float, float]


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim: a figure of a result and its bound. `value` returns None if the run has no such figure, and two figures if the
    first is to be so many times the second. `strict`: equal is not enough."""

    result: str
    text: str
    value: Callable[[Result], Figure | None]
    bound: float
    at_most: bool = False
    strict: bool = False

    def is_met(self, figure: Figure) -> bool:
        ours, theirs = figure if isinstance(figure, tuple) else (figure, 1.0)
        bound = self.bound * theirs
        if ours == bound:
            return not self.strict
        return ours < bound if self.at_most else ours > bound

    @property
    def bound_text(self) -> str:
        kinds = ("more than", "less than") if self.strict else ("at least", "at most")
        return f"{kinds[self.at_most]} {self.bound:g}"

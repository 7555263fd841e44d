"""Tuples as bolts see them, and the names of streams and components that the engine uses itself."""

from __future__ import annotations

from millrace.hotpath.steps import Tuple

DEFAULT_STREAM = "default"
DEAD_LETTERS = "dead-letters"
DEAD_LETTER_FIELDS = ("component", "task", "stream", "values", "error")
SYSTEM_COMPONENT = "__system"
TICK_STREAM = "__tick"

__all__ = ["DEAD_LETTERS", "DEAD_LETTER_FIELDS", "DEFAULT_STREAM", "SYSTEM_COMPONENT", "TICK_STREAM", "Tuple"]

"""Numbers of examples of property tests: few in the main run, more when `millrace test --explore` searches for failures."""

from __future__ import annotations

from hypothesis import settings

MAIN = 50  # of a test that names no number, in the main run
EXPLORE = 100  # the same in the profile "explore"


def examples(count: int) -> int:
    """`count` in the main run, and more in the same proportion under another profile."""
    return count * settings().max_examples // MAIN

"""What the components of the cluster tests have seen. It is kept here: all workers of a LocalCluster are one process."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any

SEEN: defaultdict[str, list[Any]] = defaultdict(list)  # component → the values it got, in order
TOLD: list[tuple[Any, ...]] = []  # what spouts were told of their tuples, and what else happened to components
QUEUE: deque[int] = deque()  # what FromQueue takes its numbers from
REFUSED: Counter[Any] = Counter()  # how often a value has been refused by a bolt that raises
MADE: Counter[str] = Counter()  # calls of `initialize`, by task
CLOSED: list[str] = []  # tasks whose `close` was called
RAISE: list[BaseException] = []  # what is to be raised next


def forget() -> None:
    for kept in (SEEN, TOLD, QUEUE, REFUSED, MADE, CLOSED, RAISE):
        kept.clear()

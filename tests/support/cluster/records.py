"""Records of the components of the cluster tests; all workers of a LocalCluster share one process."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any

SEEN: defaultdict[str, list[Any]] = defaultdict(list)  # component → the values it got, in order
EVENTS: list[tuple[Any, ...]] = []  # acks and fails of spouts, and other callbacks
QUEUE: deque[int] = deque()  # the numbers for FromQueue
REFUSED: Counter[Any] = Counter()  # refusals of each value by bolts that raise
MADE: Counter[str] = Counter()  # calls of `initialize`, by task
CLOSED: list[str] = []  # tasks whose `close` was called
RAISE: list[BaseException] = []  # exceptions to raise next


def forget() -> None:
    for kept in (SEEN, EVENTS, QUEUE, REFUSED, MADE, CLOSED, RAISE):
        kept.clear()

"""A cluster in which nothing is instant, and nothing fails: messages between workers take a random time, plans reach workers at
random times, so that each misses some, and workers pause now and then, so that input piles up."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

from millrace.testing.local_cluster import LocalCluster

PAUSES = 0.02  # chance in each step that a worker begins to pause
DISTANCES = (0.0, 0.002, 0.05)  # seconds that a message takes at least
LONGEST = {"message": 0.005, "plan": 0.03, "pause": 0.02}  # seconds


class SlowCluster(LocalCluster):
    """`cut_off`: workers that plans do not reach for now; `still`: those that do nothing for now."""

    def __init__(self, workers: int, random: Random) -> None:
        self._random = random
        self._under_way: dict[tuple[int, int, int], deque[tuple[float, Any, list[bytes]]]] = {}  # by pair of workers
        self._distances: dict[tuple[int, int], float] = {}  # by pair of slots
        self._hears_at: dict[int, float] = {}
        self._pauses_until: dict[int, float] = {}
        self.cut_off: set[int] = set()
        self.still: set[int] = set()
        super().__init__(workers, nodes=workers)

    def start(self, slot: int) -> None:
        self.deaf.discard(slot)
        super().start(slot)
        self.deaf.add(slot)

    def post(self, sender: int, address: Any, frames: list[bytes]) -> None:
        """Messages of two workers stay in order, as in a connection."""
        queue = self._under_way.setdefault((sender, address.slot, address.generation), deque())
        distance = self._distances.setdefault((sender, address.slot), self._random.choice(DISTANCES))
        queue.append((self._soon("message") + distance, address, frames))

    def _soon(self, what: str) -> float:
        return self.clock.now() + self._random.random() * LONGEST[what]

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self._deliver()
            self._tell_plans()
            self._pause()
            super().step()

    def _deliver(self) -> None:
        now = self.clock.now()
        for (sender, _, _), queue in list(self._under_way.items()):
            while queue and queue[0][0] <= now:
                _, address, frames = queue.popleft()
                super().post(sender, address, frames)

    def _tell_plans(self) -> None:
        now = self.clock.now()
        for slot in sorted(self.workers.keys() & self.master.workers.keys() - self.cut_off):
            behind = self.workers[slot].revision < self.master.revision
            if not behind:
                self._hears_at.pop(slot, None)
            elif self._hears_at.setdefault(slot, self._soon("plan")) <= now:
                del self._hears_at[slot]
                self.hear(slot)
                self.deaf.add(slot)

    def _pause(self) -> None:
        now = self.clock.now()
        for slot in sorted(self.workers):
            if slot not in self._pauses_until and self._random.random() < PAUSES:
                self._pauses_until[slot] = self._soon("pause")
        self._pauses_until = {slot: until for slot, until in self._pauses_until.items() if until > now}
        self.holding = self.still | self._pauses_until.keys()

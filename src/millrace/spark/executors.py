"""Spark's executors as the slots of a microbatch cluster: who came, who is gone, and where a slot's partitions go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millrace.errors import NotEnoughSlots
from millrace.model.cluster import Node
from millrace.spark.batch_tasks import say_hello
from millrace.spark.placement import Executor, Placement, SparkTotals
from millrace.spark.spark_errors import SPARK_ERRORS

if TYPE_CHECKING:
    from millrace.master.service import Master

log = logging.getLogger("millrace.master")
LOOK_SECONDS = 0.2
_hello = msgspec.msgpack.Decoder(tuple[str, Node, str])


class Executors:
    """Slots by number. An executor that Spark brings in the place of a lost one takes the lowest number that is free, so that
    tasks which had to leave the slot go back to it."""

    def __init__(self, placement: Placement, master: Master) -> None:
        self._placement, self._master = placement, master
        self._slots: dict[int, Executor] = {}
        self.several = not placement.local  # there may be more than one, if not now
        self._lock = threading.Lock()

    def look(self) -> None:
        """Tell the master who has come and who is gone."""
        with self._lock:
            alive = {executor.id: executor for executor in self._placement.executors()}
            for slot, executor in list(self._slots.items()):
                if executor.id not in alive:
                    del self._slots[slot]
                    self._master.dismiss(slot, f"Spark's executor {executor.id} is gone")
            new = [executor for executor in alive.values() if executor.id not in self.by_id()]
            nodes = self._nodes(new) if new else {}
            for executor in new:
                if executor.id in nodes:
                    slot = min(set(range(len(self._slots) + 1)) - self._slots.keys())
                    self._slots[slot] = executor
                    node, boot = nodes[executor.id]
                    self._master.enlist(slot, node, executor.id, boot)

    def _nodes(self, executors: list[Executor]) -> dict[str, tuple[Node, str]]:
        """As they say themselves. One that does not answer, because it is gone or too busy, is asked again the next time."""
        placed = self._placement.seeds([executor.location for executor in executors])
        try:
            answers = self._placement.collect(self._placement.python(placed, partial(say_hello, self._master.settings)))
        except SPARK_ERRORS as error:
            log.warning("new executors did not answer: %s", error)
            return {}
        return {executor: (node, boot) for executor, node, boot in map(_hello.decode, answers)}

    def wait_for(self, count: int, seconds: float, over: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.look()
            if len(self._slots) >= count or over():
                return
            if time.monotonic() >= deadline:
                raise NotEnoughSlots(f"{len(self._slots)} of {count} Spark executors came up within {seconds:g} s: has the "
                                     "cluster that many free cores, and do the executors' Python environments have "
                                     "Millrace's dependencies? MILLRACE_SPARK_LOG=info shows Spark's own log")
            time.sleep(LOOK_SECONDS)

    def by_id(self) -> dict[str, int]:
        return {executor.id: slot for slot, executor in dict(self._slots).items()}

    @property
    def wide(self) -> bool:
        """Whether some have more than one core, and so more than one Python process."""
        return any(executor.cores > 1 for executor in dict(self._slots).values())

    def location(self, slot: int) -> str:
        """Where Spark should run what is for the slot; anywhere if nobody has it any more."""
        executor = self._slots.get(slot)
        return executor.location if executor is not None else ""

    def totals(self) -> SparkTotals:
        return self._placement.totals()

    def __len__(self) -> int:
        return len(self._slots)

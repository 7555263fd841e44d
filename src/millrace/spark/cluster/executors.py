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
from millrace.runtime.node import this_node
from millrace.runtime.wire.transport import boot_id
from millrace.spark.cluster.identity import identify
from millrace.spark.cluster.placement import Executor, Placement, SparkTotals
from millrace.spark.session.errors import SPARK_ERRORS

if TYPE_CHECKING:
    from millrace.master.service import Master

log = logging.getLogger("millrace.master")
LOOK_SECONDS = 0.2
_hello = msgspec.msgpack.Decoder(tuple[str, Node, str])


class Executors:
    """Slots by number. An executor that Spark brings in the place of a lost one takes the lowest number that is free, so that
    tasks which had to leave the slot go back to it. `here`: all of them are on this machine."""

    def __init__(self, placement: Placement, master: Master, here: bool = False) -> None:
        self._placement, self._master, self._here = placement, master, here
        self._slots: dict[int, Executor] = {}
        self._nodes: dict[str, tuple[Node, str]] = {}  # by executor: where it is, and the boot of that machine
        self._asked: set[str] = set()  # executors that have not answered yet
        self.several = not placement.local  # there may be more than one, if not now
        self._lock = threading.Lock()

    def look(self) -> None:
        """Tell the master who has come and who is gone."""
        with self._lock:
            alive = {executor.id: executor for executor in self._placement.executors()}
            for slot, executor in list(self._slots.items()):
                if executor.id not in alive:
                    del self._slots[slot]
                    self._nodes.pop(executor.id, None)
                    self._master.dismiss(slot, f"Spark's executor {executor.id} is gone")
            for executor in [executor for executor in alive.values() if executor.id not in self.by_id()]:
                found = self._node(executor)
                if found is not None:
                    slot = min(set(range(len(self._slots) + 1)) - self._slots.keys())
                    self._slots[slot] = executor
                    self._master.enlist(slot, found[0], executor.id, found[1])

    def _node(self, executor: Executor) -> tuple[Node, str] | None:
        """Spark does not know what a machine can carry: an executor elsewhere is asked. Nobody waits for its answer, which one
        that is busy gives late."""
        if self._here:
            return this_node(self._master.settings, executor.id), boot_id()
        found = self._nodes.get(executor.id)
        if found is None and executor.id not in self._asked:
            self._asked.add(executor.id)
            threading.Thread(target=self._greet, args=(executor,), daemon=True, name=f"hello to {executor.id}").start()
        return found

    def _greet(self, executor: Executor) -> None:
        """One that does not answer, because it is gone, is asked again if it is seen again."""
        try:
            placed = self._placement.seeds([executor.location])
            answers = self._placement.collect(self._placement.python(placed, partial(identify, self._master.settings)))
            # It may be another one that answers: Spark goes elsewhere if an executor is busy for long.
            for name, node, boot in map(_hello.decode, answers):
                self._nodes[name] = node, boot
        except SPARK_ERRORS as error:
            log.warning("a new executor did not answer: %s", error)
        finally:
            self._asked.discard(executor.id)

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

"""Spark's executors as the slots of a microbatch cluster: arrivals, losses, and where a slot's partitions run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from millrace.errors import NotEnoughSlots
from millrace.model.cluster import Node
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.node import this_node
from millrace.runtime.wire.transport import boot_id
from millrace.spark.cluster.identity import identify
from millrace.spark.cluster.placement import Executor, Placement, SparkTotals
from millrace.spark.cluster.store_trial import check_store
from millrace.spark.session.errors import SPARK_ERRORS

log = logging.getLogger("millrace.master")
LOOK_SECONDS = 0.2
_identity = msgspec.msgpack.Decoder(tuple[str, Node, str])


class ExecutorPort(Protocol):
    """The part of the master to which executors are reported; callable from any thread."""

    def enlist(self, slot: int, node: Node, executor: str, boot: str = "") -> None:
        """Register an executor that fills this slot."""

    def dismiss(self, slot: int, cause: str) -> None:
        """Remove an executor that has ended."""


class Executors:
    """Executors by slot number. An executor that replaces a lost one takes the lowest free number, so that tasks which had to
    leave the slot return to it. `here`: all executors are on this machine."""

    def __init__(self, placement: Placement, master: ExecutorPort, settings: Mapping[str, Any],
                 here: bool = False) -> None:
        self._placement, self._master, self._settings, self._here = placement, master, settings, here
        self._slots: dict[int, Executor] = {}
        self._nodes: dict[str, tuple[Node, str]] = {}  # by executor: its node, and the boot id of that machine
        self._unanswered: set[str] = set()  # executors that were asked for their node and have not answered yet
        self.several = not placement.local  # there may be more than one executor, now or later
        self._lock = threading.Lock()

    def look(self) -> None:
        """Report new and lost executors to the master."""
        with self._lock:
            alive = {executor.id: executor for executor in self._placement.executors()}
            for slot, executor in list(self._slots.items()):
                if executor.id not in alive:
                    del self._slots[slot]
                    self._nodes.pop(executor.id, None)
                    self._master.dismiss(slot, f"Spark's executor {executor.id} is gone")
            for executor in [executor for executor in alive.values() if executor.id not in self.by_id()]:
                identity = self._node(executor)
                if identity is not None:
                    node, boot = identity
                    slot = min(set(range(len(self._slots) + 1)) - self._slots.keys())
                    self._slots[slot] = executor
                    self._master.enlist(slot, node, executor.id, boot)

    def _node(self, executor: Executor) -> tuple[Node, str] | None:
        """The executor's node and boot id; None until they are known. Spark does not know the resources of a machine, so an
        executor elsewhere is asked, without waiting: a busy one answers late."""
        if self._here:
            return this_node(self._settings, executor.id), boot_id()
        identity = self._nodes.get(executor.id)
        if identity is None and executor.id not in self._unanswered:
            self._unanswered.add(executor.id)
            threading.Thread(target=self._ask, args=(executor,), daemon=True, name=f"identity of {executor.id}").start()
        return identity

    def _ask(self, executor: Executor) -> None:
        """Ask an executor for its node. One that does not answer is asked again when it is seen again."""
        try:
            placed = self._placement.seeds([executor.location])
            answers = self._placement.collect(self._placement.python(placed, partial(identify, self._settings)))
            # Another executor may answer: Spark runs the task elsewhere if this one is busy for long.
            for name, node, boot in map(_identity.decode, answers):
                self._nodes[name] = node, boot
        except SPARK_ERRORS as error:
            log.warning("a new executor did not answer: %s", error)
        finally:
            self._unanswered.discard(executor.id)

    def wait_for(self, count: int, seconds: float, over: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.look()
            if len(self._slots) >= count or over():
                return
            if time.monotonic() >= deadline:
                raise NotEnoughSlots(f"{len(self._slots)} of {count} Spark executors started within {seconds:g} s. Check that "
                                     "the cluster has that many free cores, and that the executors' Python environments have "
                                     "Millrace's dependencies. MILLRACE_SPARK_LOG=info shows Spark's own log")
            time.sleep(LOOK_SECONDS)

    def by_id(self) -> dict[str, int]:
        return {executor.id: slot for slot, executor in dict(self._slots).items()}

    @property
    def wide(self) -> bool:
        """True if some executor has more than one core, and so more than one Python process."""
        return any(executor.cores > 1 for executor in dict(self._slots).values())

    def location(self, slot: int) -> str:
        """The preferred location for the slot's partitions; empty (anywhere) if its executor is gone."""
        executor = self._slots.get(slot)
        return executor.location if executor is not None else ""

    def check_store(self, place: str) -> None:
        """Raise `StoreNotShared` if executors do not share the checkpoint store with the driver."""
        if self.several:
            check_store(self._placement, list(dict(self._slots).values()), open_store(place), place)

    def totals(self) -> SparkTotals:
        return self._placement.totals()

    def __len__(self) -> int:
        return len(self._slots)

"""A master with its state machine whose workers only exist on paper, and the supply that starts them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from millrace.control.events import Event, LeaveOver, StopWorker, Ticked, WorkerJoined, WorkerLost, WorkerReported
from millrace.control.master_state import MasterState
from millrace.errors import NotTheAuthor
from millrace.master.workers.pool import WorkerPool
from millrace.model.cluster import Node


class PaperMaster:
    """A master whose workers join when the supply starts them, and end when they are stopped."""

    def __init__(self, workers: int = 2) -> None:
        self.state, self.connections = MasterState(), dict[int, Any]()
        self.superseded = ""
        self.pool = WorkerPool(self)
        self.pids = 100
        for slot in range(workers):
            self.join(slot)

    def join(self, slot: int) -> None:
        self.pids += 1
        self.connections[slot] = SimpleNamespace(hello=SimpleNamespace(pid=self.pids))
        self.tell(WorkerJoined(slot, self.pids, Node("host", 4, 1000.0, 4096), "boot", f"e{slot}", f"ipc {slot}", ""))

    def tell(self, event: Event) -> None:
        for command in self.state.handle(event):
            if isinstance(command, LeaveOver):
                self.pool.over(command)
            elif isinstance(command, StopWorker):
                generation = self.state.workers[command.slot].address.generation
                del self.connections[command.slot]
                self.tell(WorkerLost(command.slot, generation, "it stopped"))

    def quiet(self, seconds: float) -> None:
        """Every worker reports twice that it has nothing to do."""
        for _ in range(4):
            for slot, worker in list(self.state.workers.items()):
                self.tell(WorkerReported(slot, worker.address.generation, self.state.revision, ()))
            self.tell(Ticked(seconds))

    def call(self, work: Callable[[], Any]) -> Any:
        return work()

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        return condition()

    def check_deciding(self) -> None:
        if self.superseded:
            raise NotTheAuthor(self.superseded)

    def try_store(self) -> None:
        """Do nothing: these workers have no store."""


class PaperSupply:
    def __init__(self, master: PaperMaster, starts: bool = True) -> None:
        self._master, self._starts, self._slots, self.released = master, starts, {*master.state.workers}, list[Any]()

    def slots(self) -> frozenset[int]:
        return frozenset(self._slots)

    def add(self, count: int) -> tuple[int, ...]:
        slots = tuple(range(max(self._slots) + 1, max(self._slots) + 1 + count))
        self._slots |= set(slots)
        for slot in slots if self._starts else ():
            self._master.join(slot)
        return slots

    def release(self, slot: int, executor: str) -> bool:
        self.released.append((slot, executor))
        self._slots.discard(slot)
        return True


def supplied(workers: int = 2, starts: bool = True) -> tuple[PaperMaster, PaperSupply]:
    master = PaperMaster(workers)
    supply = PaperSupply(master, starts)
    master.pool.supply = supply
    return master, supply

"""Workers added, removed and restarted on request, while topologies run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from millrace.control.events import Event, LeaveOver, WorkerLeaves
from millrace.control.moves import PERSON
from millrace.errors import MillraceError, NotEnoughSlots
from millrace.master.state_view import MasterView
from millrace.master.workers.port import Connection

log = logging.getLogger("millrace.master")
JOIN_SECONDS = 120.0  # that a new worker may take to join


class WorkerSupply(Protocol):
    """Starts the processes of workers, and starts them again when they end; callable from any thread but the master's, which
    must not wait."""

    def slots(self) -> frozenset[int]:
        """The slots whose processes run or are being started."""

    def add(self, count: int) -> tuple[int, ...]:
        """Start processes for so many new slots. Raises `NotEnoughSlots` if there is no room for all of them."""

    def release(self, slot: int, executor: str) -> bool:
        """End the slot's process, and do not start it again. Returns True if its executor was given back, too."""


class MasterCalls(Protocol):
    """The parts of the master that the pool uses."""

    @property
    def state(self) -> MasterView: ...
    @property
    def connections(self) -> Mapping[int, Connection]: ...

    def tell(self, event: Event) -> None:
        """Let the master decide on an event; only on its thread."""

    def call(self, work: Callable[[], Any]) -> Any:
        """Run the work on the master's thread and return its result."""

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition, which is evaluated on the master's thread, holds. False if time ran out."""

    def check_deciding(self) -> None:
        """Raise `NotTheAuthor` if another master has taken over."""

    def try_store(self) -> None:
        """Raise `StoreNotShared` if workers do not share the checkpoint store of a topology that uses it."""


@dataclass(slots=True)
class LeaveRequest:
    """A request to remove or restart a worker, and the worker as it was."""

    restarts: bool
    began: float
    node: str
    executor: str
    pid: int | None
    answer: Future[dict[str, Any]]


class WorkerPool:
    """Methods are called on the master's thread; whatever takes time goes on in threads, and the answers are futures."""

    def __init__(self, master: MasterCalls) -> None:
        self._master = master
        self.supply: WorkerSupply | None = None  # None: workers are Spark's executors, or are started by hand
        self._requests: dict[int, LeaveRequest] = {}
        self._answers: list[Future[dict[str, Any]]] = []  # of requests that may not be over

    @property
    def under_way(self) -> bool:
        """True if workers are being added, removed or restarted on request."""
        self._answers = [answer for answer in self._answers if not answer.done()]
        return bool(self._answers)

    def add(self, count: int) -> Future[dict[str, Any]]:
        """Start so many workers, and answer when they have joined."""
        supply = self.checked()
        if count < 1:
            raise MillraceError(f"{count} workers cannot be added: give a number of at least 1")
        answer: Future[dict[str, Any]] = Future()
        self._answers.append(answer)
        _in_thread(answer, partial(self._add, supply, count, time.monotonic()))
        return answer

    def remove(self, slot: int, who: str = PERSON) -> Future[dict[str, Any]]:
        """Hand over the worker's tasks, end it, and give its slot back. `who` wants it."""
        return self._leave(slot, restarts=False, who=who)

    def restart(self, slot: int) -> Future[dict[str, Any]]:
        """Hand over the worker's tasks, start its process anew, and let the tasks return."""
        return self._leave(slot, restarts=True)

    def _leave(self, slot: int, restarts: bool, who: str = PERSON) -> Future[dict[str, Any]]:
        supply = self.checked()
        view, connection = self._master.state.workers.get(slot), self._master.connections.get(slot)
        request = LeaveRequest(restarts, time.monotonic(), view.node.name if view is not None else "",
                               view.executor if view is not None else "",
                               connection.hello.pid if connection is not None else None, Future())
        earlier = self._requests.get(slot)
        self._requests[slot] = request
        try:
            self._master.tell(WorkerLeaves(slot, restarts, slot in supply.slots(), who))
        except BaseException:  # refused
            self._requests.pop(slot)
            if earlier is not None:
                self._requests[slot] = earlier
            raise
        self._answers.append(request.answer)
        return request.answer

    def checked(self) -> WorkerSupply:
        """The supply of workers; raises `MillraceError` if there is none, or another master has taken over."""
        self._master.check_deciding()
        if self.supply is None:
            raise MillraceError("this cluster has no workers of its own to add, remove or restart: its tasks run in Spark's "
                                "executors (microbatch engine), its workers were started by hand, or it is still starting. "
                                "Start or stop Spark executors, whose number the engine follows with the next batch, or run "
                                "the topology with --engine resident")
        return self.supply

    def over(self, command: LeaveOver) -> None:
        """Answer the request: a worker has left, is back, or stays."""
        request = self._requests.pop(command.slot, None)
        if request is None:
            return
        if command.error:
            request.answer.set_exception(MillraceError(command.error))
        elif request.restarts:
            request.answer.set_result(self._restarted(command.slot, request))
        else:
            assert self.supply is not None
            _in_thread(request.answer, partial(_removed, self.supply, command.slot, request))

    def close(self) -> None:
        """Answer all requests: the master ends."""
        for slot, request in self._requests.items():
            request.answer.set_exception(MillraceError(f"the master has ended before worker {slot} had left"))
        self._requests.clear()

    def _restarted(self, slot: int, request: LeaveRequest) -> dict[str, Any]:
        view, connection = self._master.state.workers[slot], self._master.connections.get(slot)
        return {"slot": slot, "old_pid": request.pid, "new_pid": connection.hello.pid if connection is not None else None,
                "old_node": request.node, "new_node": view.node.name, "ms": _milliseconds(request.began)}

    def _add(self, supply: WorkerSupply, count: int, began: float) -> dict[str, Any]:
        """Runs on a thread of its own."""
        slots = supply.add(count)
        workers = self._master.state.workers
        try:
            if not self._master.wait_until(lambda: workers.keys() >= set(slots), JOIN_SECONDS):
                missing = sorted(set(slots) - dict(workers).keys())
                raise NotEnoughSlots(f"of {count} new workers, {len(missing)} did not join within {JOIN_SECONDS:g} s. Check "
                                     "that Spark has free cores, and the executors' stderr")
            self._master.try_store()
        except MillraceError as error:
            raise type(error)(f"{error}. {self._withdraw(slots)}") from error
        except BaseException:
            self._withdraw(slots)
            raise
        return {"slots": list(slots), "ms": _milliseconds(began)}

    def _withdraw(self, slots: Iterable[int]) -> str:
        """Remove new workers again. Returns what has become of them."""
        staying: dict[int, str] = {}
        for slot in slots:
            try:
                self._master.call(partial(self.remove, slot)).result()
            except MillraceError as error:
                log.warning("worker %d, which was to be added, stays: %s", slot, error)
                staying[slot] = str(error)
        if not staying:
            return "None is added"
        return "But " + "; ".join(f"worker {slot} stays: {why}" for slot, why in staying.items())


def _removed(supply: WorkerSupply, slot: int, request: LeaveRequest) -> dict[str, Any]:
    given_back = supply.release(slot, request.executor)
    return {"slot": slot, "node": request.node, "executor": request.executor, "pid": request.pid,
            "executor_given_back": given_back, "ms": _milliseconds(request.began)}


def _milliseconds(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)


def _in_thread(answer: Future[dict[str, Any]], work: Callable[[], dict[str, Any]]) -> None:
    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True, name="millrace pool").start()

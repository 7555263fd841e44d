"""Calls that do not return are found from another thread, with the task and the line of user code that is running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.api.bolt import Bolt
from millrace.api.tuple import Tuple
from millrace.control.workers import LongCall
from millrace.model.graph import TaskId
from millrace.runtime.clock import ManualClock
from millrace.runtime.tasks.checkpointing.snapshot import STORE_THREADS
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker import long_calls
from millrace.runtime.worker.long_calls import LongCalls, running_code
from millrace.runtime.worker.threads import TaskThreads
from millrace.runtime.worker.worker import Worker
from millrace.testing.components import start, tuples

LIMIT_SECONDS = 60.0


class Waits(Bolt):
    """Waits for the test in a function that it calls."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.may_return = threading.Event(), threading.Event()

    def process(self, tup: Tuple) -> None:
        wait(self.entered, self.may_return)


def wait(entered: threading.Event, may_return: threading.Event) -> None:
    entered.set()
    assert may_return.wait(LIMIT_SECONDS)


def never() -> float:
    """The time when a task got its turn on a loop that has none."""
    return 0.0


class Key:
    name = TaskId("waits", 3)
    topology = SimpleNamespace(graph=SimpleNamespace(name="test"))


@pytest.fixture
def bolt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    monkeypatch.setattr(long_calls, "REPORTED_SECONDS", 0.0)
    bolt = start(Waits, task_index=3, parallelism=4)
    yield bolt
    bolt.may_return.set()


def test_the_component_and_its_line_are_named(bolt: Waits) -> None:
    thread = threading.Thread(target=bolt.process, args=tuples("word", [["mill"]]))
    thread.start()
    assert bolt.entered.wait(LIMIT_SECONDS) and thread.ident is not None
    assert running_code(thread.ident).startswith("process of Waits[3] of 'test' (test_long_calls.py:")
    bolt.may_return.set()
    thread.join()
    assert running_code(thread.ident) == ""


def test_the_call_of_a_blocking_task_is_seen_until_it_returns(bolt: Waits) -> None:
    threads, returned = TaskThreads(), threading.Event()
    calls = LongCalls(threads, never)
    [tup] = tuples("word", [["mill"]])
    threads.run(Key, lambda: bolt.process(tup), lambda: None)
    threads.run(Key, returned.set, lambda: None)
    assert bolt.entered.wait(LIMIT_SECONDS)
    [call] = [call for call in calls.seen() if call.what != "the worker's loop"]
    assert call.what.startswith("process of Waits[3] of 'test' (") and call.of_user
    assert (call.topology, call.task, call.on_loop) == ("test", TaskId("waits", 3), False)
    bolt.may_return.set()
    assert returned.wait(LIMIT_SECONDS)
    threads.close()
    assert [(call.what, call.task, call.on_loop) for call in calls.seen()] == [("the worker's loop", None, True)]


def test_heartbeats_name_the_task() -> None:
    calls = [LongCall("process", 3.0, True, "words", TaskId("count", 1)), LongCall("the worker's loop", 2.5, on_loop=True)]
    heartbeat = wire.decode_control(wire.encode(wire.Heartbeat(0, 1, 2, calls)))
    assert isinstance(heartbeat, wire.Heartbeat) and heartbeat.long_calls == calls
    assert isinstance(heartbeat.long_calls[0].task, TaskId)


def test_a_call_of_the_store_is_not_user_code(bolt: Waits) -> None:
    threads = TaskThreads()
    calls = LongCalls(threads, never)
    threads.run(STORE_THREADS[1], lambda: wait(bolt.entered, bolt.may_return), lambda: None)
    assert bolt.entered.wait(LIMIT_SECONDS)
    assert [(call.what, call.of_user) for call in calls.seen() if not call.of_user] == [("store 1", False)]


@pytest.mark.parametrize(("ago", "reported"), [(0.0, []), (50.0, ["the worker's loop"])])
def test_a_long_turn_of_the_loop_is_not_a_long_call(ago: float, reported: list[str]) -> None:
    """Each of its many tasks may have taken its share."""
    calls = LongCalls(TaskThreads(), lambda: time.monotonic() - ago)
    calls.turned -= 100.0
    assert [call.what for call in calls.seen()] == reported
    assert calls.loop_seconds() >= 100.0


class SlowTurn:
    """A task that takes a second for its chunk."""

    queued, turn = False, 0

    def __init__(self, worker: Worker, clock: ManualClock) -> None:
        self._worker, self._clock = worker, clock
        self.began = -1.0

    def step(self, now: float) -> None:
        self.began = self._worker.turn_began
        self._clock.advance(1.0)


def test_the_worker_notes_the_beginning_of_the_turn_of_each_task() -> None:
    clock = ManualClock(100.0)
    nothing: Any = None  # nothing is sent, and no task has a thread
    worker = Worker(0, 1, clock, nothing, nothing)
    tasks: list[Any] = [SlowTurn(worker, clock) for _ in range(3)]
    for task in tasks:
        worker.ready(task)
    worker.step()
    assert [task.began for task in tasks] == [100.0, 101.0, 102.0]

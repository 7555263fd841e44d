"""Calls that do not return are found from another thread, with the task and the line of user code that is running."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from millrace.api.bolt import Bolt
from millrace.api.tuple import Tuple
from millrace.model.graph import TaskId
from millrace.runtime.tasks.snapshots import STORE_THREADS
from millrace.runtime.worker import long_calls
from millrace.runtime.worker.long_calls import LongCalls, running_code
from millrace.runtime.worker.threads import TaskThreads
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


class Key:
    name = TaskId("waits", 3)


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
    calls = LongCalls(threads)
    [tup] = tuples("word", [["mill"]])
    threads.run(Key, lambda: bolt.process(tup), lambda: None)
    threads.run(Key, returned.set, lambda: None)
    assert bolt.entered.wait(LIMIT_SECONDS)
    [call] = [call for call in calls.seen() if call.what != "the worker's loop"]
    assert call.what.startswith("process of Waits[3] of 'test' (") and call.of_user
    bolt.may_return.set()
    assert returned.wait(LIMIT_SECONDS)
    threads.close()
    assert [call.what for call in calls.seen()] == ["the worker's loop"]


def test_a_call_of_the_store_is_not_user_code(bolt: Waits) -> None:
    threads = TaskThreads()
    calls = LongCalls(threads)
    threads.run(STORE_THREADS[1], lambda: wait(bolt.entered, bolt.may_return), lambda: None)
    assert bolt.entered.wait(LIMIT_SECONDS)
    assert [(call.what, call.of_user) for call in calls.seen() if not call.of_user] == [("store 1", False)]

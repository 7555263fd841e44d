"""The threads of blocking tasks: a result returns to the loop, and so does the error of a thread that dies."""

from __future__ import annotations

import select

import pytest

from millrace.errors import ThreadDied
from millrace.runtime.worker.threads import TaskThreads

SECONDS = 60.0


@pytest.fixture
def key() -> object:
    class Key:
        name = "middle[0]"

    return Key()


def finish(threads: TaskThreads) -> None:
    assert select.select([threads.wake_fd], [], [], SECONDS)[0]
    threads.finish()


def test_work_that_is_done_is_reported_on_the_loop(key: object) -> None:
    threads, calls = TaskThreads(), list[str]()
    threads.run(key, lambda: calls.append("work"), lambda: calls.append("done"))
    finish(threads)
    assert calls == ["work", "done"]
    threads.close()


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit("broken")], ids=repr)
def test_a_thread_that_dies_ends_the_loop_and_its_work_is_not_taken_for_done(key: object, error: BaseException) -> None:
    threads, calls = TaskThreads(), list[str]()

    def work() -> None:
        raise error

    threads.run(key, work, lambda: calls.append("done"))
    with pytest.raises(ThreadDied, match=r"its thread 'task middle\[0\]' died: (ValueError|SystemExit): broken") as caught:
        finish(threads)
    assert caught.value.__cause__ is error and calls == []
    threads.close()

"""Processes forked from the test: that end in the middle of something, or wait until they are no more needed."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator


def in_child(action: Callable[[], None]) -> int:
    """How a child process that does this ends: minus the signal, 0 if all is well, 1 if it raised."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def child_that(action: Callable[[], None]) -> Iterator[int]:
    """A forked process that has done this and waits until it is no more needed."""
    ready, told = os.pipe()
    wait, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        action()
        os.write(told, b".")
        os.read(wait, 1)
        os._exit(0)
    os.close(told)
    os.close(wait)
    try:
        assert os.read(ready, 1) == b"."
        yield child
    finally:
        os.close(end)
        os.close(ready)
        os.waitpid(child, 0)


@contextlib.contextmanager
def killed_after(count: int, numbers: Callable[[], Iterator[int]]) -> Iterator[int]:
    """Runs it in another process, kills that with -9 once so many numbers have come, and gives the last that came."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for number in numbers():
                os.write(writer, number.to_bytes(8, "big"))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        came = [int.from_bytes(file.read(8), "big") for _ in range(count)]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    yield came[-1]

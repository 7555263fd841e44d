"""Processes forked from the test that die in the middle of an operation, or wait until they are no longer needed."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterator


def in_child(action: Callable[[], None]) -> int:
    """The exit code of a child process that runs `action`: minus the signal, 0 if it succeeded, 1 if it raised."""
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
    """A forked process that has run `action` and waits until the context ends."""
    ready, signalled = os.pipe()
    wait, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        action()
        os.write(signalled, b".")
        os.read(wait, 1)
        os._exit(0)
    os.close(signalled)
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
    """Runs `numbers` in another process, kills it with -9 after `count` numbers, and yields the last of them."""
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
        received = [int.from_bytes(file.read(8), "big") for _ in range(count)]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    yield received[-1]

"""The wait of a worker's loop ends with a message or at its time, which may be a fraction of a millisecond away."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import zmq

from millrace.runtime.worker import loop_wait
from millrace.runtime.worker.loop_wait import LoopWait

LONG = 3600.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture(params=[(0.0, True), (1e-6, True), (LONG, True), (0.0, False)],
                ids=["sleeps", "spins", "spins on", "has no timer"])
def waiter(pipe: tuple[int, int], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopWait]:
    spin, with_timer = request.param
    if not with_timer:
        monkeypatch.setattr(loop_wait, "_libc", object())
    waiter = LoopWait(spin)
    waiter.poller.register(pipe[0], zmq.POLLIN)
    yield waiter
    waiter.close()


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e-12, 1e-6, 1.001])
def test_a_wait_ends_at_its_time(waiter: LoopWait, pipe: tuple[int, int], seconds: float) -> None:
    assert waiter.wait(seconds) == {}


def test_a_message_ends_a_wait(waiter: LoopWait, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b".")
    assert pipe[0] in waiter.wait(LONG)
    assert pipe[0] in waiter.wait(0.0)


def test_a_time_that_has_come_does_not_end_the_next_wait(waiter: LoopWait, pipe: tuple[int, int]) -> None:
    """The next wait ends with the message alone: the timer that has fired is set anew."""
    waiter.wait(1e-6)
    os.write(pipe[1], b".")
    assert set(waiter.wait(LONG)) == {pipe[0]}

"""A task that has handed over tells each receiver once that it has ended, also one that is placed later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.control.assignment import SWITCH, Move, Place
from millrace.model.graph import TaskId
from millrace.runtime.clock import ManualClock
from millrace.runtime.flow.channel import UNPLACED, UNTRACKED, Channel
from millrace.runtime.tasks.handover import departure as departures
from millrace.runtime.tasks.handover.departure import Departure
from millrace.runtime.wire import messages as wire

TASK, NEAR, FAR = TaskId("sender", 0), 1, 2


class Line:
    """A link that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []

    def send(self, frames: list[Any]) -> None:
        self.sent.append(frames)

    @property
    def forms(self) -> list[int]:
        return [message.form for frames in self.sent if isinstance(message := wire.decode_data(bytes(frames[0])), wire.Chunk)]


def channel_to(task: Any, target: int, incarnation: int, link: Line | None) -> Channel:
    channel = Channel(task, target, incarnation, TaskId("receiver", target), window=16)
    channel.link = link
    return channel


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A task with two receivers, of which one has no place, and its departure."""
    monkeypatch.setattr(departures, "send_state", lambda *args: None)
    task: Any = SimpleNamespace(
        name=TASK, number=7, incarnation=1, blocked=0, channels={}, started=True, busy=False, ended=False, begins_waves=False,
        worker=SimpleNamespace(slot=0, generation=1, frame_limit=10**6, clock=ManualClock()),
        topology=SimpleNamespace(number=1, epoch=1, version=1, graph=SimpleNamespace(number=lambda task: 7)),
        drained=lambda *args: True, before_wave=lambda: None, send_waiting=lambda: None, leave=lambda: None, due_in=dict,
        unblocked=lambda: None, size_chunks=lambda: None,
        snapshots=SimpleNamespace(unsettled=lambda: (set(), set()),
                                  hand_over=lambda *args: SimpleNamespace(pieces={}, position=None, staged=b"", splits={})))

    def on_own_thread(call: Any, then: Any) -> None:
        call()
        then()

    task.on_own_thread = on_own_thread
    task.channels = {NEAR: channel_to(task, NEAR, 1, Line()), FAR: channel_to(task, FAR, UNPLACED, None)}
    task.departure = Departure(task, Move(3, TASK, Place(0, 1), Place(1, 2), SWITCH), 10.0)
    return task


def placed(task: Any, incarnation: int) -> Line:
    """Place the far receiver as a new plan does; returns its link."""
    link = Line()
    channel = channel_to(task, FAR, incarnation, link)
    channel.succeed(task.channels[FAR])
    channel.send_held()
    task.channels[FAR] = channel
    task.departure.rewired()
    return link


@pytest.mark.parametrize("held", [0, 2])
def test_a_receiver_that_is_placed_later_gets_the_end_behind_what_was_held(held: int, leaving: Any) -> None:
    for _ in range(held):
        leaving.channels[FAR].send_rows(0, [(1,)], 0, UNTRACKED)
    leaving.departure.go_on()
    assert leaving.departure.frozen
    link = placed(leaving, 2)
    assert link.forms == [*[wire.ROWS] * held, wire.HANDOVER]


def test_no_receiver_gets_the_end_twice(leaving: Any) -> None:
    near = leaving.channels[NEAR].link
    leaving.departure.rewired()
    assert not near.forms, "it has not ended"
    leaving.departure.go_on()
    far = placed(leaving, 2)
    leaving.departure.rewired()
    assert near.forms == far.forms == [wire.HANDOVER]
    assert placed(leaving, 3).forms == [wire.HANDOVER], "another incarnation has had none"

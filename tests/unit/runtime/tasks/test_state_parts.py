"""State on its way between two workers: cut into parts that fit into a frame, and put together again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.control.assignment import SWITCH, Move, Place
from millrace.errors import WireError
from millrace.model.graph import TaskId
from millrace.runtime.tasks.handover.parts import STAGED, Closing, StateParts, send_state
from millrace.runtime.tasks.task import Task
from millrace.runtime.wire import messages as wire

TASK = TaskId("count", 0)
PIECES = {3: (True, b"x" * 1000), 7: (False, b""), STAGED: (True, b"rows" * 100)}
CLOSING = Closing(5, {"tick": 0.5}, 0.25)


def sent(frame_limit: int) -> list[tuple[wire.StatePart, bytes]]:
    parts: list[tuple[wire.StatePart, bytes]] = []
    worker = SimpleNamespace(slot=1, generation=2, frame_limit=frame_limit,
                             send_state=lambda slot, part, body: parts.append((part, body)))
    topology = SimpleNamespace(number=1, epoch=1, graph=SimpleNamespace(number=lambda task: 65536))
    move = Move(1, TASK, Place(1, 1), Place(2, 2), SWITCH, (0, 0, 0), [], (), TASK)
    send_state(cast(Task, SimpleNamespace(worker=worker, topology=topology)), move, PIECES, CLOSING)
    return parts


@pytest.mark.parametrize("limit", [100, 4096, 64 << 20])
def test_parts_fit_into_a_frame_and_make_the_same_state(limit: int) -> None:
    pieces: dict[int, bytes] = {}
    closings: list[Closing] = []
    parts = StateParts(pieces.__setitem__, closings.append)
    for part, body in sent(limit):
        assert len(body) <= limit
        parts.add(part, body)
        parts.add(part, body)  # one that comes twice changes nothing
    assert pieces == {group: piece for group, (_, piece) in PIECES.items()} and closings == [CLOSING]
    assert parts.bytes == sum(map(len, pieces.values()))


def test_a_part_that_is_missing_is_an_error() -> None:
    parts = StateParts(lambda group, piece: None, lambda closing: None)
    messages: list[Any] = sent(100)
    parts.add(*messages[0])
    with pytest.raises(WireError, match="part 1 of the state was lost"):
        parts.add(*messages[2])

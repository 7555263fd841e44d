"""Messages of a hand-over of key groups that are lost, come twice or come late: exactly-once output stays exact, at-least-once
output is never short, and without a loss the topology does not roll back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.cluster import watched_moves as watched
from support.cluster.watched_moves import GROUPS, Short, ShortAtLeast, WatchedMove

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 600
MESSAGES = (*watched.BETWEEN_WORKERS, watched.LANE)


@pytest.mark.parametrize("topology", [Short, ShortAtLeast])
@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("which", [0, 1])
def test_a_message_is_lost(topology: Any, kind: str, which: int) -> None:
    """The first of its kind, or the second: from another sender, to another receiver, or the last part of the state."""
    move = WatchedMove(topology, GROUPS, LIMIT)
    lost = []

    def lose(send: Callable[[], None]) -> None:
        lost.append(send)
        if len(lost) != 1 + which:
            send()

    move.each_message(kind, lose)
    move.slow_state(kind)
    move.move()
    move.cluster.run_until(lambda: len(lost) > which, seconds=2.0)
    move.cluster.run_until(lambda: move.at_rest)
    move.end()


@pytest.mark.parametrize("topology", [Short, ShortAtLeast])
@pytest.mark.parametrize("kind", MESSAGES)
def test_every_message_comes_twice(topology: Any, kind: str) -> None:
    move = WatchedMove(topology, GROUPS, LIMIT)

    def twice(send: Callable[[], None]) -> None:
        send()
        send()

    seen = move.each_message(kind, twice)
    move.slow_state(kind)
    move.move()
    move.cluster.run_until(lambda: move.at_rest)
    assert seen and move.state.epoch == move.epoch, move.cluster.said
    move.end()
    assert not any("lost" in text for text in move.cluster.said), move.cluster.said


@pytest.mark.parametrize("topology", [Short, ShortAtLeast])
@pytest.mark.parametrize("kind", [*MESSAGES, watched.ARMED, watched.TAKEN])
def test_a_message_is_late(topology: Any, kind: str) -> None:
    """With everything behind it from the same worker to the same. An answer to the master is lost, and repeated later."""
    move = WatchedMove(topology, GROUPS, LIMIT)
    move.move()
    move.until_message(kind)
    move.cluster.run(0.4)
    move.release()
    move.cluster.run_until(lambda: move.at_rest)
    assert move.state.epoch == move.epoch, move.cluster.said
    move.end()
    assert not any("lost" in text for text in move.cluster.said), move.cluster.said

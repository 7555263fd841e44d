"""Input that a hand-over holds back stays bounded, however fast the sources are and however long the hand-over takes: senders
wait, and go on when it is done. One that takes too long ends like a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.config import CHANNEL_WINDOW, CHUNK_TUPLES
from millrace.control.assignment import SWITCH
from millrace.runtime.tasks import inbox
from support.cluster import watched_moves as watched
from support.cluster.watched_moves import GROUPS, TASK, Short, ShortAtLeast, WatchedMove
from support.cluster.wave_runs import tasks

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT, CHUNK, WINDOW, SENDERS = 12_000, 20, 8, 2
UNCREDITED = SENDERS * WINDOW * CHUNK  # that senders may have sent beyond what is credited
ROW_BYTES = 20  # at most, of a row on the wire


def fast(topology: Any, what: str, **config: Any) -> WatchedMove:
    settings = {"rate": 20_000.0, CHUNK_TUPLES.key: CHUNK, CHANNEL_WINDOW.key: WINDOW, **config}
    return WatchedMove(topology, what, LIMIT, **settings)


def most_held(move: WatchedMove, component: str, seconds: float, size: Callable[[Any], int]) -> int:
    """The most that an inbox of the component has had at the end of a step."""
    most = 0
    for _ in range(round(seconds * 1000)):
        move.cluster.step()
        most = max(most, *(size(task.inbox) for worker in move.cluster.workers.values() for run in worker.topologies.values()
                           for task in run.everyone() if task.name.component == component))
    return most


def emitted(move: WatchedMove) -> list[int]:
    return [task.component._next_position for task in tasks(move.cluster, "numbers")]


def held_bytes(box: Any) -> int:
    return sum(len(delivery.body) for queue in (box.waiting, *box._lanes.values()) for delivery in queue if not delivery.local)


SIZES = {"HELD_TUPLES": (400, 400 + UNCREDITED, lambda box: box.tuples),
         "HELD_BYTES": (4000, 4000 + ROW_BYTES * UNCREDITED, held_bytes)}


@pytest.mark.parametrize("topology", [Short, ShortAtLeast])
@pytest.mark.parametrize("what", [TASK, GROUPS])
@pytest.mark.parametrize("limit", SIZES)
def test_input_waits_for_state(topology: Any, what: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a window is taken in, or else every sender would stop at once, and not more than the limit."""
    most, bound, size = SIZES[limit]
    monkeypatch.setattr(inbox, limit, most)
    move = fast(topology, what, **{"topology.handover.switch.secs": 10.0, "topology.message.timeout.secs": 30.0})
    move.move()
    move.until_message(watched.STATE)
    held = most_held(move, "tally", 1.0, size)
    assert most <= held <= bound
    before = emitted(move)
    move.cluster.run(1.0)
    assert emitted(move) == before and max(before) < LIMIT // SENDERS, "the sources do not wait"
    assert move.state.handover.phase == SWITCH
    move.release()
    move.cluster.run_until(lambda: move.at_rest)
    move.end()
    assert move.state.epoch == move.epoch and not move.failures()


@pytest.mark.parametrize("topology", [Short, ShortAtLeast])
@pytest.mark.parametrize("what", [TASK, GROUPS])
def test_the_state_never_comes_and_the_buffer_is_full(topology: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "HELD_TUPLES", 400)
    move = fast(topology, what)
    move.move()
    move.until_message(watched.STATE)
    held = most_held(move, "tally", 2.0, lambda box: box.tuples)
    assert 400 <= held <= 400 + UNCREDITED
    move.kept = []
    move.release()
    move.cluster.run_until(lambda: move.at_rest)
    assert [record["outcome"] for record in move.failures()] == ["rolled back"]
    assert "topology.handover.switch.secs = 3" in move.failures()[0]["reason"]
    move.end()


@pytest.mark.parametrize("topology", [Short, ShortAtLeast])
@pytest.mark.parametrize("what", [TASK, GROUPS])
def test_input_waits_for_the_end_of_the_old_sender(topology: Any, what: str) -> None:
    """A receiver that has not had it credits nothing of the new sender, so that it holds no more than a window."""
    move = fast(topology, what, **{"topology.message.timeout.secs": 30.0})
    move.move()
    move.until_message(watched.END)
    receiver = next(address.slot for _, address, frames in move.kept if watched.kind_of(frames) == watched.END)
    [box] = [task.inbox for task in tasks(move.cluster, "ledger") if task.worker.slot == receiver]
    held = [0]
    for _ in range(2000):
        move.cluster.step()
        held.append(box.succession.tuples)
    assert 0 < max(held) <= 2 * WINDOW * CHUNK and len(set(held[-1000:])) == 1, "its output is sent in chunks of any size"
    move.release()
    move.cluster.run_until(lambda: move.at_rest)
    epoch = move.state.epoch
    move.end()
    assert epoch == move.epoch and not move.failures()

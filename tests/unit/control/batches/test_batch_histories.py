"""Batches under any sequence of failures, kills, crashes, lost blobs and new plans."""

from __future__ import annotations

from dataclasses import dataclass

from batch_world import FAILS, MISSES, OK, World
from hypothesis import given
from hypothesis import strategies as st

from millrace.control.batches.steps import BatchDone, Life, StopBatches
from millrace.errors import CheckpointMissing


@dataclass(frozen=True)
class Offer:
    """A batch is offered. `ends_at`: the step at which `life` is the topology's; None: the first one that fails."""

    outcomes: list[str]
    plans: list[str]
    moves: list[bool]
    life: Life
    ends_at: int | None


outcomes = st.lists(st.sampled_from([OK, OK, OK, FAILS, MISSES]), max_size=8)
plans = st.lists(st.sampled_from([OK, FAILS]), max_size=4)
moves = st.lists(st.booleans(), max_size=3)
offers = st.builds(Offer, outcomes, plans, moves, st.sampled_from(Life), st.none() | st.integers(0, 15))
events = offers | st.sampled_from(["lose blobs", "new plan", "crash", "offer again"])


@given(st.lists(events, max_size=12), st.booleans())
def test_any_sequence_of_failures_commits_and_publishes_each_wave(history: list[Offer | str],
                                                                  writes_rows: bool) -> None:
    """Committed waves rise by one, every committed wave is published in order, nothing needed is deleted, epochs rise (checked
    at each step), and once nothing fails the batch is done."""
    world = World(writes_rows)
    for event in history:
        if event == "lose blobs" and world.keeps_state:
            world.blobs.clear()
        elif event == "new plan":
            world.version += 1
        elif event == "crash" and not _is_damaged(world):
            world.resume()
        elif isinstance(event, Offer):
            world.outcomes, world.plans, world.moves = iter(event.outcomes), iter(event.plans), iter(event.moves)
            try:
                ended = world.offer(life=event.life, ends_at=event.ends_at)
            except CheckpointMissing:
                assert _is_damaged(world), "state is given up that the store has"
                return
            if isinstance(ended, StopBatches):
                if _is_damaged(world):
                    return  # the lost blobs are gone with the processes
                world.resume()
        elif event == "offer again" and world.committed:
            world.outcomes, world.plans, world.moves = iter(()), iter(()), iter(())
            world.offer(world.decider.batch_of(world.committed[-1]))
    world.outcomes, world.plans, world.moves = iter(()), iter(()), iter(())
    assert world.offer() == BatchDone(ran=True)
    assert world.committed == list(range(1, len(world.committed) + 1))
    assert list(dict.fromkeys(world.published)) == world.committed and world.published == sorted(world.published)
    assert list(dict.fromkeys(world.written)) == (world.committed if writes_rows else [])
    newest = world.newest()
    assert newest is not None and newest.blobs() <= world.blobs and newest.wave == world.committed[-1]


def _is_damaged(world: World) -> bool:
    newest = world.newest()
    return newest is not None and not newest.blobs() <= world.blobs

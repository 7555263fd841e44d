"""The master decides when a wave overtakes queued tuples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from story import Story, graph

from millrace.control.events import Submitted
from millrace.control.waves import COMMIT, INIT, PREPARE, RESEND_SECONDS, ROLLBACK, Send, Waves
from millrace.model.graph import TaskId
from millrace.state.checkpoint import TaskRecord

SPOUT, BOLT = TaskId("read", 0), TaskId("count", 0)
LIMIT = 10.0


def begun(aligned: float = LIMIT) -> Waves:
    """A first wave that has begun at time 0."""
    waves = Waves(1000.0, 60.0, aligned=aligned)
    waves.restore([SPOUT, BOLT], epoch=1, claim=False, now=0.0)
    for task in (SPOUT, BOLT):
        waves.acked(INIT, 0, task, None, "", 0.0)
    assert waves.tick(0.0) == [Send(PREPARE, 1, (BOLT, SPOUT), 1, sweep=True)]
    return waves


def commit(waves: Waves, now: float) -> None:
    for task in tuple(waves.waiting):
        waves.acked(PREPARE, waves.wave, task, TaskRecord(*task), "", now)
    waves.stored(waves.wave, "", now)
    for task in (SPOUT, BOLT):
        waves.acked(COMMIT, waves.wave, task, None, "", now)


def test_the_tasks_that_have_not_answered_are_asked_to_let_it_pass() -> None:
    waves = begun()
    waves.acked(PREPARE, 1, SPOUT, TaskRecord(*SPOUT), "", 1.0)
    assert waves.tick(LIMIT - 1) == [Send(PREPARE, 1, (BOLT,), 1, sweep=True)]
    overtaking = Send(PREPARE, 1, (BOLT,), 1, sweep=True, overtakes=True)
    assert waves.tick(LIMIT) == [overtaking], "at once, although the last request was sent a moment ago"
    assert waves.tick(LIMIT + RESEND_SECONDS / 2) == []
    assert waves.tick(LIMIT + RESEND_SECONDS) == [overtaking], "until all have answered"


def test_other_requests_do_not_overtake() -> None:
    waves = begun()
    waves.tick(LIMIT)
    for task in (SPOUT, BOLT):
        waves.acked(PREPARE, 1, task, TaskRecord(*task), "", LIMIT)
    [sent] = waves.stored(1, "", LIMIT)
    assert sent == Send(COMMIT, 1, (BOLT, SPOUT), 1)
    waves = begun()
    waves.tick(LIMIT)
    assert waves.abandon("why not", LIMIT)[-1] == Send(ROLLBACK, 1, (BOLT, SPOUT), 1)


def test_the_next_wave_waits_again() -> None:
    waves = begun()
    waves.tick(LIMIT)
    commit(waves, LIMIT)
    assert waves.committed == 1
    assert waves.tick(1000.0) == [Send(PREPARE, 2, (BOLT, SPOUT), 1, sweep=True)]
    assert waves.tick(1000.0 + LIMIT - 1) == [Send(PREPARE, 2, (BOLT, SPOUT), 1, sweep=True)]


def test_without_a_limit_it_always_waits() -> None:
    waves = begun(aligned=0.0)
    assert waves.tick(59.0) == [Send(PREPARE, 1, (BOLT, SPOUT), 1, sweep=True)]


def test_the_last_wave_never_overtakes() -> None:
    waves = begun()
    waves.close(1.0)
    assert waves.tick(LIMIT) == [Send(PREPARE, 1, (BOLT, SPOUT), 1, sweep=True)]


@pytest.mark.parametrize(("guarantee", "config", "limit"), [
    ("exactly-once", {}, 10.0), ("exactly-once", {"topology.checkpoint.aligned.secs": 3}, 3.0),
    ("exactly-once", {"topology.checkpoint.aligned.secs": 0}, 0.0), ("at-least-once", {}, 0.0),
])
def test_only_exactly_once_topologies_have_a_limit(guarantee: str, config: dict[str, Any], limit: float) -> None:
    plain = graph(**{"topology.guarantee": guarantee, **config})
    story = Story(workers=1)
    story.on(Submitted(replace(plain, components=tuple(
        replace(part, movable=True) if part.kind == "spout" else replace(part, stateful=True) for part in plain.components))))
    waves = story.state.topologies[plain.name].waves
    assert waves is not None and waves.aligned == limit

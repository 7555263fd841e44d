"""A task's requests for waves: queued, dropped with an abandoned wave, and asked for again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.control.waves import COMMIT, PREPARE, ROLLBACK
from millrace.model.graph import TaskId
from millrace.runtime.tasks.checkpointing.snapshots import Snapshots
from millrace.runtime.tasks.checkpointing.waves import TaskWaves
from millrace.runtime.wire.messages import WaveMark


class BusyTask(SimpleNamespace):
    """A task that is never between two chunks, so that requests stay queued."""

    def __init__(self) -> None:
        worker = SimpleNamespace(slot=0, generation=1, tell_master=lambda answer: None, ready=lambda task: None)
        super().__init__(name=TaskId("tally", 0), number=0, incarnation=1, worker=worker,
                         topology=SimpleNamespace(number=1, epoch=1), begins_waves=True)
        task: Any = self
        self.snapshots, self.waves = Snapshots(task), TaskWaves(task)

    def abandon_wave(self, wave: int) -> None:
        self.waves.abandon(wave)

    def request(self, kind: str, wave: int) -> None:
        self.waves.on_request(WaveMark(kind, wave, 1), sweep=True)

    def queued(self) -> list[tuple[str, int]]:
        return [(mark.kind, mark.wave) for mark in self.waves.pending]


def test_a_request_that_is_repeated_is_queued_once() -> None:
    task = BusyTask()
    task.request(PREPARE, 5)
    task.request(PREPARE, 5)
    assert task.queued() == [(PREPARE, 5)]


@pytest.mark.parametrize("kind", [PREPARE, COMMIT])
def test_a_request_that_was_dropped_with_its_wave_is_no_longer_under_way(kind: str) -> None:
    task = BusyTask()
    task.request(kind, 5)
    task.request(kind, 6)
    task.request(ROLLBACK, 5)
    assert task.queued() == [(kind, 6)], "requests of other waves stay"
    task.request(kind, 5)
    assert task.queued() == [(kind, 6), (kind, 5)]

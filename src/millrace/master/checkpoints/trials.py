"""Asks all workers whether they share the checkpoint store with the master."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from millrace.runtime.wire import messages as wire

TRIAL_SECONDS = 10.0  # a worker whose loop is in user code answers late


class TrialWorkers(Protocol):
    """The connected workers."""

    @property
    def connections(self) -> Mapping[int, Any]:
        """The connections to workers, by slot."""

    def send(self, slot: int, message: Any) -> None:
        """Send to a connected worker."""


class _Trial:
    def __init__(self, waiting: dict[int, int]) -> None:
        self.waiting = waiting  # slot -> generation
        self.answers: dict[int, str] = {}
        self.deadline = time.monotonic() + TRIAL_SECONDS
        self.result: Future[dict[int, str]] = Future()


class StoreTrials:
    """Called on the master's thread. The answer of a trial is the reason, by slot, why a worker does not share the store; empty
    for one that does. Workers that do not answer in time are left out."""

    def __init__(self, workers: TrialWorkers) -> None:
        self._workers = workers
        self._trials: dict[str, _Trial] = {}

    def begin(self, token: str) -> Future[dict[int, str]]:
        trial = self._trials[token] = _Trial({slot: connection.generation
                                              for slot, connection in self._workers.connections.items()})
        for slot in trial.waiting:
            self._workers.send(slot, wire.TryStore(token))
        self._end_if_done(token)
        return trial.result

    def answered(self, answer: wire.StoreTried) -> None:
        trial = self._trials.get(answer.token)
        if trial is not None and trial.waiting.pop(answer.slot, None) is not None:
            trial.answers[answer.slot] = answer.error
            self._end_if_done(answer.token)

    def tick(self, now: float) -> None:
        for token, trial in list(self._trials.items()):
            alive = {slot: connection.generation for slot, connection in self._workers.connections.items()}
            late = now >= trial.deadline
            trial.waiting = {slot: generation for slot, generation in trial.waiting.items()
                             if alive.get(slot) == generation and not late}
            self._end_if_done(token)

    def _end_if_done(self, token: str) -> None:
        trial = self._trials[token]
        if not trial.waiting:
            del self._trials[token]
            trial.result.set_result(trial.answers)

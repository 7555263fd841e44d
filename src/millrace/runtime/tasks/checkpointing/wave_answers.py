"""A task's answers to the master's requests of waves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.messages import WaveMark
from millrace.state.checkpoint import TaskRecord

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task


class WaveAnswers:
    """The answers of one task. The master repeats unanswered requests: a wave begins once, and a repeated request gets the
    stored answer again."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._under_way: set[tuple[str, int]] = set()  # waves that are begun and not answered
        self._given: dict[str, wire.Waved] = {}  # the last answer to each kind of wave

    def give(self, mark: WaveMark, record: TaskRecord | None = None, error: str = "") -> None:
        task = self._task
        answer = wire.Waved(task.worker.slot, task.worker.generation, task.topology.number, task.topology.epoch, mark.kind,
                            mark.wave, task.number, task.incarnation, record, error)
        self._under_way.discard((mark.kind, mark.wave))
        if not error:
            self._given[mark.kind] = answer
        task.worker.tell_master(answer)

    def begins(self, mark: WaveMark) -> bool:
        """Record that a wave has begun; False if it had begun before."""
        if (mark.kind, mark.wave) in self._under_way:
            return False
        self._under_way.add((mark.kind, mark.wave))
        return True

    def dropped(self, mark: WaveMark) -> None:
        """Forget a wave that was abandoned before it was carried out; no answer follows."""
        self._under_way.discard((mark.kind, mark.wave))

    def given_again(self, mark: WaveMark) -> bool:
        """Resend the stored answer if this wave was already answered; False if there is none."""
        answer = self._given.get(mark.kind)
        if answer is None or answer.wave != mark.wave:
            return False
        self._task.worker.tell_master(answer)
        return True

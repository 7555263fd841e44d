"""The wave coordinator, driven by every possible sequence of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.control.waves import (
    CLAIM,
    COMMIT,
    IDLE,
    INIT,
    LAST_PAUSE,
    PREPARE,
    RESEND_SECONDS,
    ROLLBACK,
    STORING,
    Abandoned,
    Claim,
    Committed,
    Restored,
    RolledBack,
    Send,
    Store,
    Waves,
    WaveStep,
)
from millrace.model.graph import TaskId
from millrace.state.checkpoint import TaskRecord
from support.examples import examples

TASKS = [TaskId("lines", 0), TaskId("lines", 1), TaskId("count", 0)]
KINDS = [INIT, PREPARE, COMMIT, ROLLBACK]


class WaveStory(RuleBasedStateMachine):
    """`prepared` and `done` record the tasks' answers, independently of the coordinator."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = Waves(interval=5.0, timeout=20.0)
        self.now = 0.0
        self.epoch = 1
        self.prepared: dict[int, set[TaskId]] = {}
        self.stored: list[int] = []
        self.begun: list[int] = []
        self.storing: int | None = None
        self.unclaimed = False
        self.take(self.waves.restore(TASKS, self.epoch, True, self.now))

    def take(self, steps: list[WaveStep]) -> None:
        for step in steps:
            if isinstance(step, Send):
                assert step.kind in KINDS and step.tasks == tuple(sorted(self.waves.waiting))
                assert step.sweep == (step.kind == PREPARE)
                assert not self.unclaimed or step.kind != INIT  # no task is initialized before the store accepts the claim
                if step.kind == PREPARE and step.wave not in self.begun:
                    assert not self.begun or step.wave > self.begun[-1]  # no number is used twice
                    self.begun.append(step.wave)
            elif isinstance(step, Claim):
                self.unclaimed = True
            elif isinstance(step, Store):
                assert self.prepared[step.wave] == set(TASKS)  # only prepared tasks are stored
                assert [record.task for record in step.records] == sorted(TASKS)
                self.storing = step.wave
            elif isinstance(step, Committed):
                assert self.stored[-1] == step.wave == self.waves.committed
            elif isinstance(step, Abandoned | RolledBack):
                assert step.wave != self.waves.committed
            else:
                assert isinstance(step, Restored) and step.wave == (self.stored[-1] if self.stored else 0)

    @rule(seconds=st.floats(0.1, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.waves.tick(self.now))

    @rule(kind=st.sampled_from(KINDS), back=st.integers(-1, 2), task=st.sampled_from(TASKS),
          error=st.sampled_from(["", "", "no"]))
    def someone_answers(self, kind: str, back: int, task: TaskId, error: str) -> None:
        """Answer a current request, an old one, or one that was never made."""
        wave = (self.waves.committed if kind == INIT else self.waves.wave) - back
        if kind == PREPARE and not error and self.waves.phase == PREPARE and wave == self.waves.wave:
            self.prepared.setdefault(wave, set()).add(task)
        record = TaskRecord(task.component, task.index) if kind == PREPARE else None
        self.take(self.waves.acked(kind, wave, task, record, error, self.now))

    @rule()
    def all_answer(self) -> None:
        for task in TASKS:
            self.someone_answers(self.waves.phase if self.waves.phase in KINDS else COMMIT, 0, task, "")

    @precondition(lambda self: self.storing is not None)
    @rule(error=st.sampled_from(["", "the store is away"]))
    def the_store_answers(self, error: str) -> None:
        wave, self.storing = self.storing, None
        assert wave is not None
        if not error and self.waves.phase == STORING and wave == self.waves.wave:
            self.stored.append(wave)
        self.take(self.waves.stored(wave, error, self.now))

    @precondition(lambda self: self.unclaimed)
    @rule(error=st.sampled_from(["", "the store is away"]))
    def the_store_knows(self, error: str) -> None:
        self.unclaimed = bool(error)
        self.take(self.waves.claimed(self.waves.committed, error, self.now))

    @rule(claim=st.booleans())
    def it_goes_back(self, claim: bool) -> None:
        self.epoch, self.unclaimed = self.epoch + 1, False
        self.take(self.waves.restore(TASKS, self.epoch, claim, self.now))

    @invariant()
    def it_is_always_clear_what_is_waited_for(self) -> None:
        assert self.waves.phase in (IDLE, STORING, CLAIM) or self.waves.waiting
        assert self.waves.committed == (self.stored[-1] if self.stored else 0)
        assert self.waves.committed <= self.waves.wave

    def teardown(self) -> None:
        """After any history a wave is committed once every task answers."""
        before = self.waves.committed
        for _ in range(12):
            if self.unclaimed:
                self.the_store_knows("")
            self.all_answer()
            if self.waves.phase == STORING:
                self.storing = self.waves.wave
                self.the_store_answers("")
            self.time_passes(max(RESEND_SECONDS, self.waves.interval, LAST_PAUSE))
        assert self.waves.committed > before


WaveStory.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestWaveStory = WaveStory.TestCase

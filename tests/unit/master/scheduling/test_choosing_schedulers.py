"""The choice of a scheduler, and what it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.control.events import Event, Say
from millrace.control.master_state import MasterState
from millrace.master.scheduling.loop import SchedulingLoop
from millrace.master.scheduling.scheduler_process import OnAnswer, SchedulerAnswer
from millrace.schedulers.registry import OFF

OWN = "mine:Own"
TRIED_OUT = {"parameters": {}, "period": 60.0, "weighs_itself": False, "cool_down": 10.0, "packing": 0.9, "estimator": "ewma"}


class Choosing:
    """A loop without workers, whose trials of users' schedulers end when the test says so."""

    def __init__(self) -> None:
        self.state, self.said, self.trials = MasterState(), list[str](), list[OnAnswer]()
        self.loop = SchedulingLoop("c", {"history.url": "none"}, self)  # type: ignore[arg-type]
        self.loop._trials.ask = self.try_out  # type: ignore[method-assign]

    def try_out(self, request: SchedulerAnswer, time_limit: float, done: OnAnswer) -> None:
        self.trials.append(done)

    def tell(self, event: Event) -> None:
        self.state.handle(event, 0.0)

    def say(self, message: Say) -> None:
        self.said.append(message.text)

    def call(self, work: Callable[[], Any]) -> Any:
        return work()

    def take_over(self) -> None:
        self.loop._take_over({"scheduler": OWN, "parameters": {}, "policy": {"period": 7.0}})


def test_the_last_masters_scheduler_is_in_use_after_its_trial() -> None:
    choosing = Choosing()
    choosing.take_over()
    assert choosing.loop.generator.choice.name == OFF
    choosing.trials[0](TRIED_OUT)
    assert (choosing.loop.generator.choice.name, choosing.loop.generator.policy.period) == (OWN, 7.0)
    assert choosing.said[-1].startswith(f"scheduler {OWN} was in use when this cluster last ran, and is again")


@pytest.mark.parametrize("chosen", ["otd", OFF])
def test_a_choice_during_the_trial_of_the_last_masters_scheduler_stays(chosen: str) -> None:
    choosing = Choosing()
    choosing.take_over()
    choosing.loop.choose(chosen, {}, {})
    said = list(choosing.said)
    choosing.trials[0](TRIED_OUT)
    assert (choosing.loop.generator.choice.name, choosing.loop.generator.policy.period) == (chosen, 0.0)
    assert choosing.said == said


def test_of_two_schedulers_that_users_choose_the_last_is_in_use() -> None:
    choosing = Choosing()
    for name in (OWN, "mine:Other"):
        choosing.loop.choose(name, {}, {})
    for done in choosing.trials:
        done(TRIED_OUT)
    assert choosing.loop.generator.choice.name == "mine:Other"


def test_the_same_scheduler_with_another_policy_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of it that is on its way counts. The code of a user's own is read again."""
    choosing, renewed = Choosing(), list[str]()
    loop = choosing.loop
    monkeypatch.setattr(loop._process, "renew", lambda: renewed.append(loop.generator.choice.name))
    loop.choose("otd", {}, {})
    before, loop.generator._asked, loop.unplaced = loop.generator.choice, False, "no room"
    loop.choose("otd", {}, {"agent_poll": 1.0})
    assert loop.generator.choice is before and loop.polls[0] == 1.0
    assert not loop.generator._asked and renewed == [OFF] and loop.unplaced == "no room"
    loop.choose("otd", {}, {}, "ewma", {"a": 0.125})
    assert loop.generator.choice is before and loop.generator._asked, "its loads are others"
    loop.choose("otd", {"high": 0.7}, {})
    assert loop.generator.choice is not before and renewed == [OFF, "otd"] and not loop.unplaced
    for _ in range(2):
        loop.choose(OWN, {}, {})
        choosing.trials.pop()(TRIED_OUT)
    assert renewed == [OFF, "otd", "otd", OWN]

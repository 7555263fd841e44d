"""Queries of a task's keyed state: the answer is a value or an error message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.api.bolt import Bolt
from millrace.api.keyed.declared import State
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.state_lookup import look_up
from millrace.state.task_state import TaskState, open_states


class Count(Bolt):
    state = State()
    seen = State()

    def process(self, tup: Any) -> None:
        raise NotImplementedError


def opened() -> tuple[Count, TaskState]:
    """Return a state that owns one of two key groups, that of even keys."""
    bolt = Count()
    state = open_states(bolt, lambda key: key % 2, [0], 2, "count[0]", lambda: 0.0)
    assert state is not None
    return bolt, state


def task_with(state: TaskState | None, started: bool) -> Any:
    return SimpleNamespace(snapshots=SimpleNamespace(state=state), started=started)


def query(state: TaskState | None, name: str, key: Any) -> wire.Answer:
    answer = wire.Answer(0, 1, 7, False)
    look_up(wire.Query(7, 1, 2, name, key), task_with(state, started=True), answer)
    return answer


def test_a_value_is_found() -> None:
    bolt, state = opened()
    bolt.state[4] = {"n": 1}
    answer = query(state, "state", 4)
    assert (answer.found, answer.value, answer.error, answer.number) == (True, {"n": 1}, "", 7)


def test_without_a_name_the_answer_has_the_sizes() -> None:
    bolt, state = opened()
    bolt.state[4] = 1
    answer = query(state, "", None)
    assert answer.found and answer.value == {"keys": state.keys(), "dirty": state.dirty()}


@pytest.mark.parametrize(("name", "key", "words"), [
    ("state", 6, "no entry for key 6 in 'state'; states: "), ("state", 3, "count[0]"),
    ("stat", 4, "has no state 'stat'"), ("seen", 4, "its value, a object, cannot be sent")])
def test_a_failed_query_has_a_reason(name: str, key: int, words: str) -> None:
    bolt, state = opened()
    bolt.seen[4] = object()
    answer = query(state, name, key)
    assert not answer.found and words in answer.error


@pytest.mark.parametrize("task", [None, task_with(None, True), task_with(opened()[1], False)],
                         ids=["moved", "stateless", "being moved"])
def test_a_moved_or_stateless_task_reports_an_error(task: Any) -> None:
    answer = wire.Answer(0, 1, 7, False)
    look_up(wire.Query(7, 1, 2, "state", 4), task, answer)
    assert not answer.found and "ask again" in answer.error

"""Keyed state as a bolt sees it: declarations, defaults, whose keys they are, entries that expire."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from millrace.api.grouping import stable_hash
from millrace.api.state import CounterState, KeyedState, ListState, PagedState, State, Typed, declared_states
from millrace.errors import EncodingError, KeyNotOwned, NotRunning
from millrace.state.task_state import TaskState, open_states

GROUPS = 8


class Count:
    state = State(default=0)
    hits = CounterState()
    seen = ListState()
    bare = State()


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def opened(bolt: Any, owned: Any = range(GROUPS), now: Callable[[], float] = lambda: 0.0) -> TaskState:
    state = open_states(bolt, stable_hash, owned, GROUPS, "count, task 3", now, owner_of=lambda group: 40 + group)
    assert state is not None
    return state


@pytest.fixture(params=["one dict", "in pages"])
def bolt(request: pytest.FixtureRequest) -> Any:
    """A running bolt; the states are tried in both of their forms."""
    bolt = Count()
    task = opened(bolt)
    if request.param == "in pages":
        for state in task.states.values():
            state["x"] = []
            task.snapshot()
            del state["x"]
            assert isinstance(state, PagedState)
    return bolt


# ---- declarations ----


def test_a_state_is_opened_under_its_name() -> None:
    bolt = Count()
    opened(bolt)
    assert isinstance(vars(bolt)["state"], KeyedState)
    assert isinstance(Count.state, State)


def test_a_state_of_a_bolt_that_does_not_run_says_what_to_do() -> None:
    with pytest.raises(NotRunning, match=r"Count\.hits .*outside a running task.*Grouping\.fields"):
        Count().hits.add("a")


def test_states_are_inherited_and_can_be_replaced_or_taken_away() -> None:
    class Other(Count):
        hits = State(default="")  # type: ignore[assignment]
        bare = None  # type: ignore[assignment]

    assert list(declared_states(Other)) == ["state", "hits", "seen"]
    assert declared_states(Other)["hits"] is Other.hits


@pytest.mark.parametrize("default", [[], {}, set(), [1], object()])
def test_a_default_that_all_keys_would_share_is_refused(default: Any) -> None:
    with pytest.raises(TypeError, match="all keys would share"):
        State(default=default)


@pytest.mark.parametrize("ttl", [0, -1, float("nan")])
def test_a_ttl_is_above_zero(ttl: float) -> None:
    with pytest.raises(ValueError, match="seconds above 0"):
        State(ttl=ttl)


# ---- as a mapping ----


def test_defaults(bolt: Any) -> None:
    bolt.state["a"] += 2
    assert bolt.hits.add("a") == 1
    assert bolt.hits.add("a", 4) == 5
    bolt.seen.append("a", 1)
    bolt.seen["b"].append(2)
    assert (bolt.state, bolt.hits, bolt.seen) == ({"a": 2}, {"a": 5}, {"a": [1], "b": [2]})
    assert bolt.state["never set"] == 0
    assert bolt.state == {"a": 2}, "reading a default that cannot be changed stores nothing"
    with pytest.raises(KeyError, match="unknown"):
        bolt.bare["unknown"]


def test_dict_methods(bolt: Any) -> None:
    state = bolt.bare
    state.update({"a": 1}, b=2)
    state |= {"c": 3}
    assert state | {"d": 4} == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert {"d": 4} | state == {"d": 4, "a": 1, "b": 2, "c": 3}
    assert list(state.keys()) == ["a", "b", "c"]
    assert state.keys() & {"a", "z"} == {"a"}
    assert ("a", 1) in state.items() and ("a", 2) not in state.items() and 3 in state.values()
    assert list(reversed(state.items())) == [("c", 3), ("b", 2), ("a", 1)]
    assert list(reversed(state.keys())) == ["c", "b", "a"]
    assert type(state.copy()) is type(copy.copy(state)) is type(copy.deepcopy(state)) is dict
    assert json.loads(json.dumps(state.copy())) == state == {**state}
    assert repr(state) == "{'a': 1, 'b': 2, 'c': 3}"
    assert state.popitem() == ("c", 3)
    assert bool(state)
    state.clear()
    assert not state
    with pytest.raises(KeyError):
        state.popitem()
    with pytest.raises(TypeError):
        state.pop("a", 1, 2)
    with pytest.raises(TypeError):
        hash(state)


def test_a_default_is_not_an_item(bolt: Any) -> None:
    assert ("a", 0) not in bolt.state.items()
    assert bolt.state.get("a") is None
    assert "a" not in bolt.state


def test_a_typing_mistake_is_not_kept_beside_the_state(bolt: Any) -> None:
    with pytest.raises(AttributeError):
        bolt.state.total = 5


def test_entries_may_be_set_in_a_loop_over_them(bolt: Any) -> None:
    bolt.state.update(a=1, b=2)
    for key in bolt.state:
        bolt.state[key] += 1
    assert bolt.state == {"a": 2, "b": 3}


def test_a_key_deleted_in_a_loop_is_an_error(bolt: Any) -> None:
    bolt.state.update(a=1, b=2)
    with pytest.raises(RuntimeError, match="changed size"):
        for _ in bolt.state:
            bolt.state.pop("b", None)


# ---- whose keys ----


def foreign_key(owned: int) -> str:
    return next(key for key in map(str, range(100)) if stable_hash(key) % GROUPS != owned)


@pytest.mark.parametrize("use", [lambda state, key: state[key], lambda state, key: state.add(key)])
def test_reading_another_tasks_key_is_an_error_at_once(use: Callable[[Any, str], Any]) -> None:
    bolt, key = Count(), foreign_key(2)
    opened(bolt, owned=[2])
    group = stable_hash(key) % GROUPS
    with pytest.raises(KeyNotOwned, match=f"count, task 3: '{key}' .*'state'.* group {group}, which task {40 + group} has"):
        use(bolt.state, key)


def test_setting_another_tasks_key_is_an_error_at_the_snapshot() -> None:
    bolt, key = Count(), foreign_key(2)
    task = opened(bolt, owned=[2])
    bolt.state[key] = 1
    for _ in range(2):  # it stays wrong
        with pytest.raises(KeyNotOwned, match="Use the value of the fields grouping"):
            task.snapshot()
    del bolt.state[key]
    assert task.snapshot() == {}


@pytest.mark.parametrize("key", [frozenset(), datetime(2026, 1, 1), (1, frozenset())])
def test_a_key_that_cannot_be_kept_is_an_error(key: Any, bolt: Any) -> None:
    with pytest.raises(EncodingError, match="cannot be a key of 'state'"):
        bolt.state[key] += 1


# ---- expiry ----


class Recent:
    state = State(default=0, ttl=10)
    seen = ListState(ttl=10)


def test_an_entry_not_written_for_long_is_gone() -> None:
    bolt, clock = Recent(), Clock()
    opened(bolt, now=clock)
    bolt.state["a"] = 1
    clock.time += 6
    bolt.state["b"] = 2
    assert bolt.state["a"] == 1, "reading does not keep it"
    clock.time += 4
    assert bolt.state == {"b": 2}
    assert "a" not in bolt.state and len(bolt.state) == 1 and bolt.state.get("a") is None
    bolt.state["b"] += 1
    clock.time += 9
    assert bolt.state == {"b": 3}
    clock.time += 1
    assert (bolt.state["b"], list(bolt.state), bolt.state.pop("b", None)) == (0, [], None)


def test_changing_a_value_in_place_counts_as_writing() -> None:
    bolt, clock = Recent(), Clock()
    opened(bolt, now=clock)
    for number in range(4):
        bolt.seen.append("a", number)
        clock.time += 9
    assert bolt.seen == {"a": [0, 1, 2, 3]}
    clock.time += 1
    assert bolt.seen["a"] == []


def test_a_clock_that_is_set_back_brings_nothing_back() -> None:
    bolt, clock = Recent(), Clock()
    opened(bolt, now=clock)
    bolt.state["a"] = 1
    clock.time += 10
    assert "a" not in bolt.state
    clock.time -= 50
    bolt.state["b"] = 1
    assert bolt.state == {"b": 1}


# ---- codecs ----


@dataclass
class Session:
    user: str
    pages: set[str]
    total: Decimal


@pytest.mark.parametrize(("kind", "value"), [
    (Session, Session("ann", {"a", "b"}, Decimal("1.50"))),
    (tuple[int, datetime], (1, datetime(2026, 1, 2, 3, 4))),
    (dict[int, bytes], {1: b"\xff"}),
    (int, 2**100),
])
def test_typed_values_come_back_as_they_were(kind: Any, value: Any) -> None:
    codec = Typed(kind)
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)


def test_a_value_of_another_type_is_refused_when_it_is_encoded() -> None:
    with pytest.raises(ValueError, match="Expected"):
        Typed(Session).encode("a session")

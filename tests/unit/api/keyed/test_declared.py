"""Keyed state as a bolt sees it: declarations, defaults, key ownership, expiry."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

import msgspec
import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import stable_hash
from millrace.api.keyed import keys as key_places
from millrace.api.keyed.declared import CounterState, ListState, State, Typed, declared_states
from millrace.api.keyed.paged import PagedState
from millrace.api.keyed.plain import KeyedState
from millrace.errors import EncodingError, KeyNotOwned, NotRunning
from millrace.state.task_state import TaskState, open_states
from millrace.testing.states import with_state

GROUPS = 8


class Count:
    state = State(default=0)
    hits = CounterState()
    seen = ListState()
    bare = State()


class FakeClock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def opened(bolt: Any, owned: Any = range(GROUPS), now: Callable[[], float] = lambda: 0.0,
           dropped: Callable[[KeyNotOwned], None] | None = None) -> TaskState:
    state = open_states(bolt, stable_hash, owned, GROUPS, "count, task 3", now, lambda group: 40 + group, dropped)
    assert state is not None
    return state


@pytest.fixture(params=["one dict", "in pages"])
def bolt(request: pytest.FixtureRequest) -> Any:
    """Return a running bolt; the states are tested in both of their forms."""
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
def test_a_ttl_must_be_above_zero(ttl: float) -> None:
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


def test_the_last_item_and_the_first_key_take_no_longer_the_more_there_are(bolt: Any) -> None:
    state, steps = bolt.bare, 0

    class Key(str):
        def __hash__(self) -> int:
            nonlocal steps
            steps += 1
            return super().__hash__()

    state.update({Key(number): number for number in range(1000)})
    assert (state.popitem(), next(iter(state))) == (("999", 999), "0")
    before = steps
    for number in range(998, 500, -1):
        assert state.popitem() == (str(number), number)
        assert next(iter(state)) == "0"
    assert steps - before < 10 * 498
    assert list(state) == list(map(str, range(501)))


# ---- key ownership ----


class Owns2:
    state = State(default=0)
    lists = ListState()
    recent = State(default=0, ttl=10)


FOREIGN = next(key for key in map(str, range(100)) if stable_hash(key) % GROUPS != 2)
FOREIGN_GROUP = stable_hash(FOREIGN) % GROUPS
MINE = next(key for key in map(str, range(100)) if stable_hash(key) % GROUPS == 2)


@pytest.fixture(params=["state", "lists", "recent"])
def part(request: pytest.FixtureRequest) -> Any:
    """A state that owns one group, in each of its forms."""
    bolt = Owns2()
    task = opened(bolt, owned=[2])
    bolt.lists.append(MINE, 1)
    task.snapshot()
    assert (type(bolt.state), type(bolt.lists)) == (KeyedState, PagedState)
    return getattr(bolt, request.param)


@pytest.mark.parametrize("use", [lambda state, key: state[key], lambda state, key: state.add(key),
                                 lambda state, key: state.setdefault(key, 1)])
def test_to_use_another_tasks_key_is_an_error_at_once(use: Callable[[Any, str], Any], part: Any) -> None:
    with pytest.raises(KeyNotOwned, match=f"count, task 3: '{FOREIGN}' .* group {FOREIGN_GROUP}, which task "
                                          f"{40 + FOREIGN_GROUP} owns"):
        use(part, FOREIGN)
    assert FOREIGN not in list(part)


@pytest.mark.parametrize("key", [FOREIGN, frozenset()])
def test_to_ask_for_another_tasks_key_finds_nothing(key: Any, part: Any) -> None:
    assert (part.get(key), part.get(key, 5), key in part, part.pop(key, 7), (key, 0) in part.items()) == \
        (None, 5, False, 7, False)
    for take in (part.pop, part.__delitem__):
        with pytest.raises(KeyError) as error:
            take(key)
        assert error.type is KeyError


@pytest.mark.parametrize("put", [lambda state, key: state.__setitem__(key, 1), lambda state, key: state.update({key: 1})])
@pytest.mark.parametrize("name", ["state", "lists", "recent"])
def test_setting_another_tasks_key_is_an_error_at_the_snapshot(put: Callable[[Any, str], Any], name: str) -> None:
    bolt = Owns2()
    task = opened(bolt, owned=[2])
    bolt.lists.append(MINE, 1)
    task.snapshot()
    put(getattr(bolt, name), FOREIGN)
    for _ in range(2):  # it stays wrong
        with pytest.raises(KeyNotOwned, match="Use the value of the fields grouping"):
            task.snapshot()
    del getattr(bolt, name)[FOREIGN]
    assert task.snapshot() == {}


@pytest.mark.parametrize("needs", [lambda task: task.snapshot(), lambda task: task.last_pieces(),
                                   lambda task: task.extract([2], ()), lambda task: task.drop(2),
                                   lambda task: task.restore(2, [])])
@pytest.mark.parametrize("name", ["state", "lists", "recent"])
def test_another_tasks_key_is_dropped_and_reported_once(needs: Callable[[TaskState], Any], name: str) -> None:
    bolt, reported = Owns2(), list[KeyNotOwned]()
    task = opened(bolt, owned=[2], dropped=reported.append)
    bolt.lists.append(MINE, 1)
    task.snapshot()
    getattr(bolt, name)[FOREIGN] = 1
    getattr(bolt, name)[MINE] = 2
    needs(task)
    assert FOREIGN not in list(getattr(bolt, name))
    task.snapshot()
    (error,) = reported
    assert f"{FOREIGN!r} is not a key" in str(error) and f"Dropped such entries: {{{name!r}: 1}}" in str(error)


def test_what_is_beside_a_dropped_key_is_in_the_snapshot(bolt: Any) -> None:
    task = opened(bolt, owned=[2], dropped=lambda error: None)
    bolt.state.update({FOREIGN: 1, MINE: 2})
    (group, (whole, _)), = task.snapshot().items()
    assert (group, whole, dict(bolt.state.items())) == (2, True, {MINE: 2})


@pytest.mark.parametrize("key", [frozenset(), 1j, (1, frozenset())])
def test_a_key_that_cannot_be_kept_is_an_error(key: Any, bolt: Any) -> None:
    with pytest.raises(EncodingError, match="cannot be a key of 'state'"):
        bolt.state[key] += 1


def test_keys_that_a_state_holds_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_places, "KEYS_REMEMBERED", 10)
    hashed: list[Any] = []

    def group_of(key: Any) -> int:
        hashed.append(key)
        return stable_hash(key)

    bolt = Count()
    task = open_states(bolt, group_of, range(GROUPS), GROUPS, "count", lambda: 0.0)
    assert task is not None
    names = list(map(str, range(100)))
    for name in names:
        bolt.state[name] += 1
        bolt.hits.add(name)
        assert bolt.state[f"{name} is only asked for"] == 0
    task.dirty()
    task.snapshot()
    assert [hashed.count(name) for name in names] == [1] * 100
    assert len(task.places._groups) <= 10, "what is in a snapshot need not be remembered"


# ---- expiry ----


class Recent:
    state = State(default=0, ttl=10)
    seen = ListState(ttl=10)


def test_an_entry_not_written_for_long_is_gone() -> None:
    bolt, clock = Recent(), FakeClock()
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
    bolt, clock = Recent(), FakeClock()
    opened(bolt, now=clock)
    for number in range(4):
        bolt.seen.append("a", number)
        clock.time += 9
    assert bolt.seen == {"a": [0, 1, 2, 3]}
    clock.time += 1
    assert bolt.seen["a"] == []


@pytest.mark.parametrize("look", [lambda state: list(state.values()), lambda state: list(state.items()),
                                  lambda state: state.copy(), lambda state: state | {}, repr])
def test_a_loop_over_the_entries_does_not_renew_them(look: Callable[[Any], Any]) -> None:
    bolt, clock = Recent(), FakeClock()
    task = opened(bolt, now=clock)
    bolt.seen["a"] = [1]
    task.snapshot()
    clock.time += 6
    look(bolt.seen)
    clock.time += 4
    assert bolt.seen == {}


def test_changes_in_a_loop_are_in_the_delta_and_expire_as_before() -> None:
    bolt, clock = Recent(), FakeClock()
    task = opened(bolt, now=clock)
    bolt.seen["a"] = [1]
    (group, _), = task.snapshot().items()
    clock.time += 6
    for value in bolt.seen.values():
        value.append(2)
    assert task.dirty() == {group: 1}
    (whole, piece), = task.snapshot().values()
    assert whole, "it is all there is in the group"
    for seconds, left in ((3, {"a": [1, 2]}), (1, {})):
        clock.time += seconds
        later = Recent()
        opened(later, now=clock).restore(group, [piece])
        assert later.seen == left


@pytest.mark.parametrize("write", [
    lambda state: state.__setitem__("a", [2]), lambda state: state.append("a", 2), lambda state: state["a"],
    lambda state: state.get("a"), lambda state: state.setdefault("a", []), lambda state: state.update(a=[2]),
])
def test_writes_that_renew_an_entry(write: Callable[[Any], Any]) -> None:
    bolt, clock = Recent(), FakeClock()
    opened(bolt, now=clock)
    bolt.seen["a"] = [1]
    clock.time += 6
    write(bolt.seen)
    clock.time += 9
    assert "a" in bolt.seen
    clock.time += 1
    assert "a" not in bolt.seen


def test_reading_what_cannot_be_changed_in_place_renews_nothing() -> None:
    bolt, clock = Recent(), FakeClock()
    opened(bolt, now=clock)
    bolt.state.update(a=1, b=2)
    clock.time += 6
    assert (bolt.state["a"], bolt.state.get("a"), bolt.state.setdefault("a", 5), bolt.state.add("b")) == (1, 1, 1, 3)
    clock.time += 4
    assert bolt.state == {"b": 3}
    assert bolt.state.setdefault("c", 5) == 5
    clock.time += 6
    assert (bolt.state.popitem(), bolt.state) == (("c", 5), {})


def test_a_clock_that_is_set_back_brings_nothing_back() -> None:
    bolt, clock = Recent(), FakeClock()
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


@dataclass
class Timed(Session):
    at: int = 0


@dataclass(eq=False)
class Node:
    children: list[Node]


class Pair(msgspec.Struct):
    both: tuple[float, float]


@pytest.mark.parametrize(("kind", "value"), [(float, float("nan")), (Node, Node([Node([])])), (Pair, Pair((1.0, 2.0))),
                                             (frozenset[int], frozenset({1})), (dict[str, set[int]], {"a": {1}})])
def test_typed_values_that_are_not_equal_by_themselves_or_nested_are_kept(kind: Any, value: Any) -> None:
    codec = Typed(kind)
    assert repr(codec.decode(codec.encode(value))) == repr(value)


@pytest.mark.parametrize(("kind", "value"), [
    (Session, "a session"), (Session, Timed("ann", set(), Decimal(1), 5)), (float, 1), (list, (1, 2)),
    (set[int], frozenset({1})), (list[float], [1]), (set[float], {1}), (dict[str, set[int]], {"a": frozenset({1})}),
    (dict[float, int], {1: 1}), (Pair, Pair((1, 2))), (Node, Node(())), (list, Counter(a=1)), (int, object()),
])
def test_a_value_that_would_not_come_back_as_it_was_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(EncodingError, match=r"^Typed\(.*\) cannot keep "):
        Typed(kind).encode(value)


# ---- in unit tests of bolts ----


def test_a_bolt_has_its_state_without_the_engine() -> None:
    class Words(Bolt):
        outputs: ClassVar = []
        counts = CounterState()
        recent = ListState(ttl=10)

    clock = FakeClock()
    bolt = with_state(Words(), now=clock)
    for key in range(1000):
        bolt.counts.add(key)
    bolt.recent.append("a", 1)
    clock.time += 10
    assert (len(bolt.counts), bolt.recent, bolt.state) == (1000, {}, {})
    assert with_state(Words()).counts == {}

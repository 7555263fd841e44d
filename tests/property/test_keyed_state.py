"""Keyed state against a plain dict, through snapshots, losses, recoveries and moves of key groups between tasks."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.api.grouping import stable_hash
from millrace.api.keyed import plain as keyed_state
from millrace.api.keyed.declared import State
from millrace.api.keyed.paged import PagedState
from millrace.errors import CorruptCheckpoint
from millrace.state.packing import pack_value, unpack_value
from millrace.state.task_state import Decoded, TaskState, open_states
from support.examples import examples

GROUPS = 5
ODD_KEYS = [0, 1, 1.0, True, False, -0.0, "", "a", "é", "\ud800", None, b"", b"a", (), (1,), (1.0,), ("a", (None, b"x")), 2**64,
            -(2**70), float(2**64), 2.5, "1", (2**80, "\ud800")]
keys = st.sampled_from(ODD_KEYS) | st.integers(-3, 30) | st.text(max_size=2)
few_keys = st.sampled_from([1, True, "", None, ("a", (None, b"x")), 2**64, "\ud800"])  # so that the same ones meet often
atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.binary(max_size=3)
dict_keys = st.recursive(atoms, lambda inner: st.tuples(inner, inner), max_leaves=3)
values = st.recursive(atoms, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.tuples(inner), st.dictionaries(dict_keys, inner, max_size=2),
    st.sets(dict_keys, max_size=2), st.frozensets(dict_keys, max_size=2)), max_leaves=5)
shares = st.sets(st.integers(0, GROUPS - 1), min_size=1, max_size=GROUPS - 1)


class Count:
    state = State()
    lists = State(default=list)


def same(value: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(value) is not type(other) or value != other:
        return False
    if isinstance(value, list | tuple):
        return all(map(same, value, other))
    if isinstance(value, set | frozenset):
        return all(map(same, sorted(value, key=repr), sorted(other, key=repr)))
    return all(same(item, other[key]) for key, item in value.items()) if isinstance(value, dict) else True


class FakeTask:
    def __init__(self, owned: set[int]) -> None:
        self.bolt: Any = Count()
        opened = open_states(self.bolt, stable_hash, owned, GROUPS, "count", lambda: 0.0)
        assert opened is not None
        self.state: TaskState = opened


class Follower:
    """Copies of all groups, brought up to date by the pieces that were added: in a task, and decoded aside."""

    def __init__(self, task: TaskState) -> None:
        self.task = task
        self.known: dict[int, list[bytes]] = {}
        self.decoded: dict[int, Decoded] = {}

    def follow(self, stored: dict[int, list[bytes]]) -> None:
        added = {group: pieces[len(known):] if pieces[:len(known := self.known.get(group, []))] == known else pieces
                 for group, pieces in stored.items()}
        whole = {group: pieces for group, pieces in added.items() if pieces == stored[group]}
        deltas = {group: pieces for group, pieces in added.items() if group not in whole}
        self.task.load(self.task.decoded(whole))
        self.task.extend(deltas)
        self.decoded |= self.task.decoded(whole)
        for group, pieces in deltas.items():
            self.task.extend_decoded(group, self.decoded[group], pieces)
        self.known = dict(stored)


class Machine(RuleBasedStateMachine):
    """One or two tasks share the groups; `stored` is the checkpoint store's chain of pieces for each group."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[Any, Any] = {}
        self.lists: dict[Any, list[Any]] = {}
        self.stored: dict[int, list[bytes]] = {}
        self.committed: tuple[dict[Any, Any], dict[Any, list[Any]]] = ({}, {})

    @initialize(owned=shares, paged_above=st.sampled_from([0, 4, 1000]), only_atoms=st.booleans())
    def start(self, owned: set[int], paged_above: int, only_atoms: bool) -> None:
        self.only_atoms = only_atoms  # the state stays one dict
        self.patch = mock.patch.object(keyed_state, "PAGED_ABOVE", paged_above)
        self.patch.start()
        self.tasks = [FakeTask(owned), FakeTask(set(range(GROUPS)) - owned)]
        self.copy = FakeTask(set(range(GROUPS)))
        self.follower = Follower(self.copy.state)

    def teardown(self) -> None:
        self.patch.stop()

    def task(self, key: Any) -> FakeTask:
        return next(task for task in self.tasks if stable_hash(key) % GROUPS in task.state.owned)

    @rule(key=few_keys, value=values)
    def put(self, key: Any, value: Any) -> None:
        self.task(key).bolt.state[key] = self.model[key] = repr(value) if self.only_atoms else value

    @rule(key=few_keys, value=atoms)
    def put_atom(self, key: Any, value: Any) -> None:
        self.task(key).bolt.state[key] = self.model[key] = value

    @rule(key=few_keys)
    def read(self, key: Any) -> None:
        state = self.task(key).bolt.state
        if key in self.model:
            assert same(state[key], self.model[key])
        else:
            with pytest.raises(KeyError):
                state[key]

    @rule(key=few_keys, value=atoms)
    def get_and_in(self, key: Any, value: Any) -> None:
        state = self.task(key).bolt.state
        assert same(state.get(key, value), self.model.get(key, value))
        assert (key in state) == (key in self.model)

    @rule(key=few_keys)
    def delete(self, key: Any) -> None:
        state = self.task(key).bolt.state
        if key in self.model:
            del state[key], self.model[key]
        else:
            with pytest.raises(KeyError):
                del state[key]

    @rule(key=few_keys, value=atoms)
    def pop(self, key: Any, value: Any) -> None:
        assert same(self.task(key).bolt.state.pop(key, value), self.model.pop(key, value))

    @rule(key=few_keys, value=values)
    def setdefault(self, key: Any, value: Any) -> None:
        value = repr(value) if self.only_atoms else value
        assert same(self.task(key).bolt.state.setdefault(key, value), self.model.setdefault(key, value))

    @rule(key=few_keys, item=atoms)
    def append(self, key: Any, item: Any) -> None:
        self.task(key).bolt.lists[key].append(item)
        self.lists.setdefault(key, []).append(item)

    @rule(item=atoms)
    def append_to_all(self, item: Any) -> None:
        for task in self.tasks:
            for value in task.bolt.lists.values():
                value.append(item)
        for value in self.lists.values():
            value.append(item)

    @rule(which=st.integers(0, 1))
    def popitem(self, which: int) -> None:
        state = self.tasks[which].bolt.state
        if state:
            expected = list(state)[-1]
            key, value = state.popitem()
            assert key == expected
            assert same(value, self.model.pop(key))

    @rule(which=st.integers(0, 1))
    def clear(self, which: int) -> None:
        state = self.tasks[which].bolt.state
        for key in list(state):
            del self.model[key]
        state.clear()

    @rule(whole=st.just(()) | st.booleans() | st.sets(st.integers(0, GROUPS - 1)))
    def snapshot(self, whole: Any) -> None:
        for task in self.tasks:
            expected = task.state.dirty()
            pieces = task.state.snapshot(whole)
            assert set(expected) <= set(pieces) <= task.state.owned
            assert task.state.dirty() == {}
            for group, (all_of_it, piece) in pieces.items():
                self.stored[group] = [piece] if all_of_it else [*self.stored[group], piece]
            assert task.state.sizes() == {group: sum(map(len, self.stored[group])) for group in sorted(task.state.owned)
                                          if group in self.stored}
        self.committed = dict(self.model), {key: list(value) for key, value in self.lists.items()}
        twin = FakeTask(set(range(GROUPS)))
        twin.state.restore_all(self.stored)
        assert (twin.bolt.state, twin.bolt.lists) == (self.model, self.lists), "what is stored is what there is"

    @rule()
    def follow(self) -> None:
        self.follower.follow(self.stored)
        twin = FakeTask(set(range(GROUPS)))
        twin.state.restore_all(self.stored)
        assert (self.copy.state.dirty(), self.copy.state.sizes()) == ({}, twin.state.sizes())
        assert same(self.copy.bolt.state.copy(), twin.bolt.state.copy())
        assert self.copy.bolt.lists == twin.bolt.lists
        twin.state.load(self.follower.decoded)
        assert same(self.copy.bolt.state.copy(), twin.bolt.state.copy())
        assert self.copy.state.sizes() == twin.state.sizes()

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def lose_a_chain(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(sorted(self.stored)))
        for task in self.tasks:
            if group in task.state.owned:
                task.state.spoil([group])
                assert task.state.snapshot()[group][0], "what was lost is written again, whole"
        self.stored.clear()
        for task in self.tasks:
            task.state.spoil(range(GROUPS))
        self.snapshot(())

    @rule(owned=shares)
    def fail_and_recover(self, owned: set[int]) -> None:
        """Lose everything that is in no snapshot, and reassign the groups."""
        self.tasks = [FakeTask(owned), FakeTask(set(range(GROUPS)) - owned)]
        for task in self.tasks:
            for group in task.state.owned:
                task.state.restore(group, self.stored.get(group, []))
        self.model, self.lists = dict(self.committed[0]), {key: list(value) for key, value in self.committed[1].items()}

    @rule(group=st.integers(0, GROUPS - 1))
    def move(self, group: int) -> None:
        self.snapshot(())
        old, new = sorted(self.tasks, key=lambda task: group not in task.state.owned)
        if len(old.state.owned) > 1:
            old.state.drop(group)
            new.state.restore(group, self.stored.get(group, []))

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "tasks"):
            return
        whole: dict[Any, Any] = {}
        for task in self.tasks:
            state = task.bolt.state
            assert len(state) == len(list(state)) == len(list(reversed(state))) == len(state.keys() | set())
            assert all(stable_hash(key) % GROUPS in task.state.owned for key in state)
            assert state == state.copy()
            assert (state != dict(state)) is False
            assert eval(repr(state), {"inf": float("inf")}) == state
            whole |= state
            assert sum(task.state.keys().values()) == len(state) + len(task.bolt.lists)
        assert same(whole, {key: self.model[key] for key in whole}), "values and types"
        assert len(whole) == len(self.model)
        lists = self.tasks[0].bolt.lists | self.tasks[1].bolt.lists
        assert lists == self.lists


TestKeyedState = Machine.TestCase
TestKeyedState.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.sampled_from(["set", "del", "read", "snapshot"]), st.integers(0, 6))), st.booleans())
def test_the_order_is_that_of_a_dict(steps: list[tuple[str, int]], paged: bool) -> None:
    task, model = FakeTask(set(range(GROUPS))), {}
    for step, key in steps:
        if step == "set":
            task.bolt.state[key] = model[key] = [key] if paged else key
        elif step == "del" and key in model:
            del task.bolt.state[key], model[key]
        elif step == "read":
            task.bolt.state.get(key)
        elif step == "snapshot":
            task.state.snapshot()
        assert list(task.bolt.state) == list(model)
        assert list(task.bolt.state.items()) == list(model.items())
        assert list(reversed(task.bolt.state.values())) == list(reversed(model.values()))


class Recent:
    state = State(default=list, ttl=10)


few_numbers = st.integers(0, 6)
expiring_steps = st.one_of(
    st.tuples(st.sampled_from(["set", "atom", "get", "read", "setdefault", "pop", "del"]), few_numbers),
    st.tuples(st.just("wait"), st.integers(1, 6)),
    st.tuples(st.sampled_from(["loop", "popitem", "snapshot", "recover", "follow"]), st.just(0)))


class Expiring:
    """A state with a ttl, compared with a dict of values and a dict of their expiry times."""

    def __init__(self) -> None:
        self.time, self.values, self.dues = 100, {}, {}
        self.stored: dict[int, list[bytes]] = {}
        self.committed: tuple[dict[Any, Any], dict[Any, int]] = {}, {}
        self.open()
        self.copy: Any = Recent()
        self.follower = Follower(self.opened(self.copy))

    def opened(self, bolt: Any) -> TaskState:
        opened = open_states(bolt, stable_hash, range(GROUPS), GROUPS, "recent", lambda: self.time)
        assert opened is not None
        return opened

    def open(self) -> None:
        self.bolt: Any = Recent()
        self.task, self.state = self.opened(self.bolt), self.bolt.state

    def put(self, key: int, value: Any) -> None:
        self.values[key], self.dues[key] = value, self.time + 10

    def lose(self, key: int) -> Any:
        self.dues.pop(key, None)
        return self.values.pop(key, None)

    def step(self, step: str, number: int) -> None:
        getattr(self, f"do_{step}")(number)
        for key in [key for key, due in self.dues.items() if due <= self.time]:
            self.lose(key)

    def do_set(self, key: int) -> None:
        self.state[key] = [self.time]
        self.put(key, [self.time])

    def do_atom(self, key: int) -> None:
        self.state[key] = self.time
        self.put(key, self.time)

    def renewed(self, key: int) -> Any:
        if isinstance(self.values.get(key), list):
            self.dues[key] = self.time + 10
        return self.values.get(key)

    def do_get(self, key: int) -> None:
        assert self.state.get(key) == self.renewed(key)

    def do_read(self, key: int) -> None:
        if key not in self.values:
            self.put(key, [])
        assert self.state[key] == self.renewed(key)

    def do_setdefault(self, key: int) -> None:
        if key not in self.values:
            self.put(key, 5)
        assert self.state.setdefault(key, 5) == self.renewed(key)

    def do_pop(self, key: int) -> None:
        assert self.state.pop(key, None) == self.lose(key)

    def do_del(self, key: int) -> None:
        if key in self.values:
            del self.state[key]
            self.lose(key)

    def do_wait(self, seconds: int) -> None:
        self.time += seconds

    def do_loop(self, _: int) -> None:
        for both in (self.state.values(), self.values.values()):
            for value in both:
                if isinstance(value, list):
                    value.append(0)

    def do_popitem(self, _: int) -> None:
        if self.state:
            key, value = self.state.popitem()
            assert self.lose(key) == value

    def do_snapshot(self, _: int) -> None:
        for group, (whole, piece) in self.task.snapshot().items():
            self.stored[group] = [piece] if whole else [*self.stored[group], piece]
        self.committed = copy.deepcopy(self.values), dict(self.dues)

    def do_follow(self, _: int) -> None:
        self.follower.follow(self.stored)
        values, dues = self.committed
        assert self.copy.state == {key: value for key, value in values.items() if dues[key] > self.time}

    def do_recover(self, _: int) -> None:
        self.open()
        for group in range(GROUPS):
            self.task.restore(group, self.stored.get(group, []))
        self.values, self.dues = copy.deepcopy(self.committed[0]), dict(self.committed[1])


@given(st.lists(expiring_steps, max_size=40))
def test_entries_are_gone_when_their_time_has_come_whatever_happened_before(steps: list[tuple[str, int]]) -> None:
    both = Expiring()
    for step, number in steps:
        both.step(step, number)
        assert both.state == both.values
        assert len(both.state) == len(both.values) == sum(both.task.keys().values())


@given(st.dictionaries(keys, values))
def test_a_snapshot_gives_back_values_of_the_same_types(entries: dict[Any, Any]) -> None:
    task, other = FakeTask(set(range(GROUPS))), FakeTask(set(range(GROUPS)))
    task.bolt.state.update(entries)
    for group, (whole, piece) in task.state.snapshot().items():
        assert whole
        other.state.restore(group, [piece])
    assert same(other.bolt.state.copy(), entries)
    assert isinstance(other.bolt.state, PagedState) == isinstance(task.bolt.state, PagedState)


@given(values)
def test_a_packed_value_comes_back_with_the_same_types(value: Any) -> None:
    assert same(unpack_value(pack_value(value)), value)


@given(values, st.data())
def test_invalid_bytes_are_refused(value: Any, data: st.DataObject) -> None:
    packed = pack_value(value)
    cut = data.draw(st.integers(0, len(packed)))
    try:
        unpack_value(packed[:cut] + data.draw(st.binary(max_size=8)) + packed[cut + data.draw(st.integers(0, 2)):])
    except CorruptCheckpoint as error:
        assert "bytes are not a packed value" in str(error)

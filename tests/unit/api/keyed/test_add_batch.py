"""Keyed state that is used by batch and by key at once: examples, and any use against a plain dict through snapshots, losses
and moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.api.grouping import stable_hash
from millrace.api.keyed import counted
from millrace.api.keyed import plain as keyed_state
from millrace.api.keyed.declared import CounterState
from millrace.api.keyed.paged import PagedState
from millrace.errors import KeyNotOwned
from millrace.state.task_state import TaskState, open_states
from support.examples import examples

GROUPS = 5
KEYS = ["", "a", "b", "é", "word", None]
keys = st.sampled_from(KEYS)
amounts = st.integers(-3, 3) | st.sampled_from([2**62, -(2**62)])
numbers = amounts | st.sampled_from([2**63 - 1, -(2**63)])
odd = st.sampled_from([True, 1.5, 2**63, 2**80, -(2**63) - 1])
batches = st.lists(st.tuples(keys, amounts), max_size=8)
shares = st.sets(st.integers(0, GROUPS - 1), min_size=1, max_size=GROUPS - 1)


class Count:
    counts = CounterState()


class CountForAnHour:
    counts = CounterState(ttl=3600)


class FakeTask:
    def __init__(self, kind: type, owned: set[int], dropped: list[KeyNotOwned] | None = None) -> None:
        self.bolt: Any = kind()
        note = None if dropped is None else dropped.append
        opened = open_states(self.bolt, stable_hash, owned, GROUPS, "count", lambda: 0.0, dropped=note)
        assert opened is not None
        self.state: TaskState = opened


def opened(kind: type = Count) -> Any:
    return FakeTask(kind, set(range(GROUPS))).bolt.counts


@pytest.mark.parametrize("kind", [Count, CountForAnHour])
def test_a_batch_is_counted_by_key(kind: type) -> None:
    counts = opened(kind)
    counts["b"] = 10
    words, totals = counts.add_batch(pa.array(["a", "b", "a", None]))
    assert (words.to_pylist(), totals.to_pylist()) == (["a", "b", None], [2, 11, 1])
    assert counts == {"b": 11, "a": 2, None: 1}
    counts["a"] += 1
    assert dict(zip(*map(pa.Array.to_pylist, counts.add_batch(pa.array(["a"]), pa.array([-5]))), strict=True)) == {"a": -2}


@pytest.mark.parametrize("keys", [
    pa.array([7, 8, 7], pa.uint8()), pa.array([b"x", b"", b"x"]), pa.array([True, False, True]),
    pa.array(["a", "b", "a"], pa.large_string()), pa.chunked_array([["a"], ["b", "a"]]),
    pa.array(["x", "a", "b", "a"]).slice(1),
    pa.DictionaryArray.from_arrays([0, 2, 1], pa.array(["a", "a", "b", "not used"])),
    pa.DictionaryArray.from_arrays([1, 0, 1], pa.array([None, "b"])),
    pa.DictionaryArray.from_arrays([1, None, 1], pa.array(["a", "b"])),
    pa.array(list("abcdefgh")).dictionary_encode().slice(4, 3),
], ids=lambda keys: str(keys.type))
def test_keys_of_every_form(keys: Any) -> None:
    for amounts, expected in ((None, 1), (pa.array([10, 10, 10], pa.int16()), 10)):
        counts, values = opened(), keys.to_pylist()
        different, totals = counts.add_batch(keys, amounts)
        assert counts == {value: expected * values.count(value) for value in values}
        assert dict(zip(different.to_pylist(), totals.to_pylist(), strict=True)) == counts
        assert not pa.types.is_dictionary(different.type)


def test_an_empty_batch_changes_nothing() -> None:
    counts = opened()
    assert [len(each) for each in counts.add_batch(pa.array([], pa.string()), pa.array([], pa.int64()))] == [0, 0]
    assert counts == {}


@pytest.mark.parametrize(("keys", "amounts", "message"), [
    (["a"], None, "add_batch takes the keys as a column of an Arrow batch, not list"),
    (pa.array([1.5]), None, "add_batch takes keys of strings, bytes, integers or booleans, not double"),
    (pa.array(["a"]), [1], "add_batch takes the amounts as a column of an Arrow batch, not list"),
    (pa.array(["a"]), pa.array([0.5]), "add_batch takes integers without nulls as amounts, not double with 0 nulls"),
    (pa.array(["a"]), pa.array([None], pa.int8()), "add_batch takes integers without nulls as amounts, not int8 with 1 nulls"),
])
def test_columns_that_cannot_be_added_are_refused(keys: Any, amounts: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        opened().add_batch(keys, amounts)


def test_amounts_for_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="add_batch got 2 keys and 1 amounts"):
        opened().add_batch(pa.array(["a", "b"]), pa.array([1]))


def test_sums_that_may_exceed_64_bits_are_refused() -> None:
    counts = opened()
    with pytest.raises(OverflowError, match="add_batch got 2 amounts from 1 to 4611686018427387904: their sum may exceed"):
        counts.add_batch(pa.array(["a", "a"]), pa.array([1, 2**62]))
    counts["a"] = 2**63 - 1
    with pytest.raises((OverflowError, pa.ArrowInvalid)):
        counts.add_batch(pa.array(["a", "b"]), pa.array([1, 1]))
    assert counts == {"a": 2**63 - 1}


def test_a_batch_with_a_key_of_another_task_changes_nothing() -> None:
    task = FakeTask(Count, {stable_hash("a") % GROUPS})
    other = next(word for word in map(str, range(100)) if stable_hash(word) % GROUPS not in task.state.owned)
    task.bolt.counts.add_batch(pa.array(["a"]))
    with pytest.raises(KeyNotOwned, match=f"{other!r} is not a key of this task's part of 'counts'"):
        task.bolt.counts.add_batch(pa.array(["a", other]))
    assert task.bolt.counts == {"a": 1}


@pytest.mark.parametrize("paged_above", [0, 1000])
def test_integers_are_in_arrays_until_another_value_is_set(monkeypatch: pytest.MonkeyPatch, paged_above: int) -> None:
    monkeypatch.setattr(keyed_state, "PAGED_ABOVE", paged_above)
    task = FakeTask(Count, set(range(GROUPS)))
    counts = task.bolt.counts
    counts.update(a=1, b=2)
    task.state.snapshot()
    counts.add_batch(pa.array(["b", "c"]))
    assert isinstance(counts, counted.CountedState)
    counts["d"] = 0.5
    words, totals = counts.add_batch(pa.array(["c", "d"]))
    assert type(counts) is PagedState
    assert (words.to_pylist(), totals.to_pylist()) == (["c", "d"], [2.0, 1.5])
    assert counts == {"a": 1, "b": 3, "c": 2, "d": 1.5}
    assert sum(task.state.dirty().values()) == 3, "a has not changed"
    del counts["d"]
    counts.add_batch(pa.array(["c"]))
    assert type(counts) is PagedState, "and stays in pages"


def test_a_snapshot_has_only_what_a_batch_has_changed() -> None:
    task = FakeTask(Count, set(range(GROUPS)))
    task.bolt.counts.add_batch(pa.array(list(map(str, range(100)))))
    assert sum(task.state.dirty().values()) == 100
    task.state.snapshot()
    task.bolt.counts.add_batch(pa.array(["5", "7", "new"]), pa.array([1, 0, 1]))
    assert sum(task.state.dirty().values()) == 2
    pieces = task.state.snapshot()
    assert set(pieces) == {stable_hash("5") % GROUPS, stable_hash("new") % GROUPS}
    assert task.state.dirty() == {}


# ---- any use ----


def as_column(values: Sequence[Any], kind: str) -> pa.Array:
    column = pa.array(values, pa.string())
    return column.dictionary_encode() if kind == "dictionary" else column


class Machine(RuleBasedStateMachine):
    """One or two tasks share the groups; `stored` is the checkpoint store's chain of pieces for each group."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[Any, Any] = {}
        self.stored: dict[int, list[bytes]] = {}
        self.committed: dict[Any, Any] = {}

    @initialize(owned=shares, paged_above=st.sampled_from([0, 3, 1000]), least_room=st.sampled_from([1, 1024]),
                kind=st.sampled_from([Count, Count, CountForAnHour]))
    def start(self, owned: set[int], paged_above: int, least_room: int, kind: type) -> None:
        self.kind = kind
        self.patches = [mock.patch.object(keyed_state, "PAGED_ABOVE", paged_above),
                        mock.patch.object(counted, "LEAST_ROOM", least_room)]
        for patch in self.patches:
            patch.start()
        self.tasks = [FakeTask(kind, owned), FakeTask(kind, set(range(GROUPS)) - owned)]

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()

    def task(self, key: Any) -> FakeTask:
        return next(task for task in self.tasks if stable_hash(key) % GROUPS in task.state.owned)

    @rule(batch=batches, form=st.sampled_from(["plain", "dictionary"]), counted_only=st.booleans())
    def add_batch(self, batch: list[tuple[str | None, int]], form: str, counted_only: bool) -> None:
        for task in self.tasks:
            mine = [row for row in batch if stable_hash(row[0]) % GROUPS in task.state.owned]
            words, more = [word for word, _ in mine], [1 if counted_only else amount for _, amount in mine]
            expected = {word: self.model.get(word, 0) for word in words}
            for word, amount in zip(words, more, strict=True):
                expected[word] += amount
            column = as_column(words, form)
            try:
                result = task.bolt.counts.add_batch(column) if counted_only else \
                    task.bolt.counts.add_batch(column, pa.array(more, pa.int64()))
            except (OverflowError, pa.ArrowInvalid):  # no column holds so large a number, or such numbers beside a float
                continue
            self.model |= expected
            assert len(result[0]) == len(set(words))
            assert dict(zip(*(each.to_pylist() for each in result), strict=True)) == expected

    @rule(key=keys)
    def add(self, key: str | None) -> None:
        expected = self.model[key] = self.model.get(key, 0) + 1
        assert self.task(key).bolt.counts.add(key) == expected

    @rule(key=keys, value=numbers)
    def put(self, key: str | None, value: int) -> None:
        self.task(key).bolt.counts[key] = self.model[key] = value

    @rule(key=keys, value=odd)
    def put_another_value(self, key: str | None, value: Any) -> None:
        self.task(key).bolt.counts[key] = self.model[key] = value

    @rule(key=keys)
    def read(self, key: str | None) -> None:
        counts = self.task(key).bolt.counts
        assert counts[key] == self.model.get(key, 0)
        assert counts.get(key) == self.model.get(key)
        assert (key in counts) == (key in self.model)

    @rule(key=keys)
    def pop(self, key: str | None) -> None:
        assert self.task(key).bolt.counts.pop(key, None) == self.model.pop(key, None)

    @rule(key=keys)
    def setdefault(self, key: str | None) -> None:
        assert self.task(key).bolt.counts.setdefault(key, 7) == self.model.setdefault(key, 7)

    @rule(which=st.integers(0, 1))
    def popitem(self, which: int) -> None:
        counts = self.tasks[which].bolt.counts
        if counts:
            expected = list(counts)[-1]
            assert counts.popitem() == (expected, self.model.pop(expected))

    @rule(which=st.integers(0, 1))
    def clear(self, which: int) -> None:
        counts = self.tasks[which].bolt.counts
        for key in list(counts):
            del self.model[key]
        counts.clear()

    @rule(key=keys)
    def write_to_a_foreign_key(self, key: str | None) -> None:
        """Setting an entry checks nothing. It is gone with the next snapshot, whatever batches come before that."""
        task = next((task for task in self.tasks if stable_hash(key) % GROUPS not in task.state.owned), None)
        assert task is not None
        dropped: list[KeyNotOwned] = []
        task.state._dropped = dropped.append  # as a task's snapshots are opened
        task.bolt.counts[key] = 5
        mine = next((key for key in KEYS if stable_hash(key) % GROUPS in task.state.owned), None)
        if mine is not None and self.model.get(mine, 0) in range(-100, 100):
            task.bolt.counts.add_batch(pa.array([mine], pa.string()))
            self.model[mine] = self.model.get(mine, 0) + 1
        self.store(task, ())
        self.snapshot(())
        assert key not in task.bolt.counts
        assert len(dropped) == 1

    @rule(whole=st.just(()) | st.booleans() | st.sets(st.integers(0, GROUPS - 1)))
    def snapshot(self, whole: Any) -> None:
        for task in self.tasks:
            expected = task.state.dirty()
            pieces = self.store(task, whole)
            assert set(expected) <= pieces <= task.state.owned
            assert task.state.dirty() == {}
        self.committed = dict(self.model)
        twin = FakeTask(self.kind, set(range(GROUPS)))
        twin.state.restore_all(self.stored)
        assert twin.bolt.counts == self.model, "what is stored is what there is"

    def store(self, task: FakeTask, whole: Any) -> set[int]:
        pieces = task.state.snapshot(whole)
        for group, (all_of_it, piece) in pieces.items():
            self.stored[group] = [piece] if all_of_it else [*self.stored[group], piece]
        return set(pieces)

    @rule(owned=shares)
    def fail_and_recover(self, owned: set[int]) -> None:
        """Lose everything that is in no snapshot, and reassign the groups."""
        self.tasks = [FakeTask(self.kind, owned), FakeTask(self.kind, set(range(GROUPS)) - owned)]
        for task in self.tasks:
            task.state.restore_all({group: self.stored.get(group, []) for group in task.state.owned})
        self.model = dict(self.committed)

    @rule(group=st.integers(0, GROUPS - 1))
    def move(self, group: int) -> None:
        """A group moves with what has changed since the last snapshot; its new owner may have been used before."""
        old, new = sorted(self.tasks, key=lambda task: group not in task.state.owned)
        if len(old.state.owned) > 1:
            new.state.restore(group, self.stored.get(group, []))
            for whole, piece in old.state.extract([group], whole=False).values():
                if whole:
                    new.state.restore(group, [piece])
                else:
                    new.state.adopt(group, piece)
            self.snapshot({group})

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "tasks"):
            return
        whole: dict[Any, Any] = {}
        for task in self.tasks:
            counts = task.bolt.counts
            assert len(counts) == len(list(counts)) == len(list(reversed(counts))) == len(counts.keys() | set())
            assert counts == counts.copy() == dict(counts.items())
            assert all(stable_hash(key) % GROUPS in task.state.owned for key in counts)
            assert sum(task.state.keys().values()) == len(counts)
            whole |= counts.copy()
        assert whole == self.model
        assert {key: type(value) for key, value in whole.items()} == {key: type(value) for key, value in self.model.items()}


TestBatchesOfKeys = Machine.TestCase
TestBatchesOfKeys.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)

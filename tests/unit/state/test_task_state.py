"""The keyed state of a task in pieces, by examples; the property tests have the orders of events."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import pytest

from millrace.api.grouping import stable_hash
from millrace.api.keyed import expiring as expiring_state
from millrace.api.keyed.declared import ListState, State, Typed
from millrace.api.keyed.paged import PagedState
from millrace.api.keyed.plain import KeyedState
from millrace.errors import CorruptCheckpoint, EncodingError, KeyNotOwned, UnknownName
from millrace.state.task_state import FORMAT, LONGEST_CHAIN, TaskState, open_states

GROUPS = 4


class Count:
    state = State(default=0)
    lists = ListState()


class Point(NamedTuple):
    x: int


def opened(bolt: Any, owned: Any = range(GROUPS), now: float = 0.0) -> TaskState:
    state = open_states(bolt, stable_hash, owned, GROUPS, "count, task 3", lambda: now)
    assert state is not None
    return state


def keys_of(group: int, count: int = 1) -> list[str]:
    keys = (key for key in map(str, range(10_000)) if stable_hash(key) % GROUPS == group)
    return [next(keys) for _ in range(count)]


KEY, OTHER = keys_of(1, 2)


def restored(*pieces: bytes, bolt: Any = None) -> Any:
    bolt = bolt or Count()
    opened(bolt).restore(1, list(pieces))
    return bolt


def test_a_bolt_without_key_groups_has_an_empty_state_that_takes_some() -> None:
    bolt = Count()
    state = open_states(bolt, stable_hash, (), GROUPS, "count", lambda: 0.0)
    assert state is not None and not state.owned and vars(bolt)["state"] == {}
    state.restore(1, [])
    assert state.owned == {1}


def test_a_component_that_declares_none_has_no_state() -> None:
    assert open_states(object(), stable_hash, [1], GROUPS, "count", lambda: 0.0) is None


def test_nothing_dirty_gives_no_pieces() -> None:
    bolt = Count()
    task = opened(bolt)
    assert task.snapshot() == {}
    assert bolt.state[KEY] == 0
    assert task.snapshot() == {}
    bolt.state[KEY] = 1
    assert task.dirty() == {1: 1}
    assert list(task.snapshot()) == [1]
    assert bolt.state[KEY] == 1
    assert (task.snapshot(), task.dirty(), task.keys()) == ({}, {}, {1: 1})


def test_the_first_piece_is_whole_and_the_next_has_what_changed() -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state.update({KEY: 1, OTHER: 2})
    (whole, first), = task.snapshot().values()
    bolt.state[OTHER] += 1
    (second_whole, second), = task.snapshot().values()
    assert (whole, second_whole) == (True, False)
    assert msgspec.msgpack.decode(second) == [FORMAT, 1, False, {"state": [[OTHER], [3], [], []]}]
    assert restored(first, second).state == {KEY: 1, OTHER: 3}
    assert task.sizes() == {1: len(first) + len(second)}


def test_deleted_keys_are_in_the_delta_unless_they_have_come_again() -> None:
    bolt = Count()
    task = opened(bolt)
    keys = keys_of(1, 4)
    bolt.state.update(dict.fromkeys(keys, 1))
    (_, first), = task.snapshot().values()
    del bolt.state[keys[0]], bolt.state[keys[1]]
    bolt.state[keys[1]] = 5
    assert task.dirty() == {1: 2}
    (whole, second), = task.snapshot().values()
    assert not whole
    assert msgspec.msgpack.decode(second)[3]["state"] == [[keys[1]], [5], [], [keys[0]]]
    assert restored(first, second).state == {keys[1]: 5, keys[2]: 1, keys[3]: 1}


def test_lists_changed_in_place_are_in_the_delta() -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.lists.append(KEY, 1)
    bolt.lists.append(OTHER, 1)
    (_, first), = task.snapshot().values()
    assert isinstance(bolt.lists, PagedState) and not isinstance(bolt.state, PagedState)
    bolt.lists[KEY].append(2)
    (whole, second), = task.snapshot().values()
    assert not whole
    assert msgspec.msgpack.decode(second)[3] == {"lists": [[KEY], [[1, 2]], [], []]}
    assert restored(first, second).lists == {KEY: [1, 2], OTHER: [1]}


def test_chains_that_begin_together_end_when_they_are_long_one_after_another() -> None:
    bolt = Count()
    task = opened(bolt)
    keys = {group: keys_of(group, 50) for group in range(GROUPS)}
    ends: dict[int, list[int]] = {group: [] for group in keys}
    for number in range(2 * LONGEST_CHAIN + 1):
        for of_group in keys.values():
            bolt.state.update(dict.fromkeys(of_group[:1] if number else of_group, number + 1000))
        for group, (whole, _) in task.snapshot().items():
            if whole:
                ends[group].append(number)
    lengths = [second - first for of_group in ends.values() for first, second in pairwise(of_group)]
    assert set(lengths) <= set(range(LONGEST_CHAIN // 2 + 1, LONGEST_CHAIN + 1))
    assert len({second for _, second, *_ in ends.values()}) > 1


def test_the_last_pieces_are_deltas_however_long_the_chain_is() -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state.update({KEY: "x" * 10_000, OTHER: 0})
    pieces = [task.snapshot()[1][1]]
    bolt.state[OTHER] = "y" * 15_000
    (whole, delta), = task.last_pieces().values()
    assert not whole and restored(*pieces, delta).state == {KEY: "x" * 10_000, OTHER: "y" * 15_000}
    assert task.extract([1], ())[1] == (False, delta)


def test_a_chain_ends_when_its_deltas_outgrow_it() -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state.update({KEY: "x" * 10_000, OTHER: 0})
    kinds = []
    for number in range(4):
        bolt.state[OTHER] = f"{number}" * 6_000
        kinds.append(task.snapshot()[1][0])
    assert kinds == [True, False, False, False]
    bolt.state[OTHER] = ""
    assert not task.snapshot()[1][0]
    bolt.state[OTHER] = "y" * 6_000
    assert task.snapshot()[1][0]


def test_a_piece_is_whole_if_everything_has_changed() -> None:
    bolt = Count()
    task = opened(bolt)
    for number in range(3):
        bolt.state[KEY] = bolt.state[OTHER] = f"{number}"
        assert task.snapshot()[1][0]
    bolt.lists[KEY].append(1)
    assert not task.snapshot()[1][0], "but what another state has is not written again"


def test_lost_blobs_are_rewritten_whole() -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state.update({KEY: 1, OTHER: 2})
    task.snapshot()
    task.spoil([0, 1])
    (group, (whole, piece)), = task.snapshot().items()
    assert (group, whole) == (1, True)
    assert restored(piece).state == {KEY: 1, OTHER: 2}
    assert task.snapshot() == {}


def test_groups_that_are_asked_for_are_whole_and_there_though_they_are_clean() -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state.update({key: 1 for group in (1, 2) for key in keys_of(group, 3)})
    task.snapshot()
    assert {group: whole for group, (whole, _) in task.snapshot({1, 3}).items()} == {1: True}
    assert {group: whole for group, (whole, _) in task.snapshot(True).items()} == {1: True, 2: True}


@pytest.mark.parametrize("none", [False, (), set(), frozenset(), {}, range(0)])
def test_keys_are_not_counted_if_nothing_is_to_be_written_whole(none: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state.update(dict.fromkeys(keys_of(1, 9), 1))
    task.snapshot()
    counted = []
    monkeypatch.setattr(TaskState, "keys", lambda self: counted.append(self))
    bolt.state[KEY] = 2
    assert {group: whole for group, (whole, _) in task.snapshot(none).items()} == {1: False}
    bolt.state[KEY] = 3
    assert {group: whole for group, (whole, _) in task.extract({1}, none).items()} == {1: False}
    assert not counted


def test_a_group_moves_to_another_task() -> None:
    bolt, other = Count(), Count()
    task, target = opened(bolt), opened(other, owned=[3])
    bolt.state.update({key: 1 for group in (0, 1) for key in keys_of(group)})
    bolt.lists[KEY].append(1)
    (_, piece) = task.snapshot(True)[1]
    task.drop(1)
    target.restore(1, [piece])
    assert (task.owned, target.owned) == ({0, 2, 3}, {1, 3})
    assert (bolt.state, other.state, other.lists) == ({keys_of(0)[0]: 1}, {KEY: 1}, {KEY: [1]})
    with pytest.raises(KeyNotOwned):
        bolt.state[KEY]
    assert (task.snapshot(), target.snapshot()) == ({}, {})


def test_a_restore_replaces_what_was_there() -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state[KEY] = 1
    (_, piece), = task.snapshot().values()
    bolt.state.update({KEY: 2, OTHER: 3, keys_of(2)[0]: 4})
    task.restore(1, [piece])
    assert bolt.state == {KEY: 1, keys_of(2)[0]: 4}
    assert task.dirty() == {2: 1}
    task.restore(1, [])
    assert bolt.state == {keys_of(2)[0]: 4}


def test_a_failed_snapshot_forgets_nothing() -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state[KEY] = 1
    bolt.lists[OTHER].append(Counter())
    with pytest.raises(EncodingError, match=f"count, task 3: the value of '{OTHER}' in 'lists', a list, .*collections.Counter"):
        task.snapshot()
    bolt.lists[OTHER].clear()
    assert restored(task.snapshot()[1][1]).state == {KEY: 1}


@pytest.mark.parametrize("value", [object(), Counter(), Point(1), bytearray(), {frozenset(): 1}, [{1: (Point(1),)}]])
def test_a_value_that_would_not_come_back_as_it_was_is_refused(value: Any) -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state[KEY] = value
    with pytest.raises(EncodingError, match=r"plain types, or give the state a codec"):
        task.snapshot()


def test_a_codec_keeps_what_msgpack_cannot() -> None:
    class Points:
        state = State(codec=Typed(Point))

    bolt = Points()
    task = opened(bolt)
    bolt.state[KEY] = Point(1)
    (_, piece), = task.snapshot().values()
    assert type(restored(piece, bolt=Points()).state[KEY]) is Point
    bolt.state[KEY] = "no point"
    with pytest.raises(EncodingError, match=r"Does its codec, Typed\(Point\), fit"):
        task.snapshot()

    class Numbers:
        state = State(codec=Typed(int))

    with pytest.raises(CorruptCheckpoint, match=r"Has its codec, Typed\(int\), changed"):
        restored(piece, bolt=Numbers())


def test_expiry_times_are_restored() -> None:
    class Recent:
        state = State(ttl=10)

    bolt = Recent()
    task = opened(bolt, now=100)
    bolt.state[KEY] = 1
    (_, piece), = task.snapshot().values()
    for now, left in ((109, {KEY: 1}), (110, {})):
        later = Recent()
        opened(later, now=now).restore(1, [piece])
        assert later.state == left


def test_entries_that_expire_are_put_in_order_once_for_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recent:
        state = State(ttl=10)

    bolt, clock = Recent(), [100.0]
    task = open_states(bolt, stable_hash, range(GROUPS), GROUPS, "count", lambda: clock[0])
    assert task is not None
    for number in range(100):
        clock[0] += 0.05
        bolt.state[str(number)] = number
    pieces = task.snapshot()
    sorts: list[int] = []

    def counted(items: Any, **how: Any) -> list[Any]:
        ordered = sorted(items, **how)
        sorts.append(len(ordered))
        return ordered

    monkeypatch.setattr(expiring_state, "sorted", counted, raising=False)
    later = Recent()
    task = open_states(later, stable_hash, range(GROUPS), GROUPS, "count", lambda: clock[0])
    assert task is not None
    for group, (_, piece) in pieces.items():
        task.restore(group, [piece])
    clock[0] = 112.51
    assert later.state == {str(number): number for number in range(50, 100)}
    later.state["50"] = 0
    clock[0] = 115.01
    assert later.state == {"50": 0}
    assert sorts == [100]
    task.drop(stable_hash("50") % GROUPS)
    clock[0] += 20
    assert later.state == {}


def test_many_groups_are_restored_with_one_look_at_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state.update({str(number): number for number in range(100)})
    bolt.lists.append(KEY, 1)
    chains = {group: [piece] for group, (_, piece) in task.snapshot().items()}
    del bolt.state["0"]
    bolt.state.update({"7": 0, "new": 1})
    looks: list[int] = []
    align = KeyedState._align
    monkeypatch.setattr(KeyedState, "_align", lambda state, keys: (looks.append(len(keys)), align(state, keys)))
    task.restore_all(chains)
    assert looks == [100]
    assert bolt.state == {str(number): number for number in range(100)}
    assert bolt.lists == {KEY: [1]}
    assert task.snapshot() == {}
    with pytest.raises(CorruptCheckpoint):
        task.restore_all({0: [], 1: chains[1], 2: [b""]})
    assert len(bolt.state) == 100, "if one cannot be read, none is replaced"


def test_a_large_state_is_restored_as_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state.update({str(number): number for number in range(20)})
    pieces = task.snapshot()
    monkeypatch.setattr("millrace.api.keyed.plain.PAGED_ABOVE", 10)
    later = Count()
    task = opened(later)
    for group, (_, piece) in pieces.items():
        task.restore(group, [piece])
    assert isinstance(later.state, PagedState)
    assert later.state == bolt.state
    assert task.snapshot() == {}


def test_people_look_up_values_without_touching_them() -> None:
    bolt = Count()
    task = opened(bolt, owned=[1])
    bolt.lists[KEY].append(1)
    task.snapshot()
    assert task.lookup("lists", KEY) == [1]
    assert task.dirty() == {}
    with pytest.raises(KeyError):
        task.lookup("state", OTHER)
    with pytest.raises(KeyNotOwned):
        task.lookup("state", keys_of(2)[0])
    with pytest.raises(UnknownName, match="it has 'state', 'lists'"):
        task.lookup("stat", KEY)
    assert task.names == ("state", "lists")


def test_invalid_bytes_are_refused_and_change_nothing() -> None:
    bolt = Count()
    task = opened(bolt)
    bolt.state.update({KEY: 1, OTHER: 2})
    (_, first), = task.snapshot().values()
    bolt.state[KEY] = 3
    (_, delta), = task.snapshot().values()
    pack = msgspec.msgpack.encode
    for pieces, why in (
        ([b""], "cannot be read"), ([first[:-1]], "cannot be read"), ([delta], "begins with a whole piece"),
        ([first, b"\xc1"], "piece 1 .*cannot be read"), ([pack([FORMAT, 2, True, {}])], "belongs to key group 2"),
        ([pack([FORMAT + 1, 1, True, {}])], "format 2"),
        ([pack([FORMAT, 1, True, {"state": [["a"], [], [], []]}])], "1 keys, 0 values"),
        ([pack([FORMAT, 1, True, {"other": [["a"], [1], [], []]}])], "a state 'other'"),
        ([pack([FORMAT, 1, True, {"state": [[{}], [1], [], []]}])], "unhashable"),
        ([pack([FORMAT, 1, True, {"state": [["a"], [msgspec.msgpack.Ext(99, b"")], [], []]}])], "unknown extension 99"),
    ):
        with pytest.raises(CorruptCheckpoint, match=why):
            task.restore(1, pieces)
    assert bolt.state == {KEY: 3, OTHER: 2}


def test_a_large_state_turns_into_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.api.keyed.plain.PAGED_ABOVE", 2)
    bolt = Count()
    task = opened(bolt)
    bolt.state.update(dict.fromkeys(keys_of(1, 3), 1))
    assert type(bolt.state) is KeyedState
    before = bolt.state
    task.snapshot()
    assert type(bolt.state) is PagedState and bolt.state is before
    assert bolt.state[KEY] == 1
    assert task.dirty() == {}, "reading a number changes nothing"

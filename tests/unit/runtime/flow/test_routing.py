"""Routing of rows and Arrow batches to tasks by each grouping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.errors import EmitError
from millrace.model.plan import initial_key_groups
from millrace.runtime.flow import routing
from millrace.runtime.flow.channel import Channel
from millrace.runtime.flow.routing import Route, make_route

FIELDS = ("key", "n")
GROUPINGS = [Grouping.SHUFFLE, Grouping.LOCAL_OR_SHUFFLE, Grouping.NONE, Grouping.GLOBAL, Grouping.fields("key"),
             Grouping.fields("key", "n"), Grouping.fields("n", "key")]


def first_and_last(values: Sequence[Any], tasks: int) -> list[int]:
    return sorted({0, tasks - 1})


def by_number(values: Sequence[Any], tasks: int) -> list[int]:
    return [values[1] % tasks]


def nobody(values: Sequence[Any], tasks: int) -> list[int]:
    return []


def beyond(values: Sequence[Any], tasks: int) -> list[int]:
    return [values[1]]


def channels(tasks: int) -> list[Channel]:
    return [Channel(None, index, 1, f"bolt[{index}]", 4) for index in range(tasks)]  # type: ignore[arg-type]


def route(grouping: Grouping, tasks: int = 4, to: list[Channel] | None = None, groups: int = 128) -> Route:
    return make_route(grouping, to or channels(tasks), FIELDS, initial_key_groups(groups, tasks))


def rows(size: int) -> list[tuple[Any, ...]]:
    return [(f"key {n % 17}", n) for n in range(size)]


def as_batch(tuples: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return pa.record_batch([pa.array([row[i] for row in tuples]) for i in (0, 1)], names=list(FIELDS))


def shares(over: Route, tuples: list[tuple[Any, ...]], arrow: bool = False) -> dict[int, list[tuple[Any, ...]]]:
    """Return the tuples that each task index receives."""
    parts = over.split_batch(as_batch(tuples)) if arrow else over.split(tuples)
    by_task: dict[int, list[tuple[Any, ...]]] = {}
    for channel, part in parts:
        assert channel.target not in by_task, "one share for each task"
        by_task[channel.target] = routing.rows_of_batch(part) if isinstance(part, pa.RecordBatch) else list(part)
    return by_task


def everything(by_task: dict[int, list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    return sorted(row for share in by_task.values() for row in share)


# ---- every grouping ----


@pytest.mark.parametrize("arrow", [False, True], ids=["rows", "arrow"])
@pytest.mark.parametrize("grouping", GROUPINGS, ids=repr)
def test_every_tuple_goes_to_exactly_one_task_in_order(grouping: Grouping, arrow: bool) -> None:
    """With one task or several, and chunks that are not divided (up to 64 tuples) or are."""
    for tasks, size in ((1, 1), (1, 65), (3, 1), (3, 64), (3, 65), (8, 1000)):
        over = route(grouping, tasks)
        for _ in range(2):  # the second chunk finds keys that the route remembers
            by_task = shares(over, rows(size), arrow)
            assert everything(by_task) == sorted(rows(size))
            assert set(by_task) <= set(range(tasks))
            assert all(share == sorted(share, key=lambda row: row[1]) for share in by_task.values())


@pytest.mark.parametrize("arrow", [False, True], ids=["rows", "arrow"])
def test_all_means_every_task(arrow: bool) -> None:
    assert shares(route(Grouping.ALL), rows(100), arrow) == {task: rows(100) for task in range(4)}


@pytest.mark.parametrize("arrow", [False, True], ids=["rows", "arrow"])
def test_global_means_the_first_task(arrow: bool) -> None:
    assert shares(route(Grouping.GLOBAL), rows(100), arrow) == {0: rows(100)}


# ---- shuffle ----


@pytest.mark.parametrize("size", [1, 7, 64, 65, 100, 4001])
def test_shuffle_is_even_whatever_the_size_of_the_chunks(size: int) -> None:
    over, total = route(Grouping.SHUFFLE), Counter()
    for _ in range(40):
        total.update({task: len(share) for task, share in shares(over, rows(size)).items()})
    assert max(total.values()) - min(total.values()) <= max(size, 40)
    assert set(total) == {0, 1, 2, 3}


@given(st.lists(st.integers(1, 300), min_size=20, max_size=60))
def test_shuffle_is_even_for_chunks_of_mixed_sizes(sizes: list[int]) -> None:
    over, total = route(Grouping.SHUFFLE, tasks=3), Counter({0: 0, 1: 0, 2: 0})
    for size in sizes:
        total.update({task: len(share) for task, share in shares(over, rows(size)).items()})
    assert max(total.values()) - min(total.values()) <= 64 + len(sizes)


def test_a_channel_that_is_new_does_not_get_everything() -> None:
    to = channels(2)
    to[0].tuples = 1_000_000  # the other is new: its task has just been placed anew
    over = route(Grouping.SHUFFLE, 2, to)
    assert Counter(task for _ in range(100) for task in shares(over, rows(10))) == {0: 50, 1: 50}


def test_a_small_chunk_goes_where_the_fewest_tuples_are_on_their_way() -> None:
    to = channels(3)
    to[0].unconsumed, to[1].unconsumed, to[2].unconsumed = 30, 10, 20
    over = route(Grouping.SHUFFLE, 3, to)
    assert [list(shares(over, rows(5))) for _ in range(2)] == [[1], [1]], "nothing is counted as sent by the test's channels"
    to[1].full = True
    assert list(shares(over, rows(5))) == [2]


def test_full_channels_share_equally_what_is_sent_all_the_same() -> None:
    to = channels(2)
    to[0].unconsumed, to[1].unconsumed = 1000, 0
    to[0].full = to[1].full = True
    over = route(Grouping.SHUFFLE, 2, to)
    assert Counter(task for _ in range(100) for task in shares(over, rows(10))) == {0: 50, 1: 50}


def test_local_or_shuffle_prefers_tasks_in_the_same_worker() -> None:
    to = channels(4)
    to[1].local = to[2].local = object()  # type: ignore[assignment]  # any task will do
    by_task = shares(route(Grouping.LOCAL_OR_SHUFFLE, 4, to), rows(1000))
    assert set(by_task) == {1, 2}
    assert everything(by_task) == sorted(rows(1000))


# ---- fields ----

EQUAL = [[1, 1.0, True], [0, 0.0, -0.0, False], [2**70, float(2**70)], ["a", "a"], [None, None], [b"a", b"a"],
         [[1, 2], (1, 2), [1.0, 2]], [{"a": 1}, {"a": 1.0}], [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [2**80, 2**80],
         [{"a": 2**70}, {"a": 2**70}], ["\ud800", "\ud800"], [10**5000, 10**5000]]


def tasks_of(key: Any, tasks: int = 7) -> set[int]:
    """Return the tasks for tuples with this key, from routes that have cached it and routes that have not."""
    old, both = route(Grouping.fields("key"), tasks), [(key, 1), ("other", 2), ([], 3), (key, 4)]
    return {task for over in (old, old, route(Grouping.fields("key"), tasks))
            for task, share in shares(over, both).items() for row in share if row[0] is key}


@pytest.mark.parametrize("keys", EQUAL, ids=lambda keys: type(keys[0]).__name__)
def test_equal_keys_go_to_the_same_task(keys: list[Any]) -> None:
    for tasks in (2, 3, 7, 16):
        assert len({task for key in keys for task in tasks_of(key, tasks)}) == 1


def test_keys_that_are_not_equal_are_spread() -> None:
    by_task = shares(route(Grouping.fields("key"), 4), [(f"word {n}", n) for n in range(4000)])
    assert set(by_task) == {0, 1, 2, 3}
    assert all(700 < len(share) < 1300 for share in by_task.values())


@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(),
                          st.lists(st.integers())), min_size=1))
def test_a_key_has_one_task_wherever_it_stands_in_the_chunk(keys: list[Any]) -> None:
    tuples = [(key, n) for n, key in enumerate(keys)]
    by_task = shares(route(Grouping.fields("key")), tuples)
    together = {row[1]: task for task, share in by_task.items() for row in share}
    for row in tuples:
        assert set(shares(route(Grouping.fields("key")), [row])) == {together[row[1]]}


def test_several_fields_count_together_and_in_their_order() -> None:
    over = route(Grouping.fields("n", "key"), tasks=16)
    one_by_one = {row: next(iter(shares(over, [row]))) for row in rows(500)}
    assert {row: task for task, share in shares(over, rows(500)).items() for row in share} == one_by_one
    other = route(Grouping.fields("key", "n"), tasks=16)
    assert one_by_one != {row: next(iter(shares(other, [row]))) for row in rows(500)}


def test_several_fields_of_which_one_cannot_be_hashed() -> None:
    tuples = [([n % 3], n % 5) for n in range(100)]
    by_task = shares(route(Grouping.fields("key", "n")), tuples)
    assert everything(by_task) == sorted(tuples)
    keys = [{(str(row[0]), row[1]) for row in share} for share in by_task.values()]
    assert sum(map(len, keys)) == len(set.union(*keys)) == 15


def test_the_task_of_a_key_is_the_same_in_every_process_and_release() -> None:
    """Restored keyed state depends on this value, so it must never change."""
    keys = ["the", "of", "and", "", "ß", 0, 1, -1, 2**40, 1.5, None, b"the", [1, "x"]]
    assert [next(iter(tasks_of(key, 8))) for key in keys] == [0, 1, 0, 6, 4, 0, 1, 0, 1, 5, 3, 1, 2]


ARROW_KEYS = {
    "text": pa.array(["a", "b", None, "a"]), "int8": pa.array([1, 2, None, 1], pa.int8()),
    "uint64": pa.array([2**64 - 1, 2, None, 2**64 - 1], pa.uint64()), "float": pa.array([1.0, 2.5, None, 1.0]),
    "bool": pa.array([True, False, None, True]), "binary": pa.array([b"a", b"b", None, b"a"]),
    "nothing": pa.array([None] * 4), "dictionary": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    "list": pa.array([[1], [2], None, [1]]), "struct": pa.array([{"x": 1}, {"x": 2}, None, {"x": 1}]),
    "large text": pa.array(["a", "b", None, "a"], pa.large_string()),
    "slice": pa.array(["x", "a", "b", None, "a"]).slice(1),
    "dictionary with null": pa.DictionaryArray.from_arrays([2, 0, 1, None], pa.array(["a", None, "b"])),
    "dictionary of numbers": pa.DictionaryArray.from_arrays(pa.array([2, 0, 0, 1], pa.uint8()), pa.array([7, 8, 9])),
    "small part of a dictionary": pa.array(list("xyzabcdefgh")).dictionary_encode().slice(3, 4),
}


@pytest.mark.parametrize("tasks", [2, 16])
@pytest.mark.parametrize("names", [["key"], ["key", "n"]], ids=["one field", "two fields"])
@pytest.mark.parametrize("kind", ARROW_KEYS)
def test_a_key_in_a_batch_goes_where_it_goes_in_a_row(kind: str, names: list[str], tasks: int) -> None:
    batch = pa.record_batch([ARROW_KEYS[kind], pa.array([1, 2, 3, 1])], names=list(FIELDS))
    over = route(Grouping.fields(names), tasks)
    in_batch = {channel.target: routing.rows_of_batch(part) for channel, part in over.split_batch(batch)}
    in_rows = {channel.target: list(part) for channel, part in over.split(routing.rows_of_batch(batch))}
    assert in_batch == in_rows


def test_keys_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "KEYS_REMEMBERED", 100)
    over = route(Grouping.fields("key"))
    first = shares(over, [(n, n) for n in range(50)])
    for start in range(0, 10_000, 1000):
        assert sum(map(len, shares(over, [(n, n) for n in range(start, start + 1000)]).values())) == 1000
        assert len(over._memory) <= 100  # type: ignore[attr-defined]
    assert shares(over, [(n, n) for n in range(50)]) == first


# ---- custom ----


@pytest.mark.parametrize("arrow", [False, True], ids=["rows", "arrow"])
def test_a_custom_grouping_names_the_tasks(arrow: bool) -> None:
    assert shares(route(Grouping.custom(first_and_last)), rows(9), arrow) == {0: rows(9), 3: rows(9)}
    by_task = shares(route(Grouping.custom(by_number)), rows(9), arrow)
    assert by_task == {task: [row for row in rows(9) if row[1] % 4 == task] for task in range(4)}
    assert shares(route(Grouping.custom(nobody)), rows(9), arrow) == {}


def test_a_custom_grouping_is_asked_even_if_there_is_one_task() -> None:
    assert shares(route(Grouping.custom(nobody), 1), rows(9)) == {}


@pytest.mark.parametrize("number", [4, -1])
def test_a_custom_grouping_that_names_an_unknown_task_is_refused(number: int) -> None:
    with pytest.raises(EmitError, match=rf"test_routing:beyond chose task {number} for \('key', {number}\); "
                                        "the tasks are 0 to 3"):
        route(Grouping.custom(beyond)).split([("key", number)])

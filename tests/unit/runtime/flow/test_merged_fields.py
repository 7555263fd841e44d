"""Merging of hot keys, or of all, at their senders: against the route that merges nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import nan
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import stable_hash
from millrace.errors import TopologyError
from millrace.runtime.flow.channel import Channel
from millrace.runtime.flow.combined import Combined
from millrace.runtime.flow.heavy_keys import ENOUGH, HeavyKeys
from millrace.runtime.flow.merged_fields import ByMergedFields, Merge, MergedKeys
from millrace.runtime.flow.routing import SAMPLED, ByFields

GROUPS = 8


class Sums:
    """Appends, so that the order is seen."""

    @staticmethod
    def merge(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return one[0], one[1] + other[1]


def routes(tasks: int = 3) -> tuple[ByFields, ByMergedFields, list[BaseException], list[int], np.ndarray]:
    channels = [Channel(None, index, 1, "", 4) for index in range(tasks)]  # type: ignore[arg-type]
    plain = ByFields(channels, [0], [group % tasks for group in range(GROUPS)])
    errors, saved, counts = list[BaseException](), list[int](), np.zeros(GROUPS, np.int64)
    merge = Merge(f"{__name__}:Sums", tuple, errors.append)
    return plain, ByMergedFields(plain, counts, HeavyKeys(), merge, saved.append), errors, saved, counts


def by_key(parts: Any) -> dict[tuple[int, Any], list[int]]:
    """The numbers of each key that were sent to each channel, in order."""
    sent = defaultdict[tuple[int, Any], list[int]](list)
    for channel, rows in parts:
        for key, numbers in rows:
            sent[channel.target, key] += numbers
    return sent


def learn(route: ByMergedFields, rows: list[tuple[Any, ...]]) -> None:
    """Let the route see enough of a stream to know its hot keys."""
    for _ in range(SAMPLED * ENOUGH // len(rows) + 1):
        list(route.split(rows))
    route.count()


@given(st.lists(st.lists(st.integers(0, 30).map(lambda key: max(key - 20, 0)), min_size=1, max_size=40), max_size=200))
def test_the_same_comes_to_the_same_tasks_in_the_same_order_of_each_key(chunks: list[list[int]]) -> None:
    plain, merged, errors, saved, _ = routes()
    learn(merged, [(key, [0]) for key in range(11) for _ in range(40)])
    saved.clear()
    sent = 0
    for number, keys in enumerate(chunks):
        rows = [(key, [number * 100 + index]) for index, key in enumerate(keys)]
        parts = list(merged.split(rows))
        sent += sum(len(part) for _, part in parts)
        assert by_key(parts) == by_key(plain.split(rows)) and rows[0][1] == [number * 100], "rows are not changed"
    assert not errors and sent + sum(saved) == sum(map(len, chunks))


def test_a_hot_key_is_one_tuple_of_a_chunk_and_others_stay() -> None:
    _, merged, _, saved, counts = routes()
    rows = [("hot" if number % 4 else f"cold {number}", [number]) for number in range(400)]
    learn(merged, rows)
    counts[:] = 0
    sent = Counter(key for _ in range(SAMPLED) for _, part in merged.split(rows) for key, _ in part)
    merged.count()
    assert sent["hot"] == SAMPLED == len(saved) and len(sent) == 101 and set(saved) == {299}
    assert counts.sum() == pytest.approx(sent.total(), rel=0.02), "key groups are balanced by what is sent"


def test_hot_keys_of_batches_are_counted_though_nothing_is_merged() -> None:
    """A sender may send both rows and batches."""
    _, merged, _, saved, counts = routes()
    rows = [("hot" if number % 4 else f"cold {number}", [number]) for number in range(400)]
    learn(merged, rows)
    counts[:], hot = 0, stable_hash("hot") % GROUPS
    saved.clear()
    batch = pa.record_batch({"key": [key for key, _ in rows], "numbers": [numbers for _, numbers in rows]})
    sent = sum(part.num_rows for _ in range(SAMPLED) for _, part in merged.split_batch(batch))
    merged.count()
    assert sent == counts.sum() == 400 * SAMPLED and saved == []
    assert counts[hot] == pytest.approx(SAMPLED * sum(stable_hash(key) % GROUPS == hot for key, _ in rows), rel=0.05)
    before = counts.copy()
    chunks = sum(len(part) for _ in range(SAMPLED) for _, part in merged.split(rows))
    merged.count()
    assert (counts - before).sum() == pytest.approx(chunks, rel=0.02), "rows are counted as they are merged"


def test_keys_that_cool_down_are_merged_no_more_also_when_keys_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.runtime.flow.routing.KEYS_REMEMBERED", 3)
    monkeypatch.setattr("millrace.runtime.flow.heavy_keys.RECENT", 300)
    plain, merged, _, saved, _ = routes()
    for hot in ("one", "two"):
        rows = [(hot, [1])] * 300 + [(f"{hot} {number}", [1]) for number in range(30)]
        for _ in range(20):
            learn(merged, rows)
        saved.clear()
        for _ in range(3):
            assert by_key(merged.split(rows)) == by_key(plain.split(rows))
        assert saved == [299] * 3
    assert set(merged._hot) == {"two"}


def test_a_key_that_is_not_a_number_is_merged() -> None:
    _, merged, errors, saved, _ = routes()
    learn(merged, [(nan, [1])] * 10)
    list(merged.split([(nan, [1])] * 10))
    assert not errors and saved[-1] == 9


def test_keys_that_are_lists_are_sent_as_they_are() -> None:
    plain, merged, _, saved, _ = routes()
    rows: list[tuple[Any, ...]] = [(["a", "list"], [number]) for number in range(10)]
    learn(merged, rows)
    assert [(channel, list(part)) for channel, part in merged.split(rows)] == [
        (channel, list(part)) for channel, part in plain.split(rows)]
    assert saved == []


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=40), max_size=20))
def test_all_keys_are_merged_in_the_order_of_their_first_tuples(chunks: list[list[int]]) -> None:
    errors, saved = list[BaseException](), list[int]()
    plain = routes()[0]
    combined = Combined(plain, MergedKeys([0], Merge(f"{__name__}:Sums", tuple, errors.append)), saved.append)
    for keys in chunks:
        rows = [(key, [number]) for number, key in enumerate(keys)]
        parts = list(combined.split(rows))
        assert by_key(parts) == by_key(plain.split(rows)) and not errors
        sent = [key for _, part in parts for key, _ in part]
        assert sorted(sent) == sorted(set(keys)) and sum(saved) == len(keys) - len(sent)
        saved.clear()
        assert [[key for key in dict.fromkeys(keys) if key in of_task] for of_task in (
            [key for key, _ in part] for _, part in parts)] == [[key for key, _ in part] for _, part in parts]


def test_a_merge_leaves_batches_and_keys_that_are_lists_as_they_are() -> None:
    errors = list[BaseException]()
    merged = MergedKeys([0], Merge(f"{__name__}:Sums", tuple, errors.append))
    batch = pa.record_batch({"key": ["a", "a"], "numbers": [[1], [2]]})
    rows: list[tuple[Any, ...]] = [(["a"], [1]), (["a"], [2])]
    assert merged.batch(batch) is batch and merged.rows(rows) is rows and not errors


def test_code_that_cannot_be_imported_is_reported_once() -> None:
    errors = list[BaseException]()
    merge = Merge("no.such.module:Bolt", tuple, errors.append)
    rows: list[tuple[Any, ...]] = [("a", 1), ("a", 2)]
    assert merge(rows, lambda row: row[0]) == rows == merge(rows, lambda row: row[0])
    (error,) = errors
    assert isinstance(error, TopologyError)

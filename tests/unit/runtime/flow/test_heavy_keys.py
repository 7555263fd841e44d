"""The sketch of frequent keys against the truth."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import stable_hash
from millrace.runtime.flow.channel import Channel
from millrace.runtime.flow.heavy_keys import KEPT, LONGEST_KEY, SHOWN, HeavyKeys
from millrace.runtime.flow.routing import SAMPLED, ByFields, BySampledFields

GROUPS = 8


def counted(keys: list[int]) -> list[tuple[int, int, int]]:
    return [(key, key % GROUPS, count) for key, count in Counter(keys).items()]


chunks = st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=60), min_size=1, max_size=30)


@given(chunks)
def test_shares_are_in_order_and_none_is_larger_than_all(stream: list[list[int]]) -> None:
    sketch = HeavyKeys()
    for keys in stream:
        sketch.add(counted(keys))
    shares = sketch.shares()
    assert len(shares) <= SHOWN and [share for *_, share in shares] == sorted((share for *_, share in shares), reverse=True)
    assert all(1 / KEPT < share <= 1 for *_, share in shares)
    assert all(group == int(key) % GROUPS for key, group, _ in shares)


@given(chunks, st.integers(1, 40))
def test_a_key_that_has_most_of_every_chunk_comes_first(stream: list[list[int]], more: int) -> None:
    """The sketch never counts less than there was of it, and more only by what it has evicted."""
    sketch, total, hot = HeavyKeys(), 0, 0
    for keys in stream:
        chunk = keys + [999] * (len(keys) + more)
        sketch.add(counted(chunk))
        total, hot = total + len(chunk), hot + len(keys) + more
    key, group, share = sketch.shares()[0]
    assert (key, group) == ("999", 999 % GROUPS) and share >= hot / total - 1e-9


def test_keys_that_are_all_rare_are_not_shown() -> None:
    sketch = HeavyKeys()
    for start in range(0, 10_000, 100):
        sketch.add(counted(list(range(start, start + 100))))
    assert sketch.shares() == []


def test_it_follows_a_stream_whose_hot_key_changes() -> None:
    sketch = HeavyKeys()
    for hot in (1, 2):
        for _ in range(100):
            sketch.add([(hot, hot, 900), *((key, 0, 1) for key in range(100, 200))])
    assert sketch.shares()[0][:2] == ("2", 2) and sketch.shares()[0][2] > 0.7


def test_a_long_key_is_cut_and_a_strange_one_can_be_encoded() -> None:
    sketch = HeavyKeys()
    sketch.add([("x" * 500, 3, 5), ("\ud800", 4, 5)])
    texts = [key for key, *_ in sketch.shares()]
    assert len(texts[0]) == LONGEST_KEY and texts[0].endswith("...")
    texts[1].encode()


def test_a_route_adds_the_keys_of_the_chunks_that_it_counts() -> None:
    channels = [Channel(None, index, 1, "", 4) for index in range(2)]  # type: ignore[arg-type]
    plain = ByFields(channels, [0], [0, 1] * 4)
    for key in ("the", 7, ["a", "list"], {"a": "dict"}):
        counts, heavy = np.zeros(8, np.int64), HeavyKeys()
        route, group = BySampledFields(plain, counts, heavy), stable_hash(key) % 8
        rows = [(key, number) for number in range(10)]
        for _ in range(SAMPLED):
            assert sum(len(part) for _, part in route.split(rows)) == 10
        assert counts.sum() == 0, "keys of the sample are counted together"
        route.count()
        assert counts[group] == counts.sum() == SAMPLED * 10, "one tuple stands for many"
        (text, found, share), = heavy.shares()
        assert str(key if isinstance(key, list | dict) else repr(key)) in text and (found, share) == (group, 1.0)


@given(st.lists(st.integers(0, 300), max_size=60), st.booleans())
def test_the_sample_has_every_so_many_tuples_however_they_are_cut_into_chunks(sizes: list[int], arrow: bool) -> None:
    channels = [Channel(None, index, 1, "", 4) for index in range(2)]  # type: ignore[arg-type]
    counts = np.zeros(8, np.int64)
    route = BySampledFields(ByFields(channels, [0], [0, 1] * 4), counts, HeavyKeys())
    rows, truth = [(f"key {number}", number) for number in range(sum(sizes))], np.zeros(8, np.int64)
    for key, _ in rows[SAMPLED // 2::SAMPLED]:
        truth[stable_hash(key) % 8] += SAMPLED
    at = 0
    for size in sizes:
        chunk, at = rows[at:at + size], at + size
        columns = [pa.array([row[0] for row in chunk], pa.string()), pa.array([row[1] for row in chunk], pa.int64())]
        parts = route.split_batch(pa.record_batch(columns, ["k", "n"])) if arrow else route.split(chunk)
        assert sum(len(part) for _, part in parts) == size
    route.count()
    assert counts.tolist() == truth.tolist()

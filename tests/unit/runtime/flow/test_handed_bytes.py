"""The size of tuples that are handed over: an estimate that is exact for equal rows and never falls."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.runtime.flow.handed_bytes import REMEMBERED_CHUNKS, SAMPLED_ROWS, HandedBytes
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_batch, encode_extended, encode_rows


def handed(*chunks: list[Any], form: int = wire.ROWS) -> HandedBytes:
    sizes = HandedBytes()
    for rows in chunks:
        sizes.tuples += len(rows)
        sizes.sample(rows, len(rows), form)
    return sizes


def test_of_a_small_chunk_the_size_is_exact() -> None:
    rows = [("a" * n, n) for n in range(SAMPLED_ROWS)]
    assert handed(rows).total() == len(encode_rows(rows))


def test_of_equal_rows_it_is_as_if_they_were_sent() -> None:
    rows = [("word", 1)] * 1000
    head = len(encode_rows(rows[:SAMPLED_ROWS])) / SAMPLED_ROWS - len(encode_rows([rows[0]])) + 1  # of the list itself
    assert handed(rows).total() == pytest.approx(len(encode_rows(rows)), abs=1000 * head)


def test_decimals_and_dates_are_encoded_as_such() -> None:
    rows = [(date(2026, 1, 1),)] * 4
    assert handed(rows, form=wire.EXTENDED_ROWS).total() == len(encode_extended(rows)) != len(encode_rows(rows))


def test_an_arrow_batch_is_encoded_as_a_whole() -> None:
    batch, sizes = pa.record_batch([pa.array(range(1000))], names=["n"]), HandedBytes()
    sizes.tuples += 1000
    sizes.sample(batch, 1000, wire.ARROW)
    assert sizes.total() == len(encode_batch(batch))


def test_chunks_that_cannot_be_encoded_tell_nothing() -> None:
    sizes = handed([("\ud800",)])
    assert sizes.total() == 0
    sizes.tuples += 1
    sizes.sample([("ab",)], 1, wire.ROWS)
    assert sizes.total() == 2 * len(encode_rows([("ab",)])), "tuples before the first sample count as well"


def test_old_samples_fade() -> None:
    sizes = handed(*([("a" * 30,)] for _ in range(REMEMBERED_CHUNKS)))
    sizes.total()
    for _ in range(20 * REMEMBERED_CHUNKS):
        sizes.sample([("a",)], 1, wire.ROWS)
    before = sizes.total()
    sizes.tuples += 1000
    assert sizes.total() - before == pytest.approx(1000 * len(encode_rows([("a",)])), rel=0.01)


@given(st.lists(st.lists(st.text(max_size=40), min_size=1, max_size=60), min_size=1, max_size=40))
def test_it_never_falls_and_lies_between_the_smallest_and_the_largest_row(chunks: list[list[str]]) -> None:
    sizes, widths, last = HandedBytes(), [], 0
    for texts in chunks:
        rows = [(each,) for each in texts]
        widths += [len(encode_rows([row])) for row in rows]
        sizes.tuples += len(rows)
        sizes.sample(rows, len(rows), wire.ROWS)
        assert sizes.total() >= last
        last = sizes.total()
    low, high = min(widths) - 1, max(widths) + 3  # the head of a list of rows has 1 to 3 bytes
    assert low * sizes.tuples - 1 <= last <= high * sizes.tuples + 1

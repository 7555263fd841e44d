"""The bytes that a held chunk counts for, by how it came."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millrace.runtime.flow.channel import UNTRACKED, Delivery
from millrace.runtime.tasks.inbox import NOWHERE, _size
from millrace.runtime.wire import messages as wire

TEXT = "x" * 10_000


def size_of(body: Any, form: int = wire.ROWS, local: bool = True) -> int:
    return _size(Delivery(NOWHERE, 0, body, 1, form, local, 0, UNTRACKED))


def test_rows_of_the_same_worker_count_with_everything_in_them() -> None:
    assert 10_000 <= size_of([(TEXT, 1)]) < 11_000
    assert 30_000 <= size_of([({"text": [TEXT, {TEXT: TEXT}]}, None)]) < 31_000
    assert 20_000 <= size_of([(TEXT,), [TEXT]]) < 21_000


def test_many_rows_count_by_some_of_them() -> None:
    assert 10_000_000 <= size_of([(TEXT, number) for number in range(1000)]) < 10_500_000
    half = size_of([(TEXT if number % 2 else "", number) for number in range(1001)])
    assert 3_000_000 <= half < 7_000_000


def test_a_batch_of_the_same_worker() -> None:
    batch = pa.record_batch({"text": [TEXT, TEXT]})
    assert size_of(batch, wire.ARROW) == batch.nbytes >= 20_000


def test_a_chunk_from_another_worker_counts_as_it_was_sent() -> None:
    assert size_of(b"12345", local=False) == 5

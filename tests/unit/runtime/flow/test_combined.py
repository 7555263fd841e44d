"""The route that combines chunks: it passes on what is left, and rests while few tuples are saved."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from millrace.runtime.flow.aggregates import Aggregates
from millrace.runtime.flow.channel import Channel
from millrace.runtime.flow.combined import JUDGED, REST, Combined
from millrace.runtime.flow.routing import ToOne, rows_of_batch

SIZE = 50


class Sent:
    """Sends chunks through a combined route. `arrow`: they are batches."""

    def __init__(self, arrow: bool) -> None:
        self.arrow, self.saved, self.errors = arrow, 0, list[BaseException]()
        channel = Channel(None, 0, 1, "", 4)  # type: ignore[arg-type]
        self.route = Combined(ToOne([channel]), Aggregates(("key", "n"), [0], (("n", "sum"),), self.errors.append), self.count)

    def count(self, saved: int) -> None:
        self.saved += saved

    def send(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if not self.arrow:
            return [row for _, part in self.route.split(rows) for row in part]
        batch = pa.record_batch([pa.array(column) for column in zip(*rows, strict=True)], names=["key", "n"])
        return [row for _, part in self.route.split_batch(batch) for row in rows_of_batch(part)]

    def chunks(self, keys: int, number: int) -> int:
        """Send that many chunks, and return how many of them were combined. The sums must be right in any case."""
        combined = 0
        for _ in range(number):
            rows = self.send([(place % keys, 1) for place in range(SIZE)])
            assert sum(n for _, n in rows) == SIZE and {key for key, _ in rows} == set(range(keys))
            combined += len(rows) < SIZE
        return combined


@pytest.fixture(params=[False, True], ids=["rows", "arrow"])
def sent(request: pytest.FixtureRequest) -> Sent:
    return Sent(request.param)


def test_what_is_saved_is_counted(sent: Sent) -> None:
    assert sent.send([("a", 1), ("b", 2), ("a", 3)]) == [("a", 4), ("b", 2)]
    assert sent.send([("a", 1)]) == [("a", 1)]
    assert sent.saved == 1 and not sent.errors


def test_every_chunk_is_combined_while_that_saves_tuples(sent: Sent) -> None:
    number = 3 * JUDGED // SIZE
    assert sent.chunks(keys=SIZE // 2, number=number) == number


def test_it_rests_where_most_keys_differ_and_goes_on_when_they_do_not(sent: Sent) -> None:
    judged = JUDGED // SIZE
    assert sent.chunks(SIZE - 1, judged) == judged, "one of fifty tuples is saved"
    assert sent.chunks(1, judged * REST) == 0, "it has not noticed yet that it would save most"
    assert sent.chunks(1, 2 * judged) == 2 * judged

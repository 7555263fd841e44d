"""The reader of a tap goes on when the topology's driver is killed and resumed: no row is missing, none comes twice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from millrace.errors import MillraceError
from millrace.model.graph import graph_of
from millrace.runtime.taps.reader import Offset
from millrace.spark.sources.stream import TapOptions, TapStreamReader
from support.processes.tap_driver import TapDriver
from support.topologies.audited import SECONDS
from support.topologies.tapped import WORDS, CountedTap

LIMIT = 600
SCHEMA = StructType([StructField("number", LongType()), StructField("word", StringType()), StructField("count", LongType())])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., TapDriver]]:
    name, drivers = f"tapped-{os.getpid()}", list[TapDriver]()
    config = {"limit": LIMIT, "rate": 200.0, "topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.1}

    def make(resume: bool = False) -> TapDriver:
        drivers.append(TapDriver(name, tmp_path / "store", graph_of(CountedTap, "counted", config=config), resume))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


class Reader:
    """Calls the source as Spark does: a batch reads the rows between two offsets, and the next one commits them."""

    def __init__(self, cluster: str, wait: float = SECONDS) -> None:
        options = {"topology": "counted", "stream": "out", "cluster": cluster, "wait": str(wait)}
        self.source = TapStreamReader(TapOptions(options), SCHEMA)
        self.offset: Offset | None = None
        self.rows: list[tuple[Any, ...]] = []

    def plan(self) -> Offset:
        """The end of the next batch; the start of the first is the oldest row that is kept."""
        if self.offset is None:
            self.offset = self.source.initialOffset()
        return self.source.latestOffset(self.offset, None)  # type: ignore[arg-type]

    def read(self, end: Offset) -> None:
        assert self.offset is not None
        for partition in self.source.partitions(self.offset, end):
            for batch in self.source.read(partition):
                self.rows += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        self.offset = end

    def read_until(self, rows: int) -> None:
        while len(self.rows) < rows:
            self.read(self.plan())

    def new_rows(self) -> Offset:
        """Wait for rows that have not been read."""
        while (end := self.plan()) == self.offset:
            pass
        return end


def first_rows(driver: TapDriver) -> Reader:
    """A reader that has read some rows."""
    driver.submitted(SECONDS)
    reader = Reader(driver.name)
    reader.read_until(20)
    return reader


def assert_exactly_once(rows: list[tuple[Any, ...]]) -> None:
    assert Counter(number for number, _, _ in rows) == Counter(range(LIMIT))
    assert {word: sorted(count for _, of, count in rows if of == word) for word in WORDS} == {
        word: list(range(1, LIMIT // len(WORDS) + 1)) for word in WORDS}


def test_between_two_batches(start: Callable[..., TapDriver]) -> None:
    first = start()
    reader = first_rows(first)
    first.kill()
    assert reader.plan() == reader.offset, "nothing to read for now"
    assert len(reader.rows) < LIMIT
    start(resume=True)
    reader.read_until(LIMIT)
    assert_exactly_once(reader.rows)


def test_in_the_middle_of_a_batch(start: Callable[..., TapDriver]) -> None:
    first = start()
    reader = first_rows(first)
    end = reader.new_rows()
    first.kill()
    start(resume=True)
    reader.read(end)
    reader.read_until(LIMIT)
    assert_exactly_once(reader.rows)


def test_a_reader_says_for_which_cluster_it_waits_and_gives_up_at_its_limit(
        start: Callable[..., TapDriver], caplog: pytest.LogCaptureFixture) -> None:
    first = start()
    reader = first_rows(first)
    first.kill()
    reader.source._options.wait = 1.0
    with pytest.raises(MillraceError, match=rf"counted\.out could not be read for 1 s: no Millrace cluster named "
                                            rf"'{first.name}' is running.*\.option\(\"wait\", seconds\)"):
        while True:
            assert reader.plan() == reader.offset
    assert f"the reader of counted.out waits for the cluster '{first.name}', 1 s at most" in caplog.text

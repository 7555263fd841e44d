"""The reader of a tap goes on when the topology's driver is killed and resumed: no row is missing, none comes twice."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from millrace.errors import MillraceError
from millrace.model.graph import TaskId, graph_of
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.runtime.taps.reader import Offset
from millrace.spark.sources.stream import TapOptions, TapStreamReader
from support.processes.driver import DriverProcess
from support.topologies.audited import SECONDS
from support.topologies.tapped import WORDS, CountedTap

MORE = 200  # numbers to read of what the resumed topology emits
SCHEMA = StructType([StructField("number", LongType()), StructField("word", StringType()), StructField("count", LongType())])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., DriverProcess]]:
    name, drivers = f"tapped-{os.getpid()}", list[DriverProcess]()
    config = {"rate": 200.0, "topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.1}  # endless

    def make(resume: bool = False) -> DriverProcess:
        drivers.append(DriverProcess(name, tmp_path / "store", graph_of(CountedTap, "counted", config=config), resume))
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

    def read_until_nothing_is(self, missing: Callable[[], Collection[Any]]) -> None:
        deadline = time.monotonic() + SECONDS
        while left := missing():
            assert time.monotonic() < deadline, f"{len(self.rows)} rows were read, but not {left}"
            self.read(self.plan())

    def new_rows(self) -> Offset:
        """Wait for rows that have not been read."""
        deadline = time.monotonic() + SECONDS
        while (end := self.plan()) == self.offset:
            assert time.monotonic() < deadline, f"no row after {self.offset}"
        return end

    def missing_below(self, number: int) -> set[Any]:
        """The numbers that have not been read, and as many counts of their words; these may come with higher numbers."""
        expected = {*range(number), *((word, count) for word in WORDS for count in range(1, number // len(WORDS) + 1))}
        return expected - {row[0] for row in self.rows} - {row[1:] for row in self.rows}


@pytest.fixture
def first_rows() -> Iterator[Callable[[DriverProcess], Reader]]:
    """Makes readers that have read some rows. They are stopped even if the test fails: the next test would wait forever for
    the garbage collection of their sockets."""
    with ExitStack() as stack:
        def make(driver: DriverProcess) -> Reader:
            driver.submitted(SECONDS)
            reader = Reader(driver.name)
            stack.callback(reader.source.stop)
            reader.read_until_nothing_is(lambda: range(len(reader.rows), 20))
            return reader

        yield make


def numbers_of_last_wave(store: Path) -> int:
    """The topology resumes from its last wave. Returns the first number that neither spout task had emitted by then."""
    manifest = Checkpoints(open_store(str(store)), "counted").latest()
    assert manifest is not None
    return 2 * max(manifest.positions()[TaskId("numbers", index)] for index in range(2))


def assert_exactly_once(reader: Reader, number: int) -> None:
    """Read all numbers below this one. They come with later ones, of which some may not be there yet, but none twice."""
    reader.read_until_nothing_is(lambda: reader.missing_below(number))
    assert set(Counter(number for number, _, _ in reader.rows).values()) == {1}
    assert set(Counter((word, count) for _, word, count in reader.rows).values()) == {1}


def test_between_two_batches(start: Callable[..., DriverProcess], first_rows: Callable[[DriverProcess], Reader],
                             tmp_path: Path) -> None:
    first = start()
    reader = first_rows(first)
    first.kill()
    assert reader.plan() == reader.offset, "nothing to read for now"
    before = numbers_of_last_wave(tmp_path / "store")
    start(resume=True)
    assert_exactly_once(reader, before + MORE)


def test_in_the_middle_of_a_batch(start: Callable[..., DriverProcess], first_rows: Callable[[DriverProcess], Reader],
                                  tmp_path: Path) -> None:
    first = start()
    reader = first_rows(first)
    end = reader.new_rows()
    first.kill()
    before = numbers_of_last_wave(tmp_path / "store")
    start(resume=True)
    reader.read(end)
    assert_exactly_once(reader, before + MORE)


def test_a_reader_says_for_which_cluster_it_waits_and_gives_up_at_its_limit(
        start: Callable[..., DriverProcess], first_rows: Callable[[DriverProcess], Reader],
        caplog: pytest.LogCaptureFixture) -> None:
    first = start()
    reader = first_rows(first)
    first.kill()
    reader.source._options.wait = 1.0
    with pytest.raises(MillraceError, match=rf"counted\.out could not be read for 1 s: no Millrace cluster named "
                                            rf"'{first.name}' is running.*\.option\(\"wait\", seconds\)"):
        reader.new_rows()
    assert f"the reader of counted.out waits for the cluster '{first.name}', 1 s at most" in caplog.text

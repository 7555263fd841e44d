"""`spark.readStream.format("millrace")`: a tap of a running resident topology as a streaming DataFrame.

Spark runs `latestOffset`, `partitions` and `commit` in one Python process beside the driver, and `read` in its executors.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millrace.errors import MillraceError
from millrace.master.requests.client import ask, cluster_running
from millrace.runtime.taps.client import HasAnotherReader, NoAnswer, TapLinks, as_place
from millrace.runtime.taps.messages import TapPlace
from millrace.runtime.taps.reader import (
    Offset,
    RowsGone,
    TapAddress,
    TapRange,
    first_offset,
    last_offset,
    look_at,
    ranges_between,
    read_range,
    taken_by_another,
)
from millrace.runtime.wire.transport import Keys
from millrace.spark.sources.columns import check_columns, inferred_schema, record_batch
from millrace.spark.sources.options import check_options

SAMPLE_ROWS = 100
OPTIONS = ("topology", "stream", "cluster")


class TapOptions:
    """The options of a query: the tap to read. Its address comes from the cluster's master on each `find`. A cluster that is
    not named is looked up once: others may come and go while a query runs."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        check_options("millrace", options, OPTIONS)
        self.cluster = options.get("cluster")
        for name in ("topology", "stream"):
            if not options.get(name):
                raise MillraceError(f"format(\"millrace\") needs .option(\"{name}\", ...): the name of "
                                    + ("a running topology" if name == "topology" else "a Tap in it"))
        self.topology, self.stream = options["topology"], options["stream"]

    @property
    def label(self) -> str:
        return f"{self.topology}.{self.stream}"

    def find(self) -> tuple[TapAddress, dict[int, TapPlace], list[str]]:
        """The tap's address, the current places of its tasks, and its fields."""
        self.cluster = self.cluster or cluster_running(self.topology)
        tap = ask(self.cluster, "taps", topology=self.topology, component=self.stream)
        address = TapAddress(tap["master"], Keys(tap["public"], tap["secret"]), self.topology, self.stream, tap["exactly_once"])
        return address, {int(task): as_place(place) for task, place in tap["places"].items()}, tap["fields"]


class StreamSource(DataSource):
    """| option | meaning |
    | --- | --- |
    | `topology` | name of a running topology |
    | `stream` | the component that is a `Tap` |
    | `cluster` | the Millrace cluster, if several here run a topology of that name |
    """

    @classmethod
    def name(cls) -> str:
        return "millrace"

    def schema(self) -> StructType:
        """The inferred schema. Spark calls this only if the user gives none."""
        options = TapOptions(self.options)
        address, places, fields = options.find()
        return inferred_schema(_sample(address, places), fields, options.label)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TapStreamReader(TapOptions(self.options), schema)


def _sample(address: TapAddress, places: dict[int, TapPlace]) -> list[Any]:
    """The first rows of a task that has any."""
    with TapLinks(address.keys) as links:
        for place in places.values():
            try:
                answer = links.read(place, 0, 2**62)
            except NoAnswer:
                continue
            if answer is not None and answer[1]:
                return answer[1][:SAMPLE_ROWS]
    return []


class TapPartition(InputPartition):
    """One range of rows, with all that an executor needs to read it. Spark ships it with the job."""

    def __init__(self, address: TapAddress, wanted: TapRange, indexes: list[int]) -> None:
        super().__init__(None)
        self.address, self.wanted, self.indexes = address, wanted, indexes

    def __repr__(self) -> str:
        return f"TapPartition({self.wanted})"


class TapStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query. Rows of a completed batch are committed with the next look at the tap: Spark calls `commit` only
    when there is another batch, and unacked rows would be replayed by then."""

    def __init__(self, options: TapOptions, schema: StructType) -> None:
        check_columns(schema, options.label)
        self._options, self._schema = options, schema
        self._reader = f"{time.time_ns():020}-{uuid.uuid4().hex}"  # a tap has one reader, the newest
        self._links: TapLinks | None = None
        self._places: dict[int, TapPlace] = {}
        self._target: Offset | None = None
        self._checked = False  # whether the first rows were checked against the schema

    # -- beside the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """The oldest rows that the tap still holds. A query without a checkpoint has no claim to older ones."""
        return first_offset(self._look({}))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        seen = self._look(start)
        return {**start, **self._target} if self._target is not None else last_offset(start, seen)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the read: rows that the tap has now, none that come later."""
        self._target = last_offset({}, self._look({}))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        wanted = ranges_between(start, end)
        address, places, fields = self._options.find()
        indexes = self._indexes(fields)
        if taken := taken_by_another(wanted, self._look({})):
            raise RowsGone(taken, self._options.label)
        if wanted and not self._checked:
            self._check_types(address, places, indexes)
        address = replace(address, reader=self._reader)
        return [TapPartition(address, rows, indexes) for rows in wanted]

    def _check_types(self, address: TapAddress, places: dict[int, TapPlace], indexes: list[int]) -> None:
        """Check some rows of the first batch against the schema. An executor would fail too, but Millrace's sessions retry a
        failed task forever, and the error would never show."""
        rows = _sample(address, places)
        if rows:
            self._batch(rows, indexes)
            self._checked = True

    def commit(self, end: Offset) -> None:
        self._look(end)

    def stop(self) -> None:
        if self._links is not None:
            self._links.close()
            self._links = None

    def _look(self, committed: Offset) -> dict[int, Any]:
        address, self._places, fields = self._options.find()
        self._indexes(fields)
        if self._links is None:
            self._links = TapLinks(address.keys)
        try:
            return look_at(self._links, self._places, committed, self._reader)
        except HasAnotherReader as error:
            raise MillraceError(f"{self._options.label} cannot be read: {error}. A tap has one reader: give each query its "
                                "own Tap, or stop the other") from None

    def _indexes(self, fields: list[str]) -> list[int]:
        """The index of each column's field, by name."""
        unknown = [name for name in self._schema.names if name not in fields]
        if unknown:
            raise MillraceError(f"the schema of {self._options.label} asks for {', '.join(unknown)}, but the stream has "
                                f"{', '.join(fields)}. Name some of these in .schema(...)")
        return [fields.index(name) for name in self._schema.names]

    # -- in an executor --------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TapPartition)
        for rows in read_range(partition.address, partition.wanted):
            yield self._batch(rows, partition.indexes)

    def _batch(self, rows: list[Any], indexes: list[int]) -> pa.RecordBatch:
        columns = list(zip(*rows, strict=True))
        return record_batch([columns[index] for index in indexes], self._schema, self._options.label)

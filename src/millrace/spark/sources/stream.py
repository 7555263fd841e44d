"""`spark.readStream.format("millrace")`: a tap of a running resident topology as a streaming DataFrame.

Spark runs `latestOffset`, `partitions` and `commit` in one Python process beside the driver, and `read` in its executors.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from millrace.errors import MasterUnreachable, MillraceError, UnknownName, UnknownTopology
from millrace.master.requests.client import ask, cluster_running
from millrace.runtime.taps.client import HasAnotherReader, NoAnswer, TapLinks, as_place
from millrace.runtime.taps.messages import TapPlace
from millrace.runtime.taps.reader import (
    RETRY_SECONDS,
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
from millrace.runtime.taps.waiting import WAIT_SECONDS, TapWait
from millrace.runtime.wire.transport import Keys
from millrace.spark.sources.columns import check_columns, inferred_schema, record_batch
from millrace.spark.sources.options import check_options

SAMPLE_ROWS = 100
FIRST_SECONDS = 10.0  # limit for the master's answer to the first question about a tap
AGAIN_SECONDS = 2.0  # and to later ones: a master that is starting is asked again
OPTIONS = ("topology", "stream", "cluster", "wait")


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
        self.wait = _seconds(options.get("wait"))

    @property
    def label(self) -> str:
        return f"{self.topology}.{self.stream}"

    def find(self, seconds: float = FIRST_SECONDS) -> TapInfo:
        """Find the tap; `seconds`: limit for the master's answer."""
        self.cluster = self.cluster or cluster_running(self.topology)
        return find_tap(self.cluster, self.topology, self.stream, self.wait, seconds)


class TapInfo(NamedTuple):
    """A tap's address, the current places of its tasks, and its fields."""

    address: TapAddress
    places: dict[int, TapPlace]
    fields: list[str]


def find_tap(cluster: str, topology: str, stream: str, wait: float, seconds: float) -> TapInfo:
    """Ask the master that the cluster of this name has now."""
    tap = ask(cluster, "taps", seconds=seconds, topology=topology, component=stream)
    address = TapAddress(tap["master"], Keys(tap["public"], tap["secret"]), topology, stream, tap["exactly_once"],
                         cluster=cluster, wait=wait)
    return TapInfo(address, {int(task): as_place(place) for task, place in tap["places"].items()}, tap["fields"])


def _seconds(text: str | None) -> float:
    try:
        seconds = WAIT_SECONDS if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise MillraceError(f"format(\"millrace\"): .option(\"wait\", {text!r}) is not a number of seconds above 0")
    return seconds


class StreamSource(DataSource):
    """| option | meaning |
    | --- | --- |
    | `topology` | name of a running topology |
    | `stream` | the component that is a `Tap` |
    | `cluster` | the Millrace cluster, if several here run a topology of that name |
    | `wait` | seconds that a query waits for a cluster that has gone, because its driver is restarted; default: 600 |
    """

    @classmethod
    def name(cls) -> str:
        return "millrace"

    def schema(self) -> StructType:
        """The inferred schema. Spark calls this only if the user gives none."""
        options = TapOptions(self.options)
        found = options.find()
        return inferred_schema(_sample(found.address, found.places), found.fields, options.label)

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


def _address_now(known: TapAddress) -> TapAddress | None:
    """The address of the tap in the cluster of the same name; None if there is none on this host."""
    try:
        return find_tap(known.cluster, known.topology, known.component, known.wait, AGAIN_SECONDS).address
    except MillraceError:
        return None


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
        self._tap_info: TapInfo | None = None  # as of the last look
        self._wait: TapWait | None = None
        self._target: Offset | None = None
        self._checked = False  # whether the first rows were checked against the schema

    # -- beside the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """The oldest rows that the tap still holds. A query without a checkpoint has no claim to older ones."""
        return first_offset(self._look({}))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the rows that can be read now. While the cluster is gone that is the start: Spark asks again later, and
        can stop the query meanwhile."""
        seen = self._look(start)
        return {**start, **self._target} if self._target is not None else last_offset(start, seen)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the read: rows that the tap has now, none that come later."""
        self._target = last_offset({}, self._look({}))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The ranges to read. If the cluster is gone, executors look for it and wait."""
        wanted = ranges_between(start, end)
        seen = self._look({})
        assert self._tap_info is not None
        address, places, fields = self._tap_info
        indexes = self._indexes(fields)
        if taken := taken_by_another(wanted, seen):
            raise RowsGone(taken, self._options.label)
        if wanted and seen and not self._checked:
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
        """Commit rows, and return the readable range of each task. Empty while a cluster that was there before is gone."""
        if not self._find():
            time.sleep(RETRY_SECONDS)
            return {}
        assert self._tap_info is not None and self._links is not None
        self._indexes(self._tap_info.fields)
        try:
            return look_at(self._links, self._tap_info.places, committed, self._reader)
        except HasAnotherReader as error:
            raise MillraceError(f"{self._options.label} cannot be read: {error}. A tap has one reader: give each query its "
                                "own Tap, or stop the other") from None

    def _find(self) -> bool:
        """Find the tap. False if it is gone and may come back; an error if it has never been there."""
        try:
            found = self._options.find() if self._tap_info is None else self._options.find(AGAIN_SECONDS)
        except (MasterUnreachable, UnknownName, UnknownTopology) as error:
            if self._tap_info is None:
                raise
            self._wait = self._wait or TapWait(self._options.label, self._tap_info.address.cluster, self._options.wait)
            self._wait.missed(str(error))
            return False
        if self._wait is not None:
            self._wait.found()
        if self._tap_info is None or self._tap_info.address != found.address:  # a restarted master has other keys
            self.stop()
        if self._links is None:
            self._links = TapLinks(found.address.keys)
        self._tap_info = found
        return True

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
        for rows in read_range(partition.address, partition.wanted, partial(_address_now, partition.address)):
            yield self._batch(rows, partition.indexes)

    def _batch(self, rows: list[Any], indexes: list[int]) -> pa.RecordBatch:
        columns = list(zip(*rows, strict=True))
        return record_batch([columns[index] for index in indexes], self._schema, self._options.label)

"""Topologies with DataFrames at both ends, for the microbatch engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.spout import Spout
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.dataframe_sink import DataFrameSink
from millrace.connectors.sinks import JsonLinesSink
from millrace.connectors.tap import Tap
from millrace.workloads.wordcount import Count, Lines, Split

SOURCE, TARGET = "MILLRACE_TEST_SOURCE", "MILLRACE_TEST_TARGET"


def lines(spark: Any) -> Any:
    """The lines of text files that arrive in a directory."""
    return spark.readStream.schema("line string").option("maxFilesPerTrigger", 2).text(os.environ[SOURCE])


def numbers(spark: Any) -> Any:
    return spark.range(5)


def named_otherwise(spark: Any) -> Any:
    return lines(spark).withColumnRenamed("line", "text")


def from_kafka(spark: Any) -> Any:
    return spark.readStream.format("kafka").option("subscribe", "lines").load().selectExpr("value AS line")


def forgotten(spark: Any) -> Any:
    return {}["no such key"]


def refused(dataframe: Any, batch: int) -> None:
    """Raises until the table exists."""
    if not Path(os.environ[TARGET]).exists():
        raise LookupError("there is no table")
    write(dataframe, batch)


def write(dataframe: Any, batch: int) -> None:
    """Writes under the batch's id: a batch that is written again replaces its rows."""
    dataframe.write.mode("overwrite").parquet(str(Path(os.environ[TARGET]) / f"batch={batch}"))


class Lengths(Bolt):
    """Emits each word's length, and for some words a value that does not fit a column of numbers."""

    outputs: ClassVar[list[str]] = ["word", "length"]

    def process(self, tup: Tuple) -> None:
        word = tup.values[0]
        self.emit([word, {"odd": "a text", "none": None}.get(word, len(word))])


class DataFrameCount(Topology):
    lines = Spout.from_dataframe(lines, outputs=["line"], par=2)
    split = Split.spec(inputs={lines: Grouping.LOCAL_OR_SHUFFLE}, par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=2)
    table = DataFrameSink.spec(inputs={count: Grouping.SHUFFLE}, par=1,
                               config={"schema": "word string, count long", "write": f"{__name__}:write"})


def others(spark: Any) -> Any:
    return spark.readStream.schema("line string").text(os.environ[SOURCE] + "-others")


class Mixed(Topology):
    """Two DataFrame spouts and an ordinary one."""

    lines = Spout.from_dataframe(lines, outputs=["line"], par=2)
    others = Spout.from_dataframe(others, outputs=["line"], par=1)
    drawn = Lines.spec(par=1, config={"limit": 100})
    split = Split.spec(inputs=[lines, others, drawn], par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=2)


class OddDataFrame(Topology):
    """Writes rows that do not fit its table to a file."""

    lines = Spout.from_dataframe(lines, outputs=["line"], par=1)
    split = Split.spec(inputs={lines: Grouping.SHUFFLE}, par=1)
    lengths = Lengths.spec(inputs=[split], par=1)
    table = DataFrameSink.spec(inputs=[lengths], par=1,
                               config={"schema": "word string, length int not null", "write": f"{__name__}:write"})
    letters = JsonLinesSink.spec(inputs=[table.dead_letters], par=1)


class NotStreaming(Topology):
    lines = Spout.from_dataframe(numbers, outputs=["id"], par=1)
    split = Split.spec(inputs=[lines], par=1)


class Misfit(Topology):
    lines = Spout.from_dataframe(named_otherwise, outputs=["line"], par=1)
    split = Split.spec(inputs=[lines], par=1)


class FromKafka(Topology):
    lines = Spout.from_dataframe(from_kafka, outputs=["line"], par=1)
    split = Split.spec(inputs=[lines], par=1)


class Forgotten(Topology):
    lines = Spout.from_dataframe(f"{__name__}:forgotten", outputs=["line"], par=1)
    split = Split.spec(inputs=[lines], par=1)


class Refused(Topology):
    drawn = Lines.spec(par=1, config={"limit": 100})
    table = DataFrameSink.spec(inputs=[drawn], par=2, config={"schema": "line string", "write": f"{__name__}:refused"})


class WrongSchema(Topology):
    lines = Spout.from_dataframe(lines, outputs=["line"], par=1)
    table = DataFrameSink.spec(inputs=[lines], par=1, config={"schema": "word string", "write": f"{__name__}:write"})


class TappedCount(Topology):
    drawn = Lines.spec(par=1, config={"limit": 100})
    tap = Tap.spec(inputs=[drawn], par=1)

"""A resident topology that Spark reads from while it runs: milliseconds inside, a streaming DataFrame outside.

    ./millrace run examples.tapped:Watch                 # one terminal
    .venv/bin/python -m examples.tapped /tmp/alarms      # another: Parquet files, until Ctrl-C

Both can be stopped, or killed, and started again. The reader continues where it was; `Watch` continues with `--resume`, and a
running reader waits for it. With `--fresh` it starts empty: then remove /tmp/alarms and /tmp/alarms.checkpoint first.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from millrace import Bolt, CounterState, Grouping, Topology, Tuple
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.tap import Tap
from millrace.spark.sources import register
from millrace.spark.sources.interrupts import run_until_interrupted

DEVICES = 20
LIMIT = 90


class Readings(GeneratorSpout):
    """Reading n is always the same, so it can be replayed."""

    outputs = ["device", "value"]

    def generate(self, position: int) -> list[object]:
        n = self.ordinal(position)
        return [f"d{n % DEVICES}", n * 7919 % 101]


class Alarms(Bolt):
    """Emits values above the limit, numbered by device."""

    outputs = ["device", "value", "number"]
    alarms = CounterState()

    def process(self, tup: Tuple) -> None:
        device, value = tup.values
        if value > LIMIT:
            self.alarms[device] += 1
            self.emit([device, value, self.alarms[device]])


class Watch(Topology):
    config = {"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 1}
    readings = Readings.spec(par=2, config={"rate": 1000})
    alarms = Alarms.spec(inputs={readings: Grouping.fields("device")}, par=2)
    seen = Tap.spec(inputs={alarms: Grouping.LOCAL_OR_SHUFFLE}, par=2)


def copy(spark: SparkSession, directory: str) -> StreamingQuery:
    """Writes every alarm to Parquet files, once: Spark's file sink is idempotent by batch."""
    alarms = (spark.readStream.format("millrace").option("topology", "watch").option("stream", "seen")
              .schema("device string, value long, number long").load())
    writer = alarms.writeStream.format("parquet").option("checkpointLocation", f"{directory}.checkpoint")
    return writer.trigger(processingTime="1 second").start(directory)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's Python processes must find Millrace, too
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    register(session)
    if run_until_interrupted(copy(session, sys.argv[1])):
        print("stopped: the reader continues from its checkpoint when it is started again")
    session.stop()

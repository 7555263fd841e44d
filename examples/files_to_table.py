"""Orders from JSON files, running totals by customer, a table of Parquet files: exactly once from end to end.

    mkdir -p /tmp/orders
    ./millrace run examples.files_to_table:Totals --engine microbatch

and from another terminal, repeatedly (move files in when they are complete: Spark reads each once):

    echo '{"customer": "ada", "cents": 1250}' > /tmp/order && mv /tmp/order /tmp/orders/$(date +%s%N).json
    .venv/bin/python -m examples.files_to_table

The second command shows the table. The variables ORDERS and TOTALS name other directories. To run it again, add `--resume`
to continue after the last batch, or `--fresh` to start empty; then remove /tmp/totals first, because batches are numbered from
0 again.
"""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace import Bolt, CounterState, Grouping, Spout, Topology, Tuple
from millrace.connectors.dataframe_sink import DataFrameSink

ORDERS = os.environ.get("ORDERS", "/tmp/orders")
TOTALS = os.environ.get("TOTALS", "/tmp/totals")


def orders(spark: SparkSession) -> DataFrame:
    """Called on the driver when the topology is submitted. Every source of Structured Streaming works."""
    return spark.readStream.schema("customer string, cents long").option("maxFilesPerTrigger", 100).json(ORDERS)


class Total(Bolt):
    """Adds up the orders of each customer."""

    outputs = ["customer", "orders", "cents"]
    orders = CounterState()
    cents = CounterState()

    def process(self, tup: Tuple) -> None:
        customer, cents = tup.values
        self.orders[customer] += 1
        self.cents[customer] += cents
        self.emit([customer, self.orders[customer], self.cents[customer]])


def write(dataframe: DataFrame, batch_id: int) -> None:
    """Called on the driver after each batch. The directory has the batch's id, so a batch written twice replaces itself."""
    dataframe.write.mode("overwrite").parquet(f"{TOTALS}/batch={batch_id}")


def newest(dataframe: DataFrame) -> DataFrame:
    """The table has every total over time; this selects the latest of each customer."""
    return dataframe.groupBy("customer").agg(F.max("orders").alias("orders"), F.max_by("cents", "orders").alias("cents"))


class Totals(Topology):
    incoming = Spout.from_dataframe(orders, par=2, outputs=["customer", "cents"])
    total = Total.spec(inputs={incoming: Grouping.fields("customer")}, par=2)
    table = DataFrameSink.spec(inputs={total: Grouping.LOCAL_OR_SHUFFLE}, par=2,
                               config={"schema": "customer string, orders long, cents long",
                                       "write": "examples.files_to_table:write"})


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    newest(spark.read.parquet(TOTALS)).orderBy("customer").show()
    spark.stop()

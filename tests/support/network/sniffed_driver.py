"""A driver that runs on one host and uses the executors of another, while someone listens in between.

As a program (`sniffed_driver.py MASTER`, the request in JSON on stdin) it starts a topology, sends a row through Spark and
prints the key of the workers and the engine's warnings. If the request is not `encrypted`, it also passes its session to an
engine that requires encryption, and prints the refusal.
"""

from __future__ import annotations

import json
import sys

from millrace.control.topology_status import RUNNING
from millrace.errors import NotEncrypted
from millrace.spark.engine import ResidentEngine
from millrace.workloads.wordcount import WordCount

SECONDS = 200.0


def main() -> None:
    master, request = sys.argv[1], json.loads(sys.stdin.read())
    with ResidentEngine(master, 1, name=request["name"], settings=request["settings"], spark_settings=request["spark"],
                        code=[WordCount], require_encryption=request["encrypted"]) as engine:
        running = engine.submit(WordCount, config={"note": request["plan"], "rate": 10})
        running.wait_running(SECONDS)
        rows = engine.spark.createDataFrame([(request["row"],)], ["row"]).repartition(1).collect()
        refused = "" if request["encrypted"] else refusal(engine)
        print(json.dumps({"refusal": refused, "secret": engine.master.keys.secret.decode(), "warnings": engine.unencrypted,
                          "status": running.status == RUNNING, "rows": [row["row"] for row in rows]}), flush=True)


def refusal(engine: ResidentEngine) -> str:
    """The reason why an engine that requires encryption does not use the session of this one; empty if it does."""
    try:
        with ResidentEngine(slots=1, spark=engine.spark, name=f"{engine.master.name}-2", settings=engine.master.settings,
                            require_encryption=True):
            return ""
    except NotEncrypted as error:
        return str(error)


if __name__ == "__main__":
    main()

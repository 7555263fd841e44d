"""Spark settings for both engines, computed without Spark so that tests can read them.

Resident workers are Spark tasks that live as long as the topology. Spark's defaults are for tasks that last seconds: it would
give up on a task after four deaths, start a second copy of a slow one, or leave no core for its own small jobs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from millrace.errors import NotEnoughSlots
from millrace.spark.session.encryption import encryption_settings
from millrace.spark.session.master_url import LOOPBACK, MasterUrl, parse_master

SPARE_CORES = 2  # for Spark's own small jobs: with every core held by a worker they wait forever, without an error
MANY_FAILURES = 1_000_000  # Spark counts over the whole life of a task, and workers live for days
HASH_SEED = "0"
DAEMON = "millrace.spark.cluster.daemon"
# These settings make Spark avoid, for an hour, executors on which tasks have failed. Millrace restarts work where it failed.
EXCLUDING = ("spark.excludeOnFailure.enabled", "spark.excludeOnFailure.application.enabled",
             "spark.excludeOnFailure.taskAndStage.enabled")

# C1 and the serial collector start fastest and use the fewest threads; the JVMs here mostly host Python. The JVM's own
# log is off: it goes to stdout, which belongs to the user's command, and it complains about a stale class archive.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
# Batches pass through the JVMs, which also read DataFrames: there the full compiler and the parallel collector pay off.
BATCH_JAVA_OPTIONS = "-XX:+UseParallelGC -Xlog:disable"


def session_settings(master: str, slots: int, extra: Mapping[str, str] | None = None,
                     java: str = JAVA_OPTIONS) -> tuple[str, dict[str, str]]:
    """The master URL for Spark and its settings, for `slots` resident workers.

    `extra` overrides all of it, except that JVM options are added to ours instead of replacing them.
    """
    parsed = parse_master(master)
    settings = {
        "spark.speculation": "false",
        "spark.task.maxFailures": str(MANY_FAILURES),
        "spark.excludeOnFailure.enabled": "false",
        "spark.dynamicAllocation.enabled": "false",
        "spark.locality.wait": "3s",  # workers start on the executors that they are spread over
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONHASHSEED": HASH_SEED,
        "spark.api.mode": "classic",
    }
    if parsed.on_loopback:
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    if parsed.on_this_machine:
        settings["spark.python.daemon.module"] = DAEMON
    if parsed.kind == "local-cluster":
        _check_local_cluster(parsed, slots)
        settings["spark.executor.memory"] = f"{parsed.executor_memory_mb}m"
    extra = dict(extra or {})
    settings |= encryption_settings(parsed, extra)
    for side in ("driver", "executor"):
        ours = java if side == "executor" and not parsed.on_this_machine else f"{java} {_log_option()}"
        settings[f"spark.{side}.defaultJavaOptions"] = _without_collector_clash(
            ours, extra.get(f"spark.{side}.extraJavaOptions", "")
        )
    return _master_with_room(parsed, slots), settings | extra


def batch_settings(master: str, extra: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """The master URL and settings for the microbatch engine: jobs get all cores, partitions go where the plan puts them, and
    a failed batch is rerun as a whole by the engine instead of task by task by Spark."""
    parsed = parse_master(master)
    _, settings = session_settings(master, 0, extra, BATCH_JAVA_OPTIONS)
    settings |= {
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.locality.wait": "10s",  # Spark does not wait for an executor that is gone
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    }
    settings.pop("spark.python.daemon.module", None)  # its processes are of many kinds: each imports what it needs
    if parsed.on_this_machine:
        settings["spark.shuffle.compress"] = "false"  # it costs more than the bytes that it saves
        settings["spark.sql.shuffle.partitions"] = str(parsed.cores)  # a write function may group; 200 suits a cluster
    url = f"local[{parsed.cores}]" if parsed.kind == "local" else parsed.url
    return url, settings | dict(extra or {})


def _master_with_room(master: MasterUrl, slots: int) -> str:
    """The URL with retries and enough threads. `local[N]` never retries a failed task, `local[N,F]` does. A worker holds its
    thread for good, so each needs one however few cores the machine has."""
    if master.kind != "local":
        return master.url
    return f"local[{max(master.cores, slots + SPARE_CORES)},{MANY_FAILURES}]"


def _check_local_cluster(master: MasterUrl, slots: int) -> None:
    if master.cores < slots + 1:
        raise NotEnoughSlots(
            f"{slots} workers were requested, but {master.url} has {master.cores} cores. Each worker holds a core for as "
            f"long as it lives, and Spark's own jobs need one more: use at least {slots + 1} (executors x cores)."
        )


def _log_option() -> str:
    return f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def _without_collector_clash(ours: str, theirs: str) -> str:
    """Our JVM options without a garbage collector if the user names one: of most options the last wins, but a JVM that is
    given two collectors does not start."""
    if re.search(r"-XX:\+Use\w*GC\b", theirs):
        return " ".join(option for option in ours.split() if not re.fullmatch(r"-XX:\+Use\w*GC", option))
    return ours

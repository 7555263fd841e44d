"""Make a class archive, so that Spark's JVM starts in half the time.

Most of a JVM's start under Spark is reading and checking many thousand classes. The JVM can write them out once in the
form it has them in memory, and map that file from then on. It checks the archive against itself and Spark's jars each
time and goes on without when anything differs, so the archive can save time and do nothing else.

`python -m millrace.spark.session.archive` makes it, once for each Java and Spark; `./millrace` does that when it sets up.
"""

from __future__ import annotations

import fcntl
import operator
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.spark.session.java import ARCHIVE_PREFIX, archive_path, ensure_java
from millrace.spark.session.session import make_session
from millrace.spark.session.settings import JAVA_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DUMP_SECONDS = 120.0


def make_archive() -> Path:
    """Make the archive if it is not there yet: run a little of everything and let the JVM write down what it loaded."""
    java_home = ensure_java()
    with _locked(java_home):
        path = archive_path(java_home)
        if not path.exists():
            for older in java_home.glob(f"{ARCHIVE_PREFIX}*"):
                older.unlink()
            base = path.with_suffix(".base")
            _dump_base(java_home, base)
            scratch = path.with_suffix(".new")
            _dump_spark(base, scratch)
            os.replace(scratch, path)
        return path


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Two that make the same archive take turns, and the second finds it done."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _dump_base(java_home: Path, base: Path) -> None:
    """The archive of Java's own classes that Spark's builds on: trimmed runtimes come without one, and it has to be
    made under the options that it will be used with."""
    java = str(java_home / "bin" / "java")
    command = [java, *JAVA_OPTIONS.split(), f"-XX:SharedArchiveFile={base}", "-Xshare:dump"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=DUMP_SECONDS)


def _dump_spark(base: Path, target: Path) -> None:
    dump = f'"-XX:SharedArchiveFile={base}" "-XX:ArchiveClassesAtExit={target}"'
    session = make_session("local[1]", "millrace-archive", 1, {"spark.driver.extraJavaOptions": dump})
    _exercise(session)
    _end_jvm(session)


def _exercise(session: SparkSession) -> None:
    """Touch what both engines use: Python tasks, a shuffle, a query."""
    pairs = session.sparkContext.parallelize([(0, 1), (1, 2), (0, 3)], 2)
    pairs.reduceByKey(operator.add, 2).collect()
    session.range(4).groupBy("id").count().collect()


def _end_jvm(session: SparkSession) -> None:
    """Stop Spark and wait for its JVM, which writes the archive as the last thing it does."""
    gateway = session.sparkContext._gateway
    assert gateway is not None  # it is one for the life of the process
    process = gateway.proc
    session.stop()
    process.stdin.close()
    process.wait(timeout=DUMP_SECONDS)


if __name__ == "__main__":
    print(make_archive())

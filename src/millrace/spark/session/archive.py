"""Makes a class archive, with which Spark's JVM starts in half the time.

A JVM under Spark spends most of its start reading and verifying thousands of classes. It can write them to a file once, in
the form they have in memory, and map that file from then on. At each start it checks the archive against itself and against
Spark's jars, and ignores it if anything differs: the archive can save time but cannot change behaviour.

`python -m millrace.spark.session.archive` makes it, once for each Java and Spark; `./millrace` runs that during setup.
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
    """Make the archive unless it exists: run a little of everything and let the JVM write the classes that it loaded."""
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
    """Lock the directory. The second of two processes waits, and finds the archive done."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _dump_base(java_home: Path, base: Path) -> None:
    """Make the archive of Java's own classes on which Spark's builds: trimmed runtimes come without one, and it must be made
    under the options that it will be used with."""
    java = str(java_home / "bin" / "java")
    command = [java, *JAVA_OPTIONS.split(), f"-XX:SharedArchiveFile={base}", "-Xshare:dump"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=DUMP_SECONDS)


def _dump_spark(base: Path, target: Path) -> None:
    dump = f'"-XX:SharedArchiveFile={base}" "-XX:ArchiveClassesAtExit={target}"'
    session = make_session("local[1]", "millrace-archive", 1, {"spark.driver.extraJavaOptions": dump})
    _exercise(session)
    _end_jvm(session)


def _exercise(session: SparkSession) -> None:
    """Load the classes that both engines use: Python tasks, a shuffle, a query."""
    pairs = session.sparkContext.parallelize([(0, 1), (1, 2), (0, 3)], 2)
    pairs.reduceByKey(operator.add, 2).collect()
    session.range(4).groupBy("id").count().collect()


def _end_jvm(session: SparkSession) -> None:
    """Stop Spark and wait for its JVM, which writes the archive when it ends."""
    gateway = session.sparkContext._gateway
    assert gateway is not None  # it exists for the life of the process
    process = gateway.proc
    session.stop()
    process.stdin.close()
    process.wait(timeout=DUMP_SECONDS)


if __name__ == "__main__":
    print(make_archive())

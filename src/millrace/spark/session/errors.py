"""Spark's errors as the driver sees them, and a Spark that has ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from millrace.control.batches.actions import lacks_state

if TYPE_CHECKING:
    from pyspark import SparkContext

# Raised by a failed job or query. A connection that is refused or reset means that the JVM has ended.
SPARK_ERRORS = (Py4JError, PySparkException, ConnectionError)
GONE = ("Spark ended before the engine: its JVM died, or was stopped together with this process. Work in progress is lost; a "
        "topology with state continues from its last checkpoint with --resume")
_PYTHON_ERROR = re.compile(r"(?!org\.apache|java\.|py4j)[A-Za-z_][\w.]*"
                           r"(Error|Exception|Failed|Missing|Unreachable|Checkpoint)\b.*: ")
_STATE_MISSING = "millrace: a part of the state is missing"  # its own line in the message of an error
_CALL = "An error occurred while calling "  # Py4J's own first line, which does not name the error
_CAUSE = "Caused by: "
_LOST_TASK = re.compile(r".*most recent failure: Lost task [^:]*: ")


def is_gone(context: SparkContext) -> bool:
    """True if the JVM has ended or is ending (it stops Spark first). False if this process stopped Spark itself."""
    java = context._jsc
    try:
        return java is not None and bool(java.sc().isStopped())
    except SPARK_ERRORS:
        return True


def lines_of(error: BaseException) -> list[str]:
    """The lines of the error's message, which may be pages of stack traces; its type if it has no message."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def first_line(error: BaseException) -> str:
    """The error in one line; for a Java error, its root cause."""
    lines = lines_of(error)
    if not lines[0].startswith(_CALL) or len(lines) == 1:
        return lines[0]
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    return causes[-1] if causes else _LOST_TASK.sub("", lines[1].removeprefix(": "))


def first_words(error: BaseException) -> str:
    """The error's message without stack traces: the last line of the Python error inside it if there is one."""
    python = [line for line in lines_of(error) if _PYTHON_ERROR.match(line)]
    return (python[-1] if python else first_line(error))[:300]


def mark_missing_state(error: Exception) -> None:
    """Mark an error in a Python process if a part of the state was missing. Its message is all that the driver gets."""
    if lacks_state(error):
        error.add_note(_STATE_MISSING)


def reports_missing_state(error: BaseException) -> bool:
    """True if a Python process has marked the error."""
    return _STATE_MISSING in lines_of(error)

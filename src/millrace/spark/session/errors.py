"""What goes wrong in Spark, as the driver sees it."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

# What a job or a query that failed raises. A connection that is refused or reset: the JVM has ended.
SPARK_ERRORS = (Py4JError, PySparkException, ConnectionError)
_PYTHON_ERROR = re.compile(r"(?!org\.apache|java\.|py4j)[A-Za-z_][\w.]*"
                           r"(Error|Exception|Failed|Missing|Unreachable|Checkpoint)\b.*: ")
_CALL = "An error occurred while calling "  # Py4J's own first line, which says nothing of what happened
_CAUSE = "Caused by: "
_LOST_TASK = re.compile(r".*most recent failure: Lost task [^:]*: ")


def lines_of(error: BaseException) -> list[str]:
    """Its text, which may go on for pages of stack traces."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def first_line(error: BaseException) -> str:
    """What happened, in one line. Of an error that Java threw: the cause at the bottom of it all."""
    lines = lines_of(error)
    if not lines[0].startswith(_CALL) or len(lines) == 1:
        return lines[0]
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    return causes[-1] if causes else _LOST_TASK.sub("", lines[1].removeprefix(": "))


def first_words(error: BaseException) -> str:
    """What it says of itself, without the stacks: the last line of the Python error in it, if there is one."""
    python = [line for line in lines_of(error) if _PYTHON_ERROR.match(line)]
    return (python[-1] if python else first_line(error))[:300]

"""The identity of a Spark executor, determined by a Python task that runs on it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from millrace.runtime.node import this_node
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import boot_id


@cache  # the same for the life of the process
def executor_id() -> str:
    """The id of the executor that runs this process. Spark does not pass it to Python tasks; it is in the command line of the
    executor, two processes up."""
    parent = os.getppid()
    for _ in range(3):
        try:
            arguments = Path(f"/proc/{parent}/cmdline").read_bytes().decode(errors="replace").split("\0")
            status = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            break
        if "--executor-id" in arguments:
            return arguments[arguments.index("--executor-id") + 1]
        parent = int(status[1])
    context = TaskContext.get()
    return "driver" if context is not None else ""


def identify(settings: Mapping[str, Any], index: int, records: Iterable[bytes]) -> Iterator[bytes]:
    """The body of a Spark task that reports its executor and node."""
    yield wire.encode((executor_id(), this_node(settings, executor_id()), boot_id()))
    read_to_end(records)


def read_to_end(records: Iterable[bytes]) -> None:
    """Consume the rest of a task's input: Spark does not reuse a Python process that leaves input unread, and what the
    process keeps is lost with it."""
    deque(records, maxlen=0)

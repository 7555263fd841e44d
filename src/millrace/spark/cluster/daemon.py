"""Spark's daemon of Python processes, which has imported the code of a worker before it forks one.

PySpark's own forks empty processes, each of which then imports for most of a second. `make_context` names this module where the
executors are on this machine and so have Millrace installed.
"""

from __future__ import annotations

import os
import sys

import pyspark.worker  # noqa: F401 - imported for the processes that are forked
from pyspark.daemon import manager

import millrace.spark.cluster.launcher  # noqa: F401 - the same


def _draw_anew() -> None:
    """Forked processes would otherwise draw the same numbers. Python's own `random` does this itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


if __name__ == "__main__":
    os.register_at_fork(after_in_child=_draw_anew)
    manager()

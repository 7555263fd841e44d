"""Seconds from the start of this process to the steps of Spark's first start in it, for `--verbose` and `millrace demo`."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

log = logging.getLogger(__name__)
_reached: dict[str, float] = {}


def reached(step: str) -> float:
    """Note that a step has been reached; returns the seconds since the process began. Only its first time counts: a later Spark
    in the same process has not begun with the process."""
    if step not in _reached:
        _reached[step] = round(seconds_of_process(), 2)
        log.info("start-up: %s after %.2f s", step, _reached[step])
    return _reached[step]


def steps() -> dict[str, float]:
    """The steps reached so far, in order."""
    return dict(_reached)


def seconds_of_process() -> float:
    """The age of this process. `./millrace` is included: it becomes the process of the command."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    began = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # proc(5): starttime, the 22nd field
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began

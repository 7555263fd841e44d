"""`millrace bench memory`: resident memory while a bolt is far slower than its spout; it must stay flat."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace.bench.results import keep
from millrace.bench.topologies import SlowBolt
from millrace.config import AT_LEAST_ONCE, GUARANTEE
from millrace.errors import MillraceError
from millrace.spark.engine import ResidentEngine

SAMPLES = 60  # the first third is the warm-up


def resident_mb(pid: int) -> float:
    """Resident memory of a process on this host."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_memory(minutes: float, live: bool) -> dict[str, Any]:
    console = Console(stderr=not live)
    samples: list[float] = []
    with ResidentEngine("local[2]", 2, name=f"memory-{os.getpid()}") as engine:
        running = engine.submit(SlowBolt, config={GUARANTEE.key: AT_LEAST_ONCE})
        if not running.wait_running():
            raise MillraceError(f"the topology did not start: {engine.status()['events'][-3:]}")
        pids = [worker["pid"] for worker in engine.status()["workers"]]
        for number in range(SAMPLES):
            time.sleep(minutes * 60 / SAMPLES)
            samples.append(round(sum(map(resident_mb, pids)), 1))
            if number % 6 == 5:
                console.print(f"{(number + 1) * minutes / SAMPLES:.1f} min: {samples[-1]:.0f} MB in {len(pids)} workers")
        processed = int(running.observed().total("slow", "executed"))
        running.kill(wait=0)
    third = SAMPLES // 3
    result = {"minutes": minutes, "processed": processed, "second_third_max_mb": max(samples[third:-third]),
              "last_third_max_mb": max(samples[-third:]), "samples_mb": samples}
    console.print(f"largest in the second third {result['second_third_max_mb']} MB, in the last "
                  f"{result['last_third_max_mb']} MB; {processed:,} tuples. Kept in {keep('memory', result)}")
    return result

"""Faults of the driver: it is killed and restarted as by a supervisor, or overtaken by a second one on the same store."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from millrace.bench.faults.comparison import compared
from millrace.bench.faults.meters import FaultFigures, LongestGap
from millrace.bench.faults.plan import KILL_DRIVER, TAKEOVER
from millrace.bench.faults.soak import NAME, Stuck
from millrace.bench.redis_server import redis_server
from millrace.bench.stored_counts import stored_positions
from millrace.config import CHECKPOINTS, GUARANTEE, HISTORY, RESIDENT, WAVE_INTERVAL
from millrace.runtime.checkpoints.store import open_store

KILLS, TAKEOVERS = 3, 2
WAVES = 2  # further waves, with rows, before the next fault
NEW_ROWS_SECONDS = 180.0  # for the first row of a driver, before it counts as stuck
OVERTAKEN_SECONDS = 60.0  # for an overtaken driver to end
END_SECONDS = 120.0
LOOK_SECONDS = 0.02
PROOFS = {
    KILL_DRIVER: "the process is gone, and rows of a later epoch or of new processes are visible",
    TAKEOVER: "rows of a later epoch or of new processes are visible, and the first driver has ended with an error",
}
_EPOCH = re.compile(r"part-\d+-w\d+-(\d+)-")


class Driver:
    """A process of `millrace run`."""

    def __init__(self, number: int, directory: Path, settings: dict[str, Any], engine: str, master: str, slots: int) -> None:
        self.log = directory / f"driver-{number}.log"
        command = [sys.executable, "-m", "millrace.cli.main", "run", "millrace.workloads.audit:StatefulWordCount",
                   "--name", NAME, "--engine", engine, "--master", master, "--slots", str(slots),
                   "--cluster", f"faults-{os.getpid()}-{number}", "--resume", "auto", "--json"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.pid = self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def end(self, number: signal.Signals, seconds: float = END_SECONDS) -> int:
        """Send a signal and wait for the end."""
        self._process.send_signal(number)
        return self._process.wait(seconds)

    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


class DriverSoak:
    """Faults on drivers, one after the other; a second driver is started only if the store has no lock."""

    def __init__(self, start: Callable[[int], Driver], output: Path, console: Console) -> None:
        self._start_driver, self._output, self._console = start, output, console
        self.figures = FaultFigures()
        self.overtaken: list[float] = []  # seconds until an overtaken driver had ended
        self._started = 0
        self._driver = self._start()

    def _start(self) -> Driver:
        self._started += 1
        return self._start_driver(self._started)

    def run(self, takeovers: int) -> None:
        self._await_rows(self._driver, set(), LongestGap())
        for kind in [KILL_DRIVER] * KILLS + [TAKEOVER] * takeovers:
            self._await_files(WAVES)
            began, before, gap = time.monotonic(), runs_of(self._output), LongestGap()
            gap.unpause(began)
            self._break(kind, before, gap)
            took = time.monotonic() - began
            gap.pause(time.monotonic())
            self.figures.effective[kind] += 1
            self.figures.recovered(kind, gap.longest, took)
            self._console.print(f"{kind}: first new row after {took:.1f} s")

    def _break(self, kind: str, before: set[str], gap: LongestGap) -> None:
        first = self._driver
        if kind == KILL_DRIVER:
            first.end(signal.SIGKILL)
        self._driver = self._start()
        self._await_rows(self._driver, before, gap)
        if kind == TAKEOVER:
            self._await_end(first)

    def _await_rows(self, driver: Driver, before: set[str], gap: LongestGap) -> None:
        """Wait until rows are visible that no earlier driver's workers have written."""
        def has_rows() -> bool:
            gap.look(visible_bytes(self._output), time.monotonic())
            return not runs_of(self._output) <= before

        self._wait(has_rows, driver, NEW_ROWS_SECONDS, "showed no row")

    def _await_files(self, count: int) -> None:
        for _ in range(count):
            seen = visible_bytes(self._output)
            self._wait(partial(self._has_more, seen), self._driver, NEW_ROWS_SECONDS, "showed no further row")

    def _has_more(self, seen: int) -> bool:
        return visible_bytes(self._output) > seen

    def _await_end(self, driver: Driver) -> None:
        began = time.monotonic()
        while driver.code is None:
            if time.monotonic() - began > OVERTAKEN_SECONDS:
                raise Stuck(f"the overtaken driver still ran after {OVERTAKEN_SECONDS:g} s:\n{driver.last_lines()}")
            time.sleep(LOOK_SECONDS)
        self.overtaken.append(time.monotonic() - began)
        if driver.code == 0:
            raise Stuck(f"the overtaken driver ended without an error:\n{driver.last_lines()}")

    def _wait(self, condition: Callable[[], bool], driver: Driver, seconds: float, otherwise: str) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if driver.code is not None:
                raise Stuck(f"a driver {otherwise} and ended with exit code {driver.code}; last lines:\n{driver.last_lines()}")
            if time.monotonic() > until:
                raise Stuck(f"a driver {otherwise} within {seconds:g} s; last lines:\n{driver.last_lines()}")
            time.sleep(LOOK_SECONDS)

    def finish(self) -> None:
        """Stop the last driver as Ctrl-C does: it commits a last wave."""
        if (code := self._driver.end(signal.SIGINT)) != 0:
            raise Stuck(f"the last driver ended with exit code {code}:\n{self._driver.last_lines()}")

    def abort(self) -> None:
        if self._driver.code is None:
            self._driver.end(signal.SIGKILL)


def runs_of(output: Path) -> set[str]:
    """The runs that have written visible rows: by epoch, or by file where files carry none."""
    return {match[1] if (match := _EPOCH.match(path.name)) else path.name for path in output.glob("part-*")
            if path.stat().st_size}


def visible_bytes(output: Path) -> int:
    return sum(path.stat().st_size for path in output.glob("part-*"))


@contextmanager
def _store(base: Path, engine: str) -> Iterator[tuple[str, str]]:
    """Yield the URL of a store, one without a lock if possible, and why there is none."""
    directory = str(base / "driver-checkpoints")
    if engine != RESIDENT:
        yield directory, "a store for batches is a file system, and its lock refuses a second driver"
        return
    with redis_server(base) as (client, missing):
        port = client.connection_pool.connection_kwargs["port"] if client is not None else 0
        yield f"redis://127.0.0.1:{port}" if port else directory, missing


def run_driver_faults(base: Path, engine: str, master: str, slots: int, guarantee: str, rate: int,
                      console: Console) -> dict[str, Any]:
    """Kill and overtake drivers, then check every word. Returns figures for `bench faults --json`."""
    output = base / "driver-output"
    output.mkdir()
    with _store(base, engine) as (store, no_takeover):
        settings = {CHECKPOINTS.key: store, HISTORY.key: "none", GUARANTEE.key: guarantee, WAVE_INTERVAL.key: 1.0,
                    "path": str(output), "rate": rate}
        soak = DriverSoak(lambda number: Driver(number, base, settings, engine, master, slots), output, console)
        try:
            soak.run(0 if no_takeover else TAKEOVERS)
            soak.finish()
        finally:
            soak.abort()
        opened = open_store(store)
        positions = stored_positions(opened, NAME, "lines")
        result = compared(output, opened, dict(enumerate(positions)))
        opened.close()
    kinds = soak.figures.by_kind([KILL_DRIVER, TAKEOVER])
    return {"kinds": kinds, "driver_restart_ms": kinds[KILL_DRIVER]["recovery_p50_ms"], "no_takeover": no_takeover,
            "overtaken_ended_ms": round(median(soak.overtaken) * 1000) if soak.overtaken else None, "compared": result}

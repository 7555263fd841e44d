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
END_SECONDS = 600.0  # a stop commits everything emitted, and takes as long as that needs
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
        """Send a signal and wait for the end. Returns the exit code."""
        self._process.send_signal(number)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Stuck(f"a driver had not ended {seconds:g} s after {number.name}; last lines:\n"
                        f"{self.last_lines()}") from None

    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


class DriverSoak:
    """Faults on drivers, one after the other; a second driver is started only if the store has no lock."""

    def __init__(self, start: Callable[[int], Driver], output: Path, console: Console) -> None:
        self._start_driver, self._output, self._console = start, output, console
        self.figures = FaultFigures()
        self.overtaken: list[float] = []  # seconds from the start of a second driver to the end of the first
        self._drivers: list[Driver] = []  # in the order of their starts
        self._ended: dict[int, float] = {}  # time when a driver, by its place in that order, was seen to have ended

    @property
    def _newest(self) -> Driver:
        return self._drivers[-1]

    def _start(self) -> None:
        self._drivers.append(self._start_driver(len(self._drivers) + 1))

    def run(self, takeovers: int) -> None:
        self._start()
        self._await_rows(set(), LongestGap())
        for kind in [KILL_DRIVER] * KILLS + [TAKEOVER] * takeovers:
            self._await_files(WAVES)
            self._cause(kind)

    def _cause(self, kind: str) -> None:
        """Kill or overtake the driver. Its recovery, and the gap, end with the first new row, and not with the end of an
        overtaken driver."""
        before, gap, began = runs_of(self._output), LongestGap(), time.monotonic()
        gap.unpause(began)
        if kind == KILL_DRIVER:
            self._newest.end(signal.SIGKILL)
        self._start()
        self._await_rows(before, gap)
        took = time.monotonic() - began
        gap.pause(began + took)
        if kind == TAKEOVER:
            self._await_end_of_overtaken(began)
        self.figures.effective[kind] += 1
        self.figures.recovered(kind, gap.longest, took)
        self._console.print(f"{kind}: first new row after {took:.1f} s")

    def _await_rows(self, before: set[str], gap: LongestGap) -> None:
        """Wait until rows are visible that no earlier driver's workers have written."""
        def has_rows() -> bool:
            gap.look(visible_bytes(self._output), time.monotonic())
            return not runs_of(self._output) <= before

        self._wait(has_rows, NEW_ROWS_SECONDS, "a driver showed no row", self._newest)

    def _await_files(self, count: int) -> None:
        for _ in range(count):
            seen = visible_bytes(self._output)
            self._wait(partial(self._has_more, seen), NEW_ROWS_SECONDS, "a driver showed no further row", self._newest)

    def _has_more(self, seen: int) -> bool:
        return visible_bytes(self._output) > seen

    def _await_end_of_overtaken(self, began: float) -> None:
        """`began`: time when the driver that overtakes was started."""
        first = len(self._drivers) - 2
        driver = self._drivers[first]
        self._wait(lambda: first in self._ended, OVERTAKEN_SECONDS, "the overtaken driver still ran", driver)
        if driver.code == 0:
            raise Stuck(f"the overtaken driver ended without an error:\n{driver.last_lines()}")
        self.overtaken.append(self._ended[first] - began)

    def _wait(self, condition: Callable[[], bool], seconds: float, otherwise: str, shown: Driver) -> None:
        """Wait for a condition, which must come true while the newest driver runs. `shown`: the driver whose log tells why it
        did not."""
        until = time.monotonic() + seconds
        while not self._holds(condition):
            if (code := self._newest.code) is not None:
                raise Stuck(f"{otherwise}, and the newest driver ended with exit code {code}; last lines:\n"
                            f"{self._newest.last_lines()}")
            if time.monotonic() > until:
                raise Stuck(f"{otherwise} after {seconds:g} s; last lines:\n{shown.last_lines()}")
            time.sleep(LOOK_SECONDS)

    def _holds(self, condition: Callable[[], bool]) -> bool:
        """Evaluate a condition, and note which drivers have ended: an overtaken one may end before the other's first row."""
        for place, driver in enumerate(self._drivers):
            if driver.code is not None:
                self._ended.setdefault(place, time.monotonic())
        return condition()

    def finish(self) -> None:
        """Stop the last driver as service managers do: it commits a last wave. A benchmark in the background of a shell has
        drivers that ignore SIGINT."""
        if (code := self._newest.end(signal.SIGTERM)) != 0:
            raise Stuck(f"the last driver ended with exit code {code}:\n{self._newest.last_lines()}")

    def abort(self) -> None:
        """End every driver that still runs, overtaken ones too."""
        for driver in self._drivers:
            if driver.code is None:
                driver.end(signal.SIGKILL)


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
        yield directory, ("drivers of the microbatch engine are not overtaken here: their store is a directory, whose lock "
                          "refuses a second driver")
        return
    with redis_server(base) as (client, missing):
        port = client.connection_pool.connection_kwargs["port"] if client is not None else 0
        yield f"redis://127.0.0.1:{port}" if port else directory, missing


def run_driver_faults(base: Path, master: str, slots: int, rate: int, result: dict[str, Any], console: Console) -> None:
    """Kill and overtake drivers, then check every word. The figures go into `result`, the object of `bench faults --json`, even
    if a driver gets stuck; then nothing is compared."""
    output = base / "driver-output"
    output.mkdir()
    with _store(base, result["engine"]) as (store, no_takeover):
        settings = {CHECKPOINTS.key: store, HISTORY.key: "none", GUARANTEE.key: result["guarantee"], WAVE_INTERVAL.key: 1.0,
                    "path": str(output), "rate": rate}
        soak = DriverSoak(lambda number: Driver(number, base, settings, result["engine"], master, slots), output, console)
        try:
            soak.run(0 if no_takeover else TAKEOVERS)
            soak.finish()
        finally:
            soak.abort()
            _enter_figures(soak, result)
            result["drivers"] |= {"rate": rate, "no_takeover": no_takeover}
        opened = open_store(store)
        positions = stored_positions(opened, NAME, "lines")
        result["drivers"]["compared"] = compared(output, opened, dict(enumerate(positions)))
        opened.close()


def _enter_figures(soak: DriverSoak, result: dict[str, Any]) -> None:
    kinds = soak.figures.by_kind([KILL_DRIVER, TAKEOVER])
    result["kinds"].update(kinds)
    result["kinds_without_effect"] += [kind for kind, of in kinds.items() if not of["n"]]
    result["proofs"].update(PROOFS)
    result["driver_restart_ms"] = kinds[KILL_DRIVER]["recovery_p50_ms"]
    result["drivers"] = {"overtaken_ended_ms": round(median(soak.overtaken) * 1000) if soak.overtaken else None}

"""Faults of the driver with drivers that only write files, on a virtual clock."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from millrace.bench.faults import drivers
from millrace.bench.faults.drivers import KILLS, NEW_ROWS_SECONDS, OVERTAKEN_SECONDS, TAKEOVERS, Driver, DriverSoak
from millrace.bench.faults.plan import KILL_DRIVER, TAKEOVER
from millrace.bench.faults.soak import Stuck
from millrace.config import EXACTLY_ONCE, MICROBATCH

FIRST_ROW, CLAIM = 5.0, 4.0  # seconds after the start of a driver


class FakeClock:
    """Takes the place of the module `time`. A sleep moves it and does what is due meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [action for at, action in self._due if at <= self.now]
        self._due = [(at, action) for at, action in self._due if at > self.now]
        for action in due:
            action()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._due.append((self.now + seconds, action))


class FakeDriver:
    """Shows rows every second. `code`: the exit code."""

    def __init__(self, cluster: FakeDrivers, number: int) -> None:
        self._cluster, self._number, self._rows = cluster, number, 0
        self.code: int | None = None
        self.overtaken = False
        cluster.clock.after(FIRST_ROW, self._show_rows)
        cluster.clock.after(CLAIM, self._claim)

    def _show_rows(self) -> None:
        if self.code is None and not self.overtaken and self._number not in self._cluster.silent:
            self._rows += 1
            (self._cluster.output / f"part-0-w{self._rows:012}-{self._number}-ab.audit").write_bytes(b"row")
            self._cluster.clock.after(1.0, self._show_rows)

    def _claim(self) -> None:
        for driver in self._cluster.drivers:
            if driver is not self and driver.code is None:
                driver.overtaken = True
                self._cluster.clock.after(self._cluster.ends_after, driver.fail)

    def fail(self) -> None:
        if self.code is None:
            self.code = self._cluster.overtaken_code

    def end(self, number: signal.Signals, seconds: float = 0.0) -> int:
        if self.code is None:
            self.code = self._cluster.stopped_code if number == signal.SIGTERM else -number
        return self.code

    def last_lines(self) -> str:
        return f"log of driver {self._number}"


class FakeDrivers:
    """Starts drivers. An overtaken one ends `ends_after` seconds after the second one has claimed its epoch."""

    def __init__(self, clock: FakeClock, output: Path) -> None:
        self.clock, self.output = clock, output
        self.drivers: list[FakeDriver] = []
        self.ends_after, self.overtaken_code, self.stopped_code = 10.0, 1, 0
        self.silent: set[int] = set()  # numbers of drivers that show no row

    def start(self, number: int) -> Driver:
        self.drivers.append(FakeDriver(self, number))
        return cast(Driver, self.drivers[-1])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDrivers:
    clock = FakeClock()
    monkeypatch.setattr(drivers, "time", clock)
    return FakeDrivers(clock, tmp_path)


def soak_of(cluster: FakeDrivers) -> DriverSoak:
    return DriverSoak(cluster.start, cluster.output, Console(quiet=True))


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=3 * drivers.LOOK_SECONDS)


def test_recovery_ends_with_the_first_new_row_and_not_with_the_end_of_the_overtaken_driver(cluster: FakeDrivers) -> None:
    soak = soak_of(cluster)
    soak.run(TAKEOVERS)
    soak.finish()
    assert [driver.code for driver in cluster.drivers] == [-signal.SIGKILL] * KILLS + [1] * TAKEOVERS + [0]
    assert soak.figures.effective == {KILL_DRIVER: KILLS, TAKEOVER: TAKEOVERS}
    assert soak.figures.recoveries == {KILL_DRIVER: [near(FIRST_ROW)] * KILLS, TAKEOVER: [near(FIRST_ROW)] * TAKEOVERS}
    assert soak.figures.gaps[KILL_DRIVER] == [near(FIRST_ROW)] * KILLS
    assert all(gap <= 2.1 for gap in soak.figures.gaps[TAKEOVER]), "the first driver shows rows until the second has its epoch"
    assert soak.overtaken == [near(CLAIM + 10.0)] * TAKEOVERS


def test_an_overtaken_driver_may_end_before_the_first_row_of_the_other(cluster: FakeDrivers) -> None:
    cluster.ends_after = 0.5
    soak = soak_of(cluster)
    soak.run(1)
    assert soak.overtaken == [near(CLAIM + 0.5)]


def test_an_overtaken_driver_that_goes_on_is_reported_and_ended(cluster: FakeDrivers) -> None:
    cluster.ends_after = 10 * OVERTAKEN_SECONDS
    soak = soak_of(cluster)
    with pytest.raises(Stuck, match=rf"overtaken driver still ran after 60 s; last lines:\nlog of driver {KILLS + 1}"):
        soak.run(1)
    assert [driver.code for driver in cluster.drivers[KILLS:]] == [None, None]
    soak.abort()
    assert [driver.code for driver in cluster.drivers[KILLS:]] == [-signal.SIGKILL] * 2
    assert soak.figures.effective == {KILL_DRIVER: KILLS}


def test_an_overtaken_driver_must_end_with_an_error(cluster: FakeDrivers) -> None:
    cluster.overtaken_code = 0
    with pytest.raises(Stuck, match="overtaken driver ended without an error"):
        soak_of(cluster).run(1)


def test_a_driver_without_rows_is_stuck(cluster: FakeDrivers) -> None:
    cluster.silent = {2}
    soak = soak_of(cluster)
    with pytest.raises(Stuck, match=r"showed no row after 180 s; last lines:\nlog of driver 2"):
        soak.run(0)
    assert cluster.clock.now > NEW_ROWS_SECONDS


def test_a_driver_that_ends_without_rows_is_reported_with_its_exit_code(cluster: FakeDrivers) -> None:
    cluster.silent = {2}
    cluster.clock.after(30.0, lambda: cluster.drivers[-1].end(signal.SIGHUP))
    with pytest.raises(Stuck, match=r"newest driver ended with exit code -1; last lines:\nlog of driver 2"):
        soak_of(cluster).run(0)


def test_a_last_driver_that_fails_at_its_stop_is_reported(cluster: FakeDrivers) -> None:
    cluster.stopped_code = 3
    soak = soak_of(cluster)
    soak.run(0)
    with pytest.raises(Stuck, match="last driver ended with exit code 3"):
        soak.finish()


def test_a_driver_that_does_not_stop_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class EndlessProcess:
        pid = 1

        def __init__(self, command: list[str], stdout: Any, stderr: Any) -> None:
            assert command[-5:] == ["--resume", "auto", "--json", "--set", "rate=5"]
            stdout.write(b"waits for the last wave\n")

        def send_signal(self, number: signal.Signals) -> None:
            assert number == signal.SIGINT

        def wait(self, seconds: float) -> int:
            raise subprocess.TimeoutExpired("millrace run", seconds)

    monkeypatch.setattr(drivers, "subprocess", SimpleNamespace(Popen=EndlessProcess, STDOUT=subprocess.STDOUT,
                                                               TimeoutExpired=subprocess.TimeoutExpired))
    driver = Driver(1, tmp_path, {"rate": 5}, MICROBATCH, "local[2]", 1)
    with pytest.raises(Stuck, match=r"had not ended 7 s after SIGINT; last lines:\nwaits for the last wave"):
        driver.end(signal.SIGINT, 7.0)


def result_of_the_soak() -> dict[str, Any]:
    return {"engine": MICROBATCH, "guarantee": EXACTLY_ONCE, "kinds": {}, "proofs": {}, "kinds_without_effect": []}


def run_driver_part(base: Path, cluster: FakeDrivers, result: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.output = base / "driver-output"
    monkeypatch.setattr(drivers, "Driver", lambda number, *arguments: cluster.start(number))
    drivers.run_driver_faults(base, "local[2]", 1, 400, result, Console(quiet=True))


def test_the_figures_of_drivers_until_one_is_stuck_are_kept(tmp_path: Path, cluster: FakeDrivers,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.silent, result = {3}, result_of_the_soak()
    with pytest.raises(Stuck, match="showed no row"):
        run_driver_part(tmp_path, cluster, result, monkeypatch)
    assert result["kinds"][KILL_DRIVER]["n"] == 1 and result["driver_restart_ms"] / 1000 == near(FIRST_ROW)
    assert result["drivers"]["rate"] == 400 and "compared" not in result["drivers"]
    assert all(driver.code is not None for driver in cluster.drivers)


def test_a_directory_cannot_be_overtaken_and_the_result_says_so(tmp_path: Path, cluster: FakeDrivers,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    result = result_of_the_soak()
    monkeypatch.setattr(drivers, "stored_positions", lambda store, name, component: [7, 8])
    monkeypatch.setattr(drivers, "compared", lambda output, store, expected: expected)
    run_driver_part(tmp_path, cluster, result, monkeypatch)
    assert result["kinds"][TAKEOVER]["n"] == 0 and result["kinds_without_effect"] == [TAKEOVER]
    assert set(result["proofs"]) == {KILL_DRIVER, TAKEOVER}
    assert result["drivers"].pop("no_takeover").endswith("a directory, whose lock refuses a second driver")
    assert result["drivers"] == {"rate": 400, "overtaken_ended_ms": None, "compared": {0: 7, 1: 8}}
    assert cluster.drivers[-1].code == 0

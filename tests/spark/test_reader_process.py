"""The example of a tap's reader in a process of its own: it outlives the topology's driver, and ends quietly at Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from examples.tapped import DEVICES, LIMIT, Watch

from millrace.model.graph import graph_of
from support.processes.driver import DriverProcess
from support.processes.family import in_session

SECONDS = 240.0
LOOK_SECONDS = 0.2
ROOT = Path(__file__).parents[2]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[bool], DriverProcess]]:
    name, drivers = f"watched-{os.getpid()}", list[DriverProcess]()

    def make(resume: bool) -> DriverProcess:
        graph = graph_of(Watch, config={"topology.checkpoint.interval.secs": 0.3, "rate": 300})
        drivers.append(DriverProcess(name, tmp_path / "store", graph, resume))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def make() -> subprocess.Popen[str]:
        started.append(subprocess.Popen(
            [sys.executable, "-m", "examples.tapped", str(tmp_path / "alarms")], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True))
        return started[-1]

    yield make
    for process in started:
        for pid in in_session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def committed_rows(directory: Path) -> list[dict[str, Any]]:
    """The rows that Spark's file sink has committed: its log names the files."""
    log = directory / "_spark_metadata"
    lines = [line for path in log.glob("[0-9]*") for line in path.read_text().splitlines() if line.startswith("{")]
    names = {Path(json.loads(line)["path"]).name for line in lines}
    return [row for name in names for row in pq.read_table(directory / name).to_pylist()]


def until_rows(process: subprocess.Popen[str], directory: Path, count: int) -> int:
    deadline = time.monotonic() + SECONDS
    while (rows := len(committed_rows(directory))) <= count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{rows} rows, and not more than {count}, after {SECONDS:g} s"
        time.sleep(LOOK_SECONDS)
    return rows


def alarms(device: str, count: int) -> list[int]:
    """The first alarms of a device, computed from the example's formula."""
    values = (n * 7919 % 101 for n in range(int(device[1:]), 10**9, DEVICES))
    above = (value for value in values if value > LIMIT)
    return [next(above) for _ in range(count)]


@pytest.mark.slow  # tests/process/test_tap_reader_resumed.py does the same without Spark
def test_the_reader_outlives_the_driver_and_ends_quietly(start: Callable[[bool], DriverProcess], tmp_path: Path,
                                                         reader: Callable[[], subprocess.Popen[str]]) -> None:
    first = start(False)
    first.submitted(SECONDS)
    process = reader()
    before = until_rows(process, tmp_path / "alarms", 0)
    first.kill()
    second = start(True)
    second.submitted(SECONDS)
    until_rows(process, tmp_path / "alarms", before + 20)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert "Traceback" not in err and "Exception" not in err, err
    assert out == "stopped: the reader continues from its checkpoint when it is started again\n"
    by_device: dict[str, dict[int, int]] = {}
    rows = committed_rows(tmp_path / "alarms")
    for row in rows:
        by_device.setdefault(row["device"], {})[row["number"]] = row["value"]
    assert sum(map(len, by_device.values())) == len(rows), "no row comes twice"
    for device, numbered in by_device.items():
        assert sorted(numbered) == list(range(1, len(numbered) + 1)), "none is missing"
        assert sorted(numbered.values()) == sorted(alarms(device, len(numbered)))

"""State on Spark: an executor is killed with its workers, and the driver is killed and restarted with --resume."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.bench.stored_counts import stored_counts
from millrace.config import HEARTBEAT_TIMEOUT
from millrace.errors import MasterUnreachable
from millrace.master.requests.client import ask
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.spark.engine import ResidentEngine
from millrace.workloads.audit import audit, true_counts
from support.patience import HEARTBEAT_SECONDS
from support.processes.family import executor_of, in_session
from support.topologies.audited import SECONDS, StatefulStream, assert_all_exact, assert_exact

SLOTS = 3
LOOK_SECONDS = 0.1  # between polls of another process
START_SECONDS = 3 * SECONDS  # for what includes the start of Spark
CLUSTER, NAME = "kept", "stateful"


def test_an_executor_is_killed_with_its_workers(tmp_path: Path) -> None:
    with ResidentEngine("local-cluster[2,2,700]", SLOTS, name=f"state-{os.getpid()}",
                        settings={"worker.node.by": "executor", "history.url": "none"}) as engine:
        stream = StatefulStream(engine.master, tmp_path, rate=1000)
        stream.wave(2)
        executors = [executor_of(connection.hello.pid) for connection in list(engine.master.connections.values())]
        victim = max(executors, key=executors.count)
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        stream.until(lambda: stream.state.losses >= executors.count(victim))
        stream.wave(2)
        stream.until(lambda: stream.slots() == set(range(SLOTS)))  # Spark has restarted them, and their tasks have returned
        stream.wave(1)
        assert_all_exact(stream.finish_both())


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `millrace run`, each in its own session, so that all processes that it starts can be found."""
    directory = tempfile.mkdtemp(prefix="run")  # hides other clusters; sockets need a short path
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    started: list[subprocess.Popen[str]] = []
    settings = {"path": tmp_path / "output", "rate": 1000, "topology.checkpoint.interval.secs": 0.5,
                HEARTBEAT_TIMEOUT.key: HEARTBEAT_SECONDS}

    def start(*arguments: str) -> subprocess.Popen[str]:
        options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        started.append(subprocess.Popen(
            [sys.executable, "-m", "millrace.cli.main", "run", "millrace.workloads.audit:StatefulWordCount", "--name", NAME,
             "--cluster", CLUSTER, "--slots", "2", "--set", f"checkpoint.store={tmp_path / 'checkpoints'}", "--json",
             *options, *arguments],
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        for pid in in_session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()
    shutil.rmtree(directory)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + START_SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {START_SECONDS:g} s"
        time.sleep(LOOK_SECONDS)
    return result


def committed(process: subprocess.Popen[str], after: int) -> int:
    """Wait for a wave with a number above `after`."""
    def newer() -> int:
        assert process.poll() is None, process.communicate()
        try:
            shown = ask(CLUSTER, "state")["topologies"]
        except MasterUnreachable:
            return 0
        return shown[0]["wave"] if shown and shown[0]["wave"] > after else 0

    return int(until(newer, f"a wave after {after} is committed"))


def test_the_driver_is_killed_and_resumed(driver: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    first = driver("--resume", "auto")
    wave = committed(first, 3)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = driver("--resume", "auto")  # while workers of the first may still be alive
    committed(second, wave + 3)
    os.killpg(second.pid, signal.SIGINT)
    _, err = second.communicate(timeout=START_SECONDS)
    assert second.returncode == 0 and "Traceback" not in err, err
    until(lambda: not in_session(first.pid) and not in_session(second.pid), "every process is gone")
    store = open_store(str(tmp_path / "checkpoints"))
    manifest = Checkpoints(store, NAME).latest()
    assert manifest is not None and manifest.wave > wave + 3
    expected = {task.index: position for task, position in manifest.positions().items()}
    assert_exact(audit(tmp_path / "output", expected))
    assert stored_counts(store, NAME) == true_counts(expected)

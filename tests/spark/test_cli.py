"""The commands as users run them: separate processes that start Spark and must leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.config import HEARTBEAT_TIMEOUT
from millrace.errors import MasterUnreachable
from millrace.master.requests.client import ask
from support.patience import HEARTBEAT_SECONDS
from support.processes.family import command, in_session
from support.servers.redis_server import running_tls_redis
from support.topologies.audited import SECONDS

MILLRACE = [sys.executable, "-m", "millrace.cli.main"]
WORD_COUNT = "millrace.workloads.wordcount:WordCount"
NAME = "wordcount"
SPARK_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
WHOLE_SECONDS = 4 * SECONDS  # for a whole command, or what includes the start of Spark
LOOK_SECONDS = 0.1  # between polls of another process


@pytest.fixture
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Hide all clusters of this machine but those of the test, and the checkpoints of other tests."""
    directory = tempfile.mkdtemp(prefix="run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    monkeypatch.setenv("XDG_STATE_HOME", f"{directory}/state")
    yield Path(directory) / "millrace"
    shutil.rmtree(directory)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WHOLE_SECONDS
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {WHOLE_SECONDS:g} s"
        time.sleep(LOOK_SECONDS)
    return result


def millrace(*arguments: str) -> Any:
    """The JSON that a command prints."""
    done = subprocess.run([*MILLRACE, *arguments, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Run:
    """`millrace run` in its own session, so that all processes that it starts can be found."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen([*MILLRACE, "run", WORD_COUNT, "--slots", "2", *arguments], text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        start_new_session=True)
        self.pid = self.process.pid

    def wait_running(self) -> dict[str, Any]:
        """The first status in which words are counted."""
        return until(self._counting, "words are counted")  # type: ignore[no-any-return]

    def _counting(self) -> dict[str, Any] | None:
        assert self.process.poll() is None, self.process.communicate()
        try:
            status: dict[str, Any] = ask(None, "status")
        except MasterUnreachable:
            return None
        topology = next(iter(status["topologies"]), None)
        counting = topology and topology["status"] == "running" and component(topology, "count")["executed"] > 0
        return status if counting else None

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=WHOLE_SECONDS)
        until(lambda: not in_session(self.pid), "every process is gone")
        return self.process.returncode, out, err

    def clean_up(self) -> None:
        for pid in in_session(self.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


def component(topology: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in topology["components"] if row["name"] == name)


@pytest.fixture
def run(runtime_directory: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(*arguments: str) -> Run:
        runs.append(Run("--set", "rate=1000", "--set", f"{HEARTBEAT_TIMEOUT.key}={HEARTBEAT_SECONDS}", *arguments))
        return runs[-1]

    yield start
    for started in runs:
        started.clean_up()


def test_passwords_are_in_no_process_list_and_in_no_output(run: Callable[..., Run], tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    password = "hunter2-and-more"
    secret = tmp_path / "secret"
    secret.write_text(f"{password}\n")
    listed: set[str] = set()

    def list_processes(started: Run) -> bool:
        listed.update(" ".join(command(pid)) for pid in in_session(started.pid))
        return started._counting() is not None

    with running_tls_redis(tmp_path, password) as server:
        monkeypatch.setenv("STORE", server.url)
        started = run("--json", "--scheduler", "tstorm", "--set", "checkpoint.store=env:STORE", "--set", "url=env:STORE",
                      "--set", f"spark.hadoop.a.password=@{secret}")
        until(lambda: list_processes(started), "words are counted")
        shown = [json.dumps(millrace(*verb.split())) for verb in ("status", "plan", "state", "load", "scheduler show")]
        millrace("load", "--save", str(tmp_path / "saved"))
        list_processes(started)
        millrace("kill", NAME)
        code, out, err = started.end()
    assert code == 0, err
    assert any(SPARK_SUBMIT in line for line in listed) and any("spark.speculation" in line for line in listed)
    assert f"rediss://127.0.0.1:{server.port}/0" in shown[2]
    for text in (*listed, *shown, out, err, (tmp_path / "saved").read_text()):
        assert password not in text


def test_status_pause_unpause_and_kill_from_another_process(run: Callable[..., Run]) -> None:
    started = run("--json", "--cluster", "mine")
    started.wait_running()
    status = millrace("status")
    assert status["cluster"] == "mine"
    assert [worker["slot"] for worker in status["workers"]] == [0, 1]
    assert {worker["pid"] for worker in status["workers"]} <= set(in_session(started.pid))
    shown = subprocess.run([*MILLRACE, "status"], capture_output=True, text=True, check=True).stdout
    assert "cluster mine" in shown and NAME in shown and "split" in shown
    millrace("pause", NAME)
    until(lambda: ask("mine", "status")["topologies"][0]["status"] == "paused", "it is paused")
    millrace("unpause", NAME)
    until(lambda: ask("mine", "status")["topologies"][0]["status"] == "running", "it runs again")
    unknown = subprocess.run([*MILLRACE, "kill", "ghost"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 1 and unknown.stderr == f"millrace: no topology named 'ghost' is running; running: {NAME}\n"
    millrace("kill", NAME, "--wait", "5", "--cluster", "mine")
    code, out, err = started.end()
    assert code == 0 and "Traceback" not in err
    assert json.loads(out)["name"] == NAME, "nothing but the JSON on stdout"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_in_order(number: signal.Signals, run: Callable[..., Run], runtime_directory: Path) -> None:
    started = run()
    started.wait_running()
    if number == signal.SIGINT:
        os.killpg(started.pid, number)  # as a terminal does for Ctrl-C
    else:
        os.kill(started.pid, number)
    code, out, err = started.end()
    assert code == 0
    assert "Traceback" not in err + out and "stopping" in out
    assert list(runtime_directory.iterdir()) == []


@pytest.mark.slow
def test_checkpoints_survive_a_run_without_resume_or_fresh(run: Callable[..., Run]) -> None:
    def ran(*flags: str) -> tuple[int, str, str]:
        return run("--json", "--seconds", "2", *flags).end()

    assert ran()[0] == 0  # leaves a checkpoint
    code, out, err = ran()
    assert (code, out) == (1, "") and "Traceback" not in err
    message = err.splitlines()[-1]
    assert message.startswith("millrace: ") and f"has checkpoints of '{NAME}', the last of wave " in message
    assert "Choose --resume (resume=True) to continue from there, or --fresh (resume=False) to start over" in message
    for flag in ("--resume", "--fresh"):
        assert ran(flag)[0] == 0


@pytest.mark.parametrize("engine", ["resident", "microbatch"])
def test_a_signal_that_ends_spark_too(engine: str, run: Callable[..., Run], tmp_path: Path) -> None:
    """`systemctl stop` and `timeout` signal every process. There is no orderly stop, but one line reports it."""
    started = run("--engine", engine, "--master", "local[2]", "--slots", "1", "--set", "history.url=none",
                  "--set", f"checkpoint.store={tmp_path}")
    started.wait_running()
    os.killpg(started.pid, signal.SIGTERM)
    code, out, err = started.end()
    assert code == 1 and "Traceback" not in err + out
    assert err.splitlines()[-1].startswith("millrace: Spark ended before the engine")  # the JVM may print something too


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["resident", "microbatch"])
def test_spark_dies(engine: str, run: Callable[..., Run], tmp_path: Path) -> None:
    started = run("--engine", engine, "--master", "local[2]", "--slots", "1", "--set", "history.url=none",
                  "--set", f"checkpoint.store={tmp_path}")
    started.wait_running()
    for pid in [pid for pid in in_session(started.pid) if SPARK_SUBMIT in command(pid)]:
        os.kill(pid, signal.SIGKILL)
    code, out, err = started.end()
    assert code == 1 and "Traceback" not in err + out
    assert err.startswith("millrace: Spark ended before the engine") and err.count("\n") == 1


def test_ctrl_c_while_spark_starts(run: Callable[..., Run]) -> None:
    """Interrupt as soon as there is a JVM, which PySpark itself would leave behind."""
    started = run()
    until(lambda: any(SPARK_SUBMIT in command(pid) for pid in in_session(started.pid)), "Spark starts")
    os.killpg(started.pid, signal.SIGINT)
    code, out, err = started.end()
    assert code == 130
    assert "Exception" not in err + out and "Traceback" not in err + out


def test_no_process_outlives_a_killed_driver(run: Callable[..., Run]) -> None:
    started = run("--json")
    started.wait_running()
    os.kill(started.pid, signal.SIGKILL)
    code, _, _ = started.end()
    assert code == -signal.SIGKILL
    done = subprocess.run([*MILLRACE, "status"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no Millrace cluster is running" in done.stderr


def test_demo(runtime_directory: Path, tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    done = subprocess.run([*MILLRACE, "demo", "--seconds", "4", "--json", "--svg", str(picture)], capture_output=True,
                          text=True, check=False, start_new_session=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert {"tuples_in", "tuples_out", "lost", "repeated", "workers_killed", "words_per_s", "p50_ms", "p99_ms"} <= set(result)
    assert result["lost"] == 0
    assert result["workers_killed"] == 1
    assert result["tuples_out"] == result["tuples_in"] + result["repeated"] > 0
    assert result["words_per_s"] > 0 and 0 < result["p50_ms"] <= result["p99_ms"]
    assert done.stdout.count("\n") == 1, "nothing but the JSON on stdout"
    shown = "".join(ET.fromstring(picture.read_text()).itertext()).replace("\xa0", " ")
    counted = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) words counted", shown)]
    assert "kill -9 " in shown and " 0 lost" in shown
    assert len(counted) > 3 and counted == sorted(counted)
    assert re.search(r"kill -9.*words counted", shown, re.S), "the count rises after the kill"

"""`millrace test`: linters, types and the whole test suite; `--explore` runs property tests with fresh seeds."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from millrace.checkout import project_root

# Tests wait for processes most of the time: three files at once cost two cores little. The order of files is in
# tests/support/order.py.
WHOLE_SUITE = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"]
HASH_SEED = "0"  # as on Spark's executors
NO_TESTS_COLLECTED = 5  # exit code of pytest


def run_tests(arguments: list[str], install: bool = True, require_servers: bool = False) -> int:
    """Run pytest with `arguments`; without any, run the linters, the type checker and the whole suite.

    `install`: install the servers that tests need, if this is Debian and the user is root. `require_servers`: a test whose
    server is missing fails instead of being skipped.
    """
    root = project_root()
    if install:
        _install_servers(root)
    pytest = [sys.executable, "-m", "pytest", *(arguments or WHOLE_SUITE)]
    # With one hash seed, sets have the same order in every run: what happens on the virtual clock is due to the code alone.
    environment = {**_environment(), "PYTHONHASHSEED": HASH_SEED,
                   **({"MILLRACE_TEST_SERVERS": "required"} if require_servers else {})}
    if arguments:
        return _run(pytest, root, environment)
    return (_run([sys.executable, "-m", "ruff", "check", "."], root, environment)
            or _run_beside([sys.executable, "-m", "mypy"], pytest, root, environment))


def explore(minutes: float, arguments: list[str], install: bool = True) -> int:
    """Run the property tests with a fresh seed each round until the time is over or a test fails.

    A round that has begun is finished.
    """
    root = project_root()
    if install:
        _install_servers(root)
    end, rounds = time.monotonic() + minutes * 60, 0
    while rounds == 0 or time.monotonic() < end:
        seed = random.SystemRandom().randrange(1 << 32)
        chosen = [*(arguments or WHOLE_SUITE), "-m", "hypothesis and not slow", "--hypothesis-profile=explore",
                  f"--hypothesis-seed={seed}"]
        rounds += 1
        print(f"round {rounds}, seed {seed}", flush=True)
        code = _run([sys.executable, "-m", "pytest", *chosen], root, _environment())
        if code:
            if code != NO_TESTS_COLLECTED:
                print(f"failed with seed {seed}; to repeat: ./millrace test -- {shlex.join(chosen)}", flush=True)
            return code
    print(f"{rounds} rounds of the property tests passed", flush=True)
    return 0


def _install_servers(root: Path) -> None:
    """Installs missing servers, or prints why it cannot; the tests of a server that is still missing are skipped."""
    subprocess.run([sys.executable, "-m", "support.servers.install"], cwd=root / "tests", check=True)


def _environment() -> dict[str, str]:
    """The environment of the tests, in which Python keeps what it compiles: else hundreds of processes compile it again."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _run(command: list[str], root: Path, environment: dict[str, str]) -> int:
    _show(command)
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


def _run_beside(check: list[str], command: list[str], root: Path, environment: dict[str, str]) -> int:
    """Run a command while a check runs beside it; returns the first exit code that is not 0. A check that fails ends the
    command, so that its findings are seen at once."""
    _show(check)
    _show(command)
    checking = subprocess.Popen(check, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    running = subprocess.Popen(command, cwd=root, env=environment)
    try:
        findings = checking.communicate()[0]
        print(findings, end="", flush=True)
        if checking.returncode:
            running.send_signal(signal.SIGINT)
        code = running.wait()
        return checking.returncode or code
    finally:
        for process in (checking, running):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait()


def _show(command: list[str]) -> None:
    print("$", " ".join(["python", *command[1:]]), flush=True)

"""The test run itself: it does not depend on how it was started, and reports what it could not test."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from millrace.cli import testing
from support import order
from support.examples import examples
from support.servers import install
from support.servers.catalog import REDIS, Server

ROOT = Path(__file__).parents[2]
IGNORED = 'trap "" INT QUIT HUP; umask 077; exec "$@"'  # as a script's shell starts a command in the background
TEST_OF_PROPERTIES = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_all_numbers_are_small(number):
    assert number < 10_000

def test_without_examples():
    raise AssertionError("only property tests are explored")
"""


def pytest_run(*arguments: str, before: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run([*before, sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments], cwd=ROOT, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=120, check=False)


def test_processes_started_by_a_test_have_default_settings() -> None:
    program = ("import os, signal, sys, time; old = os.umask(0); status = open('/proc/self/status').read();"
               "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, old, time.tzname[0],"
               "sys.getfilesystemencoding(), status.partition('SigIgn:')[2].split()[0])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    interrupts, umask, zone, encoding, ignored = done.stdout.split()
    assert (interrupts, umask, zone, encoding) == ("True", str(0o022), "UTC", "utf-8")
    bits, expected = int(ignored, 16), (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)
    assert not [number for number in expected if bits >> number - 1 & 1]


def test_however_the_run_was_started() -> None:
    chosen = f"{Path(__file__).relative_to(ROOT)}::{test_processes_started_by_a_test_have_default_settings.__name__}"
    done = pytest_run(chosen, before=("bash", "-c", IGNORED, "bash"), TZ="Asia/Kathmandu", LC_ALL="POSIX", COLUMNS="20",
                      FORCE_COLOR="1", TERM="dumb")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_missing_server_is_counted_at_the_end_of_the_run() -> None:
    chosen = ("tests/services/test_redis_log.py", "tests/unit/api/test_grouping.py")
    done = pytest_run(*chosen, PATH="/nowhere", MILLRACE_TEST_SERVERS="")
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-2:]
    matched = re.fullmatch(r"NOT TESTED, (\d+) tests skipped: Redis .* \((\d+) tests need Redis\)\.", last[0])
    assert matched and int(matched[1]) == int(matched[2]) > 1, last
    assert re.search(rf"\d+ passed, {matched[1]} skipped", last[1]), last


def test_a_disk_that_cannot_be_mounted_is_reported_and_fails_no_run() -> None:
    done = pytest_run("tests/conformance/stores/test_directory_store.py", "-k", "full_disk", PATH="/nowhere",
                      MILLRACE_TEST_SERVERS="required")
    assert done.returncode == 0, done.stdout + done.stderr
    expected = "NOT TESTED, 2 tests skipped: full disks (2 tests need the right to mount a file system)."
    assert expected in done.stdout.splitlines()


def test_a_missing_server_fails_a_run_that_requires_it() -> None:
    done = pytest_run("tests/services/test_redis_log.py", PATH="/nowhere", MILLRACE_TEST_SERVERS="required")
    assert done.returncode == 1
    assert "Redis is not installed" in done.stdout and re.search(r"\d+ skipped", done.stdout) is None


def test_the_continuous_integration_requires_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "./millrace test --require-servers" in (ROOT / ".ci" / "run").read_text().splitlines()
    steps: list[tuple[list[str], str | None]] = []
    monkeypatch.setattr(testing, "_run", lambda step, root, environment: steps.append(
        (step[1:], environment.get("MILLRACE_TEST_SERVERS"))) or int(environment["PYTHONHASHSEED"]))
    monkeypatch.setattr(testing, "_run_beside", lambda check, command, root, environment:
                        testing._run(check, root, environment) or testing._run(command, root, environment))
    monkeypatch.delenv("MILLRACE_TEST_SERVERS", raising=False)
    assert testing.run_tests([], install=False, require_servers=True) == 0
    assert [step[:2] for step, _ in steps] == [["-m", "ruff"], ["-m", "mypy"], ["-m", "pytest"]]
    assert steps[-1][1] == "required"
    testing.run_tests(["tests/unit"], install=False)
    assert steps[-1] == (["-m", "pytest", "tests/unit"], None)


def test_the_tests_keep_what_python_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(testing, "_run", lambda step, root, environment: int("PYTHONDONTWRITEBYTECODE" in environment))
    assert testing.run_tests(["tests/unit"], install=False) == 0


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


@pytest.mark.parametrize(("check", "command", "expected"), [("0", "0", 0), ("0", "3", 3), ("2", "0", 2)])
def test_a_check_runs_beside_the_tests(tmp_path: Path, check: str, command: str, expected: int) -> None:
    """Each waits for what the other does."""
    meet = "import pathlib, time; pathlib.Path({!r}).touch()\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.01)\n"
    code = testing._run_beside(python(meet.format("a", "b") + f"raise SystemExit({check})"),
                               python(meet.format("b", "a") + f"raise SystemExit({command})"), tmp_path, dict(os.environ))
    assert code == expected


def test_a_check_that_fails_ends_the_tests(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    endless = python("import pathlib, time; pathlib.Path('begun').touch(); time.sleep(600)")
    check = python("import pathlib, time\nwhile not pathlib.Path('begun').exists(): time.sleep(0.01)\n"
                   "print('finding'); raise SystemExit(1)")
    assert testing._run_beside(check, endless, tmp_path, dict(os.environ)) == 1
    assert "finding" in capfd.readouterr().out


def test_exploring_prints_how_to_repeat_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The printed command fails again, with the same example."""
    path = tmp_path / "test_numbers.py"
    path.write_text(TEST_OF_PROPERTIES)
    arguments = [str(path), "--confcutdir=tests", "-c", "pyproject.toml", "-p", "tests.conftest", "--rootdir=."]
    assert testing.explore(0.001, arguments, install=False) == 1
    first = capfd.readouterr().out
    command = first.strip().splitlines()[-1].partition("./millrace test -- ")[2]
    assert "--hypothesis-seed=" in command and "only property tests are explored" not in first
    again = pytest_run(*shlex.split(command))
    examples = re.compile(r"number=(\d+)")
    assert again.returncode == 1 and examples.findall(again.stdout)[-1] == examples.findall(first)[-1]


@pytest.mark.parametrize(("profile", "expected"), [("millrace", 60), ("explore", 120)])
def test_exploring_also_tries_more_examples_of_a_test_that_names_a_number(profile: str, expected: int) -> None:
    present = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        assert settings(max_examples=examples(60)).max_examples == expected
    finally:
        settings.load_profile(present)


def test_no_property_test_has_the_same_number_of_examples_in_every_run() -> None:
    fixed = [str(path.relative_to(ROOT)) for path in sorted(order.TESTS.rglob("*.py"))
             if re.search(r"max_examples=\d", path.read_text())]
    assert not fixed, f"use support.examples.examples in {', '.join(fixed)}"


def test_no_two_test_files_have_the_same_name() -> None:
    """pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_order_names_files_that_exist() -> None:
    assert [name for name in order.LONGEST if not (order.TESTS / name).is_file()] == []


def server(present: bool) -> Server:
    return Server("Nothing", "no-such-package", "nothing", "nothing", lambda: "/bin/true" if present else None)


def test_a_present_server_is_not_installed_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(install, "_apt_get", lambda arguments: pytest.fail("apt-get was called"))
    install.install_missing([server(present=True)])
    assert capsys.readouterr().out == ""


def test_only_root_installs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(install, "_apt_get", lambda arguments: pytest.fail("apt-get was called"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    install.install_missing([server(present=False)])
    assert capsys.readouterr().out == (
        "Nothing is not installed, and only root on Debian can install it: apt-get install no-such-package\n")


def test_a_second_run_waits_and_finds_the_server_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first run holds the lock until it has installed the server."""
    monkeypatch.setattr(install, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(install, "_apt_get", lambda arguments: pytest.fail("apt-get was called"))
    waiting, installed = threading.Event(), threading.Event()
    monkeypatch.setattr(install, "_report", lambda line: waiting.set())
    shared = Server("Nothing", "no-such-package", "nothing", "nothing", lambda: "/bin/true" if installed.is_set() else None)
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=install.install_missing, args=([shared],))
        second.start()
        assert waiting.wait(60)
        installed.set()
    second.join(60)
    assert not second.is_alive()


@pytest.mark.parametrize("forbidden", ["LOCK", "POLICY"])
def test_a_file_that_cannot_be_written_is_one_line(forbidden: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(install, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(install, "POLICY", tmp_path / "policy")
    monkeypatch.setattr(install, forbidden, tmp_path / "file" / "below")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(install, "_apt_get", lambda arguments: pytest.fail("apt-get was called"))
    install.install_missing([server(present=False)])
    assert re.fullmatch(r"Nothing could not be installed: .*\n", capsys.readouterr().out)


def test_the_installation_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[list[str]] = []

    def apt_get(arguments: list[str]) -> str:
        calls.append(arguments)
        return "no network" if arguments[0] == "install" else ""

    monkeypatch.setattr(install, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(install, "POLICY", tmp_path / "policy")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(install, "_apt_get", apt_get)
    install.install_missing([server(present=False)])
    assert [call[0] for call in calls] == ["update", "install"] and calls[1][-1] == "no-such-package"
    assert capsys.readouterr().out.splitlines() == [
        "installing Nothing for the tests (apt-get install no-such-package; --no-install prevents this)",
        "Nothing could not be installed: no network"]
    assert not (tmp_path / "policy").exists()


def test_redis_is_found_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert REDIS.find() is None
    (tmp_path / "redis-server").touch(0o755)
    assert REDIS.find() == str(tmp_path / "redis-server")

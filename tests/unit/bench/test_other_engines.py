"""The other engines of the word count benchmark: their input, their verdicts, and how they are run.

No engine runs here: they take minutes to install. What they print and how they end is played by small scripts.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from millrace.bench.other_engines import environment, job, reporting, run

HERE = Path(run.__file__).parent
RESULT = {"engine": "fake", "words_per_s": 5.0, "checksum": 10}


def silent(_message: str) -> None:
    """A report that nobody reads."""


# ---- the input


def test_vocabulary_is_distinct_lower_case_words_of_about_six_letters():
    words = job.vocabulary()
    assert len(words) == len(set(words)) == 2_000
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)
    assert 5.5 < sum(map(len, words)) / len(words) < 6.5


def test_lines_hold_ten_words_of_the_vocabulary():
    known = set(job.vocabulary())
    content = job.lines(seed=3, count=500)
    assert len(content) == 500
    assert all(len(line.split(" ")) == 10 and known.issuperset(line.split(" ")) for line in content)


def test_lines_depend_on_the_seed_alone():
    assert job.lines(3, 50) == job.lines(3, 50)
    assert job.lines(3, 50) != job.lines(4, 50)
    assert job.lines(3, 80)[:50] == job.lines(3, 50)


def test_input_is_the_same_on_every_machine():
    """Figures of different runs are only comparable while this digest stays as it is."""
    assert hashlib.sha256("\n".join(job.lines(7, 100)).encode()).hexdigest()[:16] == "8e5b308a60e0b6b2"


def test_a_negative_number_of_lines_is_refused():
    with pytest.raises(ValueError, match="-1"):
        job.lines(1, -1)


# ---- verdicts and figures


def test_check_fails_loudly_on_a_wrong_sum():
    assert reporting.check(30, 30) == 30
    with pytest.raises(reporting.WrongCount, match=r"29 words, but 30 were sent \(-1\)"):
        reporting.check(29, 30)


def test_latency_runs_from_the_moment_a_line_was_due():
    meter = reporting.LatencyMeter(start=100.0, rate=10.0, settle=1.0)
    assert [meter.lines_due(now) for now in (99.0, 100.0, 100.25, 101.0)] == [0, 1, 3, 11]
    # Lines 0 to 9 are due in the first second and not recorded; 10 to 29 come out 0.5 s after line 29 was due.
    meter.counted(words=100, now=101.0)
    meter.counted(words=300, now=103.4)
    fields = meter.as_fields()
    assert fields["p50_ms"] == pytest.approx(500 + 950, abs=1)
    assert fields["p99_ms"] == pytest.approx(500 + 1_900, abs=20)


def test_a_line_half_counted_is_not_through():
    meter = reporting.LatencyMeter(start=0.0, rate=1.0, settle=0.0)
    meter.counted(words=19, now=1.0)
    assert meter.lines_done == 1


def test_latency_without_lines_is_an_error():
    with pytest.raises(reporting.WrongCount, match="only 0 lines"):
        reporting.LatencyMeter(start=0.0, rate=1.0, settle=1.0).as_fields()


def test_result_is_one_json_line(capsys: pytest.CaptureFixture[str]):
    reporting.print_result("fake", "1", "fast", reporting.Throughput(1_000, 2.0, 1_500), None)
    assert json.loads(capsys.readouterr().out) == {
        "engine": "fake",
        "version": "1",
        "setting": "fast",
        "words": 1_000,
        "seconds": 2.0,
        "words_per_s": 500.0,
        "checksum": 1_500,
    }


@pytest.mark.parametrize("arguments", [["--lines", "0"], ["--lines", "-1"], ["--lines", "5", "--seconds", "0"]])
def test_a_request_for_nothing_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        reporting.parse_request("a script", [*arguments, "--seed", "1"])
    assert "error" in capsys.readouterr().err


# ---- running a script


def fake_rival(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str) -> None:
    script = tmp_path / "fake.py"
    script.write_text(source)
    monkeypatch.setattr(run, "RIVALS", {"fake": run.Rival(str(script), lines=7, own_environment=False)})


def test_the_last_line_is_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_rival(monkeypatch, tmp_path, f"import sys; print('chatter'); print('''{json.dumps(RESULT)}''')")
    assert run.run_rival("fake", 1, 2, root=tmp_path, report=silent) == RESULT


def test_the_script_gets_its_arguments_and_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    source = (
        "import json, os, sys\n"
        "print(json.dumps({'words_per_s': 1, 'argv': sys.argv[1:], 'java': os.environ.get('JAVA_HOME'),\n"
        "                  'path': os.environ.get('PYTHONPATH')}))"
    )
    fake_rival(monkeypatch, tmp_path, source)
    result = run.run_rival("fake", None, 2, root=tmp_path, rate=50, seconds=3, java_home=Path("/java"), report=silent)
    assert result["argv"] == ["--seed", "2", "--lines", "7", "--rate", "50", "--seconds", "3"]
    assert (result["java"], result["path"]) == ("/java", None)


def test_a_failure_shows_what_the_script_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_rival(monkeypatch, tmp_path, "raise SystemExit('the counts add up to 9')")
    with pytest.raises(run.RivalFailed, match=r"exit code 1(.|\n)*the counts add up to 9"):
        run.run_rival("fake", 1, 2, root=tmp_path, report=silent)


def test_no_result_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_rival(monkeypatch, tmp_path, "print('nothing to see')")
    with pytest.raises(run.RivalFailed, match="nothing to see"):
        run.run_rival("fake", 1, 2, root=tmp_path, report=silent)


def test_an_unknown_engine_is_named(tmp_path: Path):
    with pytest.raises(run.RivalFailed, match=r"'storm'.*bytewax"):
        run.run_rival("storm", 1, 2, root=tmp_path, report=silent)


def test_what_the_script_started_ends_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Past the time limit, and also a child that would have lived on."""
    pid_file = tmp_path / "pid"
    source = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "print('still here', file=sys.stderr, flush=True)\n"
        "time.sleep(60)"
    )
    fake_rival(monkeypatch, tmp_path, source)
    with pytest.raises(run.RivalFailed, match=r"not done after 3 s(.|\n)*still here"):
        run.run_rival("fake", 1, 2, root=tmp_path, time_limit=3, report=silent)
    assert gone(int(pid_file.read_text()))


def gone(pid: int) -> bool:
    """Whether a process has ended, be it waited for or not. A killed one needs a moment."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("rival", run.RIVALS.values(), ids=list(run.RIVALS))
def test_scripts_run_without_millrace(rival: run.Rival):
    """They run where Millrace's dependencies are missing, so they import their siblings by file."""
    for path in (HERE / rival.script, HERE / "job.py", HERE / "reporting.py", HERE / "spark_common.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not any(name.split(".")[0] == "millrace" for name in names), f"{path.name} imports {names}"


# ---- the environment


class FakeInstaller:
    """Stands for the commands that make an environment: makes its Python, or fails at the installation."""

    def __init__(self, directory: Path, fails: bool = False) -> None:
        self.directory, self.fails = directory, fails
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], report: object) -> None:
        self.commands.append(command)
        if "venv" in command:
            (self.directory / "bin").mkdir(parents=True, exist_ok=True)
            (self.directory / "bin" / "python").write_text("")
        elif self.fails:
            raise environment.EnvironmentFailed("no network")


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeInstaller:
    fake = FakeInstaller(tmp_path / environment.DIRECTORY)
    monkeypatch.setattr(environment, "_run", fake)
    monkeypatch.setattr(environment, "_share", lambda *_: None)
    return fake


def test_environment_is_made_once(installer: FakeInstaller, tmp_path: Path):
    said: list[str] = []
    python = environment.ensure_environment(tmp_path, said.append)
    assert python == tmp_path / environment.DIRECTORY / "bin" / "python"
    assert len(installer.commands) == 2 and said
    said.clear()
    assert environment.ensure_environment(tmp_path, said.append) == python
    assert len(installer.commands) == 2 and not said


def test_an_unfinished_environment_is_made_anew(installer: FakeInstaller, tmp_path: Path):
    installer.fails = True
    with pytest.raises(environment.EnvironmentFailed):
        environment.ensure_environment(tmp_path, silent)
    installer.fails = False
    environment.ensure_environment(tmp_path, silent)
    assert len(installer.commands) == 4 and "--clear" in installer.commands[2]


def test_other_requirements_make_another_environment(installer: FakeInstaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    environment.ensure_environment(tmp_path, silent)
    monkeypatch.setattr(environment, "REQUIREMENTS", (*environment.REQUIREMENTS, "another>=1"))
    environment.ensure_environment(tmp_path, silent)
    assert len(installer.commands) == 4


def test_spark_is_installed_only_where_there_is_none_to_share(
    installer: FakeInstaller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment, "_shared_packages", lambda: [])
    environment.ensure_environment(tmp_path, silent)
    assert environment.SPARK in installer.commands[1]


def test_a_failing_installer_shows_its_last_lines():
    with pytest.raises(environment.EnvironmentFailed, match=r"exit code 3(.|\n)*no space left"):
        environment._run(["sh", "-c", "echo no space left; exit 3"], silent)


def test_a_silent_installer_is_reported_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "_REPORT_EVERY_SECONDS", 0.05)
    said: list[str] = []
    environment._run(["sh", "-c", "echo unpacking; sleep 0.3"], said.append)
    assert said and said[-1].endswith("unpacking")


def test_shared_packages_are_links_named_in_a_path_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "elsewhere" / "pyspark"
    package.mkdir(parents=True)
    site = tmp_path / "site"
    site.mkdir()
    answer = tmp_path / "python"
    answer.write_text(f"#!/bin/sh\necho {site}\n")
    os.chmod(answer, 0o755)
    environment._share(answer, tmp_path / "shared", [package])
    assert (tmp_path / "shared" / "pyspark").resolve() == package
    assert (site / "millrace-shared.pth").read_text() == f"{tmp_path / 'shared'}\n"

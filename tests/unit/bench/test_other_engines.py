"""The other engines of the word count benchmark: their input, their checks, and how they are run.

No engine runs here: they take minutes to install. Small scripts stand in for them.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from millrace.bench.other_engines import environment, job, reporting, run

HERE = Path(run.__file__).parent
RESULT = {"engine": "fake", "words_per_s": 5.0}
RULE = reporting.Rule(warm_up=1.0, seconds=2.0, rounds=2)


def silent(_message: str) -> None:
    """Ignores a report."""


# ---- the input


def test_vocabulary_is_distinct_lower_case_words_of_about_six_letters():
    words = job.vocabulary()
    assert len(words) == len(set(words)) == 2_000
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)
    assert 5.5 < sum(map(len, words)) / len(words) < 6.5


def test_lines_hold_ten_words_of_the_vocabulary():
    known = set(job.vocabulary())
    content = job.lines(seed=3, number=500)
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


@pytest.fixture
def corpus(tmp_path: Path) -> job.Corpus:
    return job.write_corpus(tmp_path / "corpus", seed=3, files=3, lines_per_file=5)


def test_a_corpus_holds_the_lines_of_the_seed_and_is_read_over_and_over(corpus: job.Corpus):
    content = job.lines(3, 15)
    assert list(islice(corpus.lines(), 35)) == (content * 3)[:35]
    assert list(islice(corpus.lines(first=12), 10)) == (content * 2)[12:22]


def test_readers_take_the_files_in_turn(corpus: job.Corpus):
    content = job.lines(3, 15)
    files = [content[0:5], content[5:10], content[10:15]]
    assert list(islice(corpus.lines(reader=0, readers=2), 20)) == files[0] + files[2] + files[1] + files[0]
    assert list(islice(corpus.lines(reader=1, readers=2, first=7), 6)) == files[0][2:] + files[2][:3]


@pytest.mark.parametrize("read", [[0], [4], [5], [38], [3, 0], [7, 15], [16, 4]])
def test_the_right_counts_follow_from_the_number_of_lines_read(corpus: job.Corpus, read: list[int]):
    counted: Counter[str] = Counter()
    for reader, number in enumerate(read):
        for line in islice(corpus.lines(reader, len(read)), number):
            counted.update(line.split())
    assert corpus.counts(read) == counted and counted.total() == sum(read) * 10


# ---- checks and figures


def test_every_word_is_compared():
    assert reporting.check_counts({"a": 2, "b": 1}, {"b": 1, "a": 2}) == {"checked_words": 3, "checked_counts": 2}
    with pytest.raises(reporting.WrongCount, match=r"2 of 2 words are counted wrong: a 1 instead of 2, b 2 instead of 1"):
        reporting.check_counts({"a": 1, "b": 2}, {"a": 2, "b": 1})  # the sum is right
    with pytest.raises(reporting.WrongCount, match="no word was counted"):
        reporting.check_counts({}, {})


def test_windows_begin_after_the_warm_up_and_end_with_a_batch():
    meter = reporting.WindowMeter(RULE, start=10.0)
    for now, words in ((10.5, 50), (11.5, 100), (12.0, 500), (14.0, 600), (15.0, 700), (16.0, 1_600), (17.0, 9_999)):
        assert meter.done == (now > 16)
        meter.note(words, now)
    assert meter.rates == [200.0, 500.0]
    assert meter.as_fields() == {"words_per_s": 500.0, "windows": [200.0, 500.0]}


def test_a_run_without_all_its_windows_is_an_error():
    meter = reporting.WindowMeter(RULE, start=0.0)
    meter.note(1, 1.0)
    meter.note(2, 3.0)
    with pytest.raises(reporting.WrongCount, match="only 1 of 2 windows"):
        meter.as_fields()


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
    reporting.print_result("fake", "1", "fast", {"words_per_s": 500.0}, {"checked_words": 10})
    assert json.loads(capsys.readouterr().out) == {
        "engine": "fake", "version": "1", "setting": "fast", "words_per_s": 500.0, "checked_words": 10}


def request_for(corpus: Path, **changes: float) -> reporting.RunRequest:
    return reporting.RunRequest(corpus, RULE, batch_lines=7, **changes)


def test_a_script_reads_the_request_that_was_made(tmp_path: Path):
    request = request_for(tmp_path, rate=50.0, checkpoint_seconds=1.0)
    assert reporting.parse_request("a script", run.arguments_of(request)) == request
    assert request.paced_lines == 250  # 5 s


@pytest.mark.parametrize("changes", [{"seconds": 0.0}, {"rounds": 0}, {"warm_up": -1.0}])
def test_a_request_for_nothing_is_refused(changes: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rule = reporting.Rule(**{"warm_up": 1.0, "seconds": 1.0, "rounds": 1, **changes})
    with pytest.raises(SystemExit):
        reporting.parse_request("a script", run.arguments_of(reporting.RunRequest(tmp_path, rule, batch_lines=1)))
    assert "error" in capsys.readouterr().err


# ---- running a script


def fake_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str) -> None:
    script = tmp_path / "fake.py"
    script.write_text(source)
    monkeypatch.setattr(run, "OTHER_ENGINES", {"fake": run.OtherEngine(str(script), ("--fast",), own_environment=False)})


def measure_fake(root: Path, **options: object) -> dict[str, object]:
    return run.run_other_engine("fake", request_for(root, rate=50.0), root=root, report=silent, **options)


def test_the_last_line_is_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_engine(monkeypatch, tmp_path, f"import sys; print('chatter'); print('''{json.dumps(RESULT)}''')")
    assert measure_fake(tmp_path) == RESULT


def test_the_script_gets_its_arguments_and_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    source = (
        "import json, os, sys\n"
        "print(json.dumps({'words_per_s': 1, 'argv': sys.argv[1:], 'java': os.environ.get('JAVA_HOME'),\n"
        "                  'path': os.environ.get('PYTHONPATH')}))"
    )
    fake_engine(monkeypatch, tmp_path, source)
    result = measure_fake(tmp_path, java_home=Path("/java"))
    assert result["argv"] == ["--fast", *run.arguments_of(request_for(tmp_path, rate=50.0))]
    assert (result["java"], result["path"]) == ("/java", None)


def test_a_failure_shows_the_scripts_last_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_engine(monkeypatch, tmp_path, "raise SystemExit('9 words are counted wrong')")
    with pytest.raises(run.EngineFailed, match=r"exit code 1(.|\n)*9 words are counted wrong"):
        measure_fake(tmp_path)


def test_no_result_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake_engine(monkeypatch, tmp_path, "print('nothing to see')")
    with pytest.raises(run.EngineFailed, match="nothing to see"):
        measure_fake(tmp_path)


def test_an_unknown_engine_is_named(tmp_path: Path):
    with pytest.raises(run.EngineFailed, match=r"'storm'.*bytewax"):
        run.run_other_engine("storm", request_for(tmp_path), root=tmp_path, report=silent)


def test_the_processes_of_a_script_end_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Past the time limit, and also a child that would have lived on."""
    pid_file = tmp_path / "pid"
    source = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "print('still here', file=sys.stderr, flush=True)\n"
        "time.sleep(60)"
    )
    fake_engine(monkeypatch, tmp_path, source)
    with pytest.raises(run.EngineFailed, match=r"not done after 3 s(.|\n)*still here"):
        measure_fake(tmp_path, time_limit=3)
    assert gone(int(pid_file.read_text()))


def gone(pid: int) -> bool:
    """True if a process has ended, even if nobody has waited for it. A killed one needs a moment."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("engine", run.OTHER_ENGINES.values(), ids=list(run.OTHER_ENGINES))
def test_scripts_run_without_millrace(engine: run.OtherEngine):
    """They run where Millrace's dependencies are missing, so they import their siblings by file."""
    for path in (HERE / engine.script, HERE / "job.py", HERE / "reporting.py", HERE / "spark_common.py"):
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
    lines: list[str] = []
    python = environment.ensure_environment(tmp_path, lines.append)
    assert python == tmp_path / environment.DIRECTORY / "bin" / "python"
    assert len(installer.commands) == 2 and lines
    lines.clear()
    assert environment.ensure_environment(tmp_path, lines.append) == python
    assert len(installer.commands) == 2 and not lines


def test_an_unfinished_environment_is_replaced(installer: FakeInstaller, tmp_path: Path):
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
    lines: list[str] = []
    environment._run(["sh", "-c", "echo unpacking; sleep 0.3"], lines.append)
    assert lines and lines[-1].endswith("unpacking")


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

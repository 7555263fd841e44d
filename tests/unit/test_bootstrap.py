"""The start script: the states of the environment, its steps, and its messages."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "millrace"


def load() -> ModuleType:
    loader = SourceFileLoader("millrace_bootstrap", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # write no millracec beside the script
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


bootstrap = load()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    return tmp_path


def finished(root: Path, version: str = "3.11.7"):
    """An environment as a successful run leaves it, without the packages."""
    env = bootstrap.Environment(str(root))
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "pyvenv.cfg").write_text(f"home = /somewhere\nversion = {version}\n")
    (root / ".venv" / "bin" / "python").symlink_to(sys.executable)
    env.write_stamp()
    return env


def test_no_environment_is_missing(root: Path) -> None:
    assert bootstrap.Environment(str(root)).state() == "missing"


def test_a_finished_environment_is_current(root: Path) -> None:
    assert finished(root).state() == "current"


def test_a_changed_project_file_makes_it_stale(root: Path) -> None:
    env = finished(root)
    (root / "pyproject.toml").write_text("[project]\nname = 'y'\n")
    assert env.state() == "stale"


@pytest.mark.parametrize("name", bootstrap.BUILT)
def test_a_changed_source_of_what_is_compiled_makes_it_stale(root: Path, name: str) -> None:
    env = finished(root)
    assert (Path(bootstrap.__file__).parent / name).exists()
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("another\n")
    assert env.state() == "stale"


def test_settings_of_the_tools_do_not_make_it_stale(root: Path) -> None:
    env = finished(root)
    with (root / "pyproject.toml").open("a") as project:
        project.write("[tool.ruff]\nline-length = 99\n")
    assert env.state() == "current"


def test_a_project_file_that_is_not_toml_is_left_to_pip(root: Path) -> None:
    env = finished(root)
    (root / "pyproject.toml").write_text("[project\n")
    assert env.state() == "stale"


def test_an_environment_without_a_stamp_is_stale(root: Path) -> None:
    env = finished(root)
    os.unlink(env.stamp)
    assert env.state() == "stale"


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_an_unreadable_stamp_counts_as_missing(root: Path, content: str) -> None:
    env = finished(root)
    Path(env.stamp).write_text(content)
    assert env.state() == "stale"


def test_an_environment_with_another_python_is_broken(root: Path) -> None:
    env = finished(root)
    (root / ".venv" / "pyvenv.cfg").write_text("version = 3.13.0\n")
    assert env.state() == "broken"


def test_an_environment_with_a_python_that_is_too_old_is_broken(root: Path) -> None:
    assert finished(root, "3.9.2").state() == "broken"


def test_the_environment_of_a_moved_project_is_broken(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    finished(root)
    moved = tmp_path_factory.mktemp("elsewhere") / "project"
    root.rename(moved)
    assert bootstrap.Environment(str(moved)).state() == "broken"


def test_an_unfinished_environment_is_broken(root: Path) -> None:
    env = finished(root)
    bootstrap.mark_unfinished(env)
    assert env.state() == "broken"
    env.write_stamp()
    assert env.state() == "current"


def test_an_environment_whose_python_is_gone_is_broken(root: Path) -> None:
    env = finished(root)
    os.unlink(env.python)
    (root / ".venv" / "bin" / "python").symlink_to(root / "no" / "python3")
    assert env.state() == "broken"


def test_a_bare_directory_is_broken(root: Path) -> None:
    (root / ".venv").mkdir()
    assert bootstrap.Environment(str(root)).state() == "broken"


def test_discard_leaves_nothing_and_removes_earlier_leftovers(root: Path) -> None:
    env = finished(root)
    (root / ".venv-discarded-1" / "lib").mkdir(parents=True)
    env.discard()
    env.discard()
    assert [entry.name for entry in root.iterdir()] == ["pyproject.toml"]


def test_discard_removes_a_link_and_not_its_target(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("shared")
    (root / ".venv").symlink_to(target)
    bootstrap.Environment(str(root)).discard()
    assert target.is_dir()
    assert not (root / ".venv").is_symlink()


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("Collecting pyspark<5,>=4.1 (from millrace==0.1.0)", "looking up pyspark"),
        ("Collecting numpy", "looking up numpy"),
        ("  Downloading pyspark-4.3.0.tar.gz (455.9 MB)", "downloading pyspark-4.3.0.tar.gz (455.9 MB)"),
        ("  Building wheel for pyspark (pyproject.toml): started", "building pyspark"),
        ("Installing collected packages: a, b, c", "installing 3 packages"),
        ("  WARNING: Retrying (Retry(total=4)) after", "the package index does not answer, retrying"),
        ("  Preparing metadata (pyproject.toml): started", ""),
        ("", ""),
    ],
)
def test_lines_of_pip_are_described_in_a_few_words(line: str, meaning: str) -> None:
    assert bootstrap.describe(line) == meaning


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("Temporary failure in name resolution", "PIP_INDEX_URL"),
        ("ERROR: No matching distribution found for hatchling", "PIP_FIND_LINKS"),
        ("OSError: [Errno 28] No space left on device", "TMPDIR"),
        ("ensurepip is not available", "python3-venv"),
        ("something else", "lines above"),
    ],
)
def test_a_failure_comes_with_advice(output: str, advice: str) -> None:
    assert advice in bootstrap.explain(output)


def step(program: str, optional: bool = False):
    return bootstrap.Step([sys.executable, "-c", program], "working", optional)


def run_lanes(root: Path, *lanes, complete=None) -> None:
    env = finished(root)
    with bootstrap.locked(str(root), bootstrap.Progress()) as lock:
        bootstrap.run_lanes(lanes, env, bootstrap.Progress(), lock, complete)


def run_step(root: Path, program: str) -> None:
    run_lanes(root, [step(program)])


def test_a_failed_step_shows_its_last_lines_and_keeps_its_full_output(root: Path) -> None:
    with pytest.raises(bootstrap.SetupFailed) as caught:
        run_step(root, "print('early\\n' * 50); print('No space left on device'); raise SystemExit(7)")
    assert "ended with code 7" in str(caught.value)
    assert "    No space left on device" in str(caught.value)
    assert str(caught.value).count("early") < 20
    output = Path(caught.value.output_path)
    assert output.read_text().count("early") == 50
    output.unlink()


def test_a_step_runs_without_variables_that_mislead_pip(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in bootstrap.MISLEADING:
        if not name.startswith("PYTHON"):
            monkeypatch.setenv(name, "/elsewhere")
    run_step(root, f"import os, sys; sys.exit(any(name in os.environ for name in {bootstrap.MISLEADING!r}))")


def test_a_step_holds_the_lock_so_that_no_second_run_works_beside_it(root: Path) -> None:
    program = "import fcntl, os\nfd = os.open('.', os.O_RDONLY)\nfcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with pytest.raises(bootstrap.SetupFailed, match="BlockingIOError") as caught:
        run_step(root, program)
    Path(caught.value.output_path).unlink()
    with bootstrap.locked(str(root), bootstrap.Progress()):
        pass


WAIT_FOR = "import pathlib, time\nwhile not pathlib.Path({!r}).exists(): time.sleep(0.01)\n"
WRITE = "import pathlib; pathlib.Path({!r}).touch()\n"


def test_lanes_run_at_the_same_time_and_the_steps_of_a_lane_in_order(root: Path) -> None:
    """Each lane waits for something that the other does."""
    here, there = [step(WRITE.format("a")), step(WAIT_FOR.format("b"))], [step(WAIT_FOR.format("a") + WRITE.format("b"))]
    run_lanes(root, here, there)
    assert not any(os.path.exists(path) for one in here + there for path in (one.log_path, one.scratch))


def test_a_step_that_fails_ends_the_other_lanes(root: Path) -> None:
    other = step("import time; time.sleep(600)")
    with pytest.raises(bootstrap.SetupFailed) as caught:
        run_lanes(root, [other], [step("raise SystemExit(3)")])
    assert other.child.poll() is not None
    assert not os.path.exists(other.log_path) and not os.path.exists(other.scratch)
    Path(caught.value.output_path).unlink()


def test_an_optional_step_may_fail_and_does_not_delay_completion(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []
    waits = step(WAIT_FOR.format("complete") + "raise SystemExit(1)", optional=True)
    after = step(WRITE.format("after"), optional=True)

    def complete() -> None:
        done.append("complete")
        (root / "complete").touch()

    run_lanes(root, [step("pass")], [waits, after], complete=complete)
    assert done == ["complete"] and (root / "after").exists()
    assert f"the reason is in {waits.log_path}" in capsys.readouterr().err
    Path(waits.log_path).unlink()


def test_an_optional_step_that_never_ends_is_ended(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    hangs = bootstrap.Step(command, "working", optional=True, seconds=0.3)
    run_lanes(root, [hangs])
    assert hangs.child.poll() is not None and not os.path.exists(hangs.scratch)
    assert "Commands will start more slowly" in capsys.readouterr().err
    assert "not done after 0 s" in Path(hangs.log_path).read_text()
    Path(hangs.log_path).unlink()


def test_a_download_is_shown_in_bytes(tmp_path: Path) -> None:
    line = "  Downloading https://index/pyspark-4.3.0.tar.gz (4.0 MB)\n"
    download = bootstrap.Download.announced(line)
    assert download.progress(str(tmp_path)) == "", "nothing is there yet"
    (tmp_path / "pip-unpack-x").mkdir()
    (tmp_path / "pip-unpack-x" / "pyspark-4.3.0.tar.gz").write_bytes(b"x" * 1_000_000)
    assert download.progress(str(tmp_path)) == "downloading pyspark-4.3.0.tar.gz [#####...............] 1.0 of 4.0 MB"


@pytest.mark.parametrize(("line", "ends"), [("  Building wheel for pyspark (setup.py): started", True), ("    x", False)])
def test_what_pip_does_next_ends_the_download(line: str, ends: bool) -> None:
    assert (bootstrap.Download.announced(line) is not None) == ends


def test_requirements_are_those_of_the_project_file() -> None:
    spark, packages, extras = bootstrap.requirements(str(SCRIPT.with_name("pyproject.toml")))
    assert spark.startswith("pyspark>=")
    assert any(name.startswith("numpy") for name in packages) and not any(name.startswith("pyspark") for name in packages)
    assert any(name.startswith("pytest>=") for name in extras)


def test_without_a_requirement_of_spark_pip_installs_everything_at_once(root: Path) -> None:
    assert bootstrap.requirements(str(root / "pyproject.toml"))[0] == ""
    (root / "pyproject.toml").write_text("not toml")
    assert bootstrap.requirements(str(root / "pyproject.toml"))[0] == ""


def test_a_current_environment_starts_the_command_with_its_arguments(root: Path) -> None:
    (root / "millrace").write_text(SCRIPT.read_text())
    env = finished(root)
    os.unlink(env.python)
    Path(env.python).write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 5\n')
    os.chmod(env.python, 0o755)
    done = subprocess.run(
        [sys.executable, root / "millrace", "run", "a b", "--json"], env={}, cwd="/", capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, "-m|millrace.cli.main|run|a b|--json|", "")


def test_a_copy_without_its_project_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "millrace").write_text(SCRIPT.read_text())
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("version = 3.11.7\n")
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    done = subprocess.run([sys.executable, tmp_path / "millrace"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pyproject.toml is missing" in done.stderr


def test_an_old_python_can_read_the_script_and_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(bootstrap, "__file__", str(SCRIPT), raising=False)
    assert bootstrap.main(["demo"]) == 1
    assert "Python 3.11 or newer is needed. This is Python" in capsys.readouterr().err

"""Wrong input on the command line: exit code 1 (2 for usage), one clear line on stderr, no traceback, no Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.cli.main import main

WORD_COUNT = "millrace.workloads.wordcount:WordCount"
Cli = Callable[..., tuple[int, str, str]]

PARTS = """
    from millrace import Bolt, Grouping, Spout, Stream, Topology

    class Source(Spout):
        outputs = ["x"]

        def next_tuple(self): ...

    class Pass(Bolt):
        outputs = ["x"]

        def process(self, tup): ...
"""
MODULES = {
    "their_syntax": "def broken(:\n",
    "their_error": "raise RuntimeError('on import')\n",
    "their_empty": "from their_parts import *\nclass T(Topology): pass\n",
    "their_cycle": """
        from their_parts import *
        class T(Topology):
            source = Source.spec()
            a = Pass.spec(name="a", inputs=[source, "b"])
            b = Pass.spec(name="b", inputs=["a"])
    """,
    "their_field": """
        from their_parts import *
        class T(Topology):
            source = Source.spec()
            a = Pass.spec(inputs={source: Grouping.fields("nope")})
    """,
}


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Cli]:
    """Run commands in this process, in a directory with the modules above."""
    for name, text in {"their_parts": PARTS, **MODULES}.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    with tempfile.TemporaryDirectory(prefix="cli") as runtime:  # hides other clusters of this machine
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield run
    signal.signal(signal.SIGTERM, before)
    for name in ("their_parts", *MODULES):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("topology", "says"), [
    ("nosuchmodule:Thing", "cannot import module 'nosuchmodule'"),
    ("no.such.module:Thing", "cannot import module 'no.such.module'"),
    ("millrace.workloads.wordcount", "module:"),
    (":WordCount", "module:"),
    ("millrace.workloads.wordcount:", "module:"),
    ("millrace.workloads.wordcount:Nope", "has no 'Nope'"),
    ("millrace.workloads.wordcount:Split", "not a Topology"),
    ("millrace.workloads.wordcount:vocabulary", "not a Topology"),
    ("their_syntax:T", "SyntaxError"),
    ("their_error:T", "RuntimeError: on import"),
    ("their_empty:T", "has no components"),
    ("their_cycle:T", "cycle"),
    ("their_field:T", "nope"),
])
def test_an_invalid_topology(cli: Cli, topology: str, says: str) -> None:
    assert_one_line(cli("run", topology), says)
    assert_one_line(cli("visualize", topology), says)


def test_visualize_prints_a_flowchart_and_nothing_else(cli: Cli) -> None:
    code, out, err = cli("visualize", WORD_COUNT, "--par", "count=3")
    assert (code, err) == (0, "")
    assert out.startswith("flowchart LR\n") and "count<br/>3 tasks" in out
    assert_one_line(cli("visualize", WORD_COUNT, "--par", "nosuch=3"), "which WordCount does not have")


@pytest.mark.parametrize(("option", "value", "says"), [
    ("--par", "split", "KEY=VALUE"),
    ("--par", "=2", "KEY=VALUE"),
    ("--par", "split=two", "whole number"),
    ("--par", "split=1.5", "whole number"),
    ("--par", "split=true", "whole number"),
    ("--par", "split=[2]", "whole number"),
    ("--par", "split=0", "at least 1"),
    ("--par", "split=-3", "at least 1"),
    ("--par", "nosuch=2", "which WordCount does not have"),
    ("--set", "rate", "KEY=VALUE"),
    ("--set", "topology.gurantee=exactly-once", "there is no such setting; did you mean topology.guarantee."),
    ("--set", "topology.zzz=1", "there is no such setting. docs/settings.md lists all of them"),
    ("--set", "chekpoint.store=/tmp", "there is no such setting; did you mean checkpoint.store."),
    ("--set", "topology.guarantee=perhaps", "at-most-once, at-least-once"),
    ("--set", "topology.message.timeout.secs=soon", "must be a number"),
    ("--set", "topology.message.timeout.secs=-1", "below the minimum"),
    ("--set", "topology.channel.window=0", "below the minimum"),
    ("--set", "worker.poll.secs=soon", "must be a number"),
    ("--set", "spark.x", "KEY=VALUE"),
    ("--scheduler-set", "gamma", "KEY=VALUE"),
    ("--master", "nonsense", "is not a Spark master"),
    ("--master", "local[x]", "is not a Spark master"),
    ("--master", "spark://", "names no host"),
    ("--master", "spark://127.0.0.1:1", "does not answer"),
    ("--master", "local-cluster[1,1,700]", "has 1 cores"),
    ("--engine", "batch", "there is no such engine; choose one of resident, microbatch"),
])
def test_an_invalid_option(cli: Cli, option: str, value: str, says: str) -> None:
    assert_one_line(cli("run", WORD_COUNT, option, value), says)


@pytest.mark.parametrize(("arguments", "says"), [
    (["--port", "7000"], "--port: not available with --engine microbatch"),
    (["--bind", "127.0.0.1", "--one-worker-per-node"], "--bind, --one-worker-per-node: not available"),
])
def test_options_that_the_microbatch_engine_lacks(cli: Cli, arguments: list[str], says: str) -> None:
    assert_one_line(cli("run", WORD_COUNT, "--engine", "microbatch", *arguments), says)


@pytest.mark.parametrize("engine", ["resident", "microbatch"])
def test_resume_and_fresh_together(cli: Cli, engine: str) -> None:
    assert_one_line(cli("run", WORD_COUNT, "--engine", engine, "--resume", "--fresh"),
                    "--resume continues from the checkpoints of an earlier run, --fresh starts empty: give only one")


@pytest.mark.parametrize("arguments", [
    ["status"], ["status", "--json"], ["kill", "wordcount"], ["pause", "wordcount"], ["unpause", "wordcount"],
])
def test_nothing_runs(cli: Cli, arguments: list[str]) -> None:
    assert_one_line(cli(*arguments), "no Millrace cluster is running on this machine")
    assert_one_line(cli(*arguments, "--cluster", "ghost"), "no Millrace cluster named 'ghost'")


@pytest.mark.parametrize("arguments", [
    ["run"], ["dance"], ["run", WORD_COUNT, "--slots", "0"], ["run", WORD_COUNT, "--slots", "many"],
    ["run", WORD_COUNT, "--port", "70000"], ["run", WORD_COUNT, "--no-such-option"], ["demo", "--seconds", "0"],
    ["kill"], ["kill", "x", "--wait", "-1"],
])
def test_usage(cli: Cli, arguments: list[str]) -> None:
    code, out, err = cli(*arguments)
    assert code == 2
    assert out == ""
    assert "Usage: millrace" in err and "Error: " in err and "Traceback" not in err


def assert_one_line(result: tuple[int, str, str], says: str) -> None:
    code, _, err = result
    assert code == 1
    assert says in err
    assert err.startswith("millrace: ") and err.count("\n") == 1, err


def test_as_a_separate_process() -> None:
    done = subprocess.run([sys.executable, "-m", "millrace.cli.main", "run", "nosuchmodule:Thing"], capture_output=True,
                          text=True, check=False)
    assert_one_line((done.returncode, done.stdout, done.stderr), "nosuchmodule")
    assert done.stdout == ""

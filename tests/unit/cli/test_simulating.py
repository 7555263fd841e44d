"""`simulate`: worlds, patterns and absences from options, and the output as table, data and picture."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.cli.simulating import SimulateOptions, chosen_world, relative_pattern, run
from millrace.control.scheduling.load_smoothing import Ewma
from millrace.errors import BadLinks, BadParameter, BadSituation, MillraceError, StoreUnreachable, TopologyError, UnknownName
from millrace.master.load.history import History
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad
from millrace.schedulers.instances import random_situation

SMALL = SimulateOptions(nodes=3, tasks=20, hours=0.1, schedulers=("even", "tstorm gamma=2"), walk=0.1, keys=0.2)


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_table_and_data() -> None:
    output = console()
    result = run(SMALL, output)
    assert json.loads(json.dumps(result)) == result, "must be plain data"
    assert [row["scheduler"] for row in result["runs"]] == ["even", "tstorm gamma=2"]
    assert all((row["nodes"], row["tasks"], row["hours"]) == (3, 20, pytest.approx(0.1)) for row in result["runs"])
    assert isinstance(output.file, io.StringIO) and "tstorm gamma=2" in output.file.getvalue()


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run(replace(SMALL, plot=str(tmp_path / "runs.svg")), console())
    assert (tmp_path / "runs.svg").read_text().lstrip().startswith("<?xml")
    with pytest.raises(BadParameter, match=r"ends in .svg or .png"):
        run(replace(SMALL, plot="runs.gif"), console())
    with pytest.raises(BadParameter, match=r"there is no directory .*/none"):  # before anything is simulated
        run(replace(SMALL, plot=str(tmp_path / "none" / "runs.svg")), console())


def test_a_saved_situation(tmp_path: Path) -> None:
    case = random_situation(np.random.default_rng(2))
    case.save(tmp_path / "now.json")
    chosen = chosen_world(replace(SMALL, situation=str(tmp_path / "now.json")))
    assert chosen.situation == case and chosen.conditions.window_seconds == 20.0
    with pytest.raises(BadSituation, match="no-such-file"):
        chosen_world(replace(SMALL, situation="no-such-file"))


def test_a_recorded_run(tmp_path: Path) -> None:
    case = random_situation(np.random.default_rng(2))
    history = History(f"sqlite:///{tmp_path}/history.db", "one", 3600.0, clock=lambda: 100.0)
    nodes = {node.name: NodeLoad(1.0, node.capacity_mhz) for node in case.cluster.nodes}
    workers = {slot.number: WorkerLoad(slot.node) for slot in case.cluster.slots}
    for at in (10.0, 20.0):
        history.record_window(WindowSample(at, 10.0, case.load, case.plan, workers, nodes))
    assert history.flush(30.0)
    history.close()
    asked = replace(SMALL, history=str(tmp_path / "history.db"), hours=None)
    assert chosen_world(asked).conditions.hours == pytest.approx(20 / 3600)
    assert run(asked, console())["runs"][0]["inter_node_mean"] > 0
    with pytest.raises(BadParameter, match=r"no windows of cluster 'two'.*It has one"):
        chosen_world(replace(asked, cluster="two"))
    with pytest.raises(StoreUnreachable, match="there is no history in"):
        chosen_world(replace(asked, history=str(tmp_path / "other.db")))
    (tmp_path / "text.db").write_text("something else entirely" * 100)
    with pytest.raises(StoreUnreachable, match="cannot be read"):
        chosen_world(replace(asked, history=str(tmp_path / "text.db")))


def test_many_tasks_have_longer_windows() -> None:
    seen = [chosen_world(replace(SMALL, tasks=tasks, window=window)).conditions
            for tasks, window in ((1001, None), (1001, 5.0), (1000, None))]
    assert [each.window_seconds for each in seen] == [60.0, 5.0, 20.0]
    assert {each.policy.period for each in seen} == {0.0}, "every scheduler has its own period"


def test_thresholds_and_estimator() -> None:
    policy = {"period": 100.0, "cool_down": 5.0, "min_gain": 0.1, "payback": 60.0, "overload": 0.7}
    conditions = chosen_world(replace(SMALL, policy=policy, estimator="ewma a=0.3")).conditions
    assert {name: getattr(conditions.policy, name) for name in policy} == policy and conditions.estimator == Ewma(a=0.3)
    with pytest.raises(UnknownName, match="no estimator named 'mean'"):
        chosen_world(replace(SMALL, estimator="mean"))
    with pytest.raises(BadParameter, match="overload"):
        chosen_world(replace(SMALL, policy={"overload": -1.0}))


def test_links(tmp_path: Path) -> None:
    (tmp_path / "links.toml").write_text('between_zones = 5.0\n[zones]\na = ["n0000"]\nb = ["n0001", "n0002"]\n')
    chosen = chosen_world(replace(SMALL, links=str(tmp_path / "links.toml"), link_capacity=300.0))
    assert [chosen.situation.cluster.link_cost(*pair) for pair in (("n0000", "n0001"), ("n0001", "n0002"))] == [5.0, 1.0]
    assert chosen.conditions.links.bytes_per_second == 300.0
    plain = run(replace(SMALL, schedulers=("even",)), console())["runs"][0]
    linked = run(replace(SMALL, schedulers=("even",), links=str(tmp_path / "links.toml")), console())["runs"][0]
    capped = run(replace(SMALL, schedulers=("even",), link_capacity=300.0), console())["runs"][0]
    assert linked["p50_ms"] > plain["p50_ms"] and linked["inter_node_mean"] == plain["inter_node_mean"]
    assert capped["overload_s"] > plain["overload_s"]
    with pytest.raises(BadLinks, match="no-such-file"):
        chosen_world(replace(SMALL, links="no-such-file.toml"))


def test_nodes_that_are_away() -> None:
    absences = chosen_world(replace(SMALL, away=("n0001=0-0.05",), failures=100.0)).conditions.absences
    assert (absences[0].node, absences[0].begin, absences[0].end) == ("n0001", 0.0, 180.0) and len(absences) > 1
    for wrong in ("n0001", "n0001=2", "n0001=2-1", "n0001=a-b", "=1-2"):
        with pytest.raises(BadParameter, match=r"NODE=FROM-UNTIL|there is no node"):
            chosen_world(replace(SMALL, away=(wrong,)))
    with pytest.raises(BadParameter, match="there is no node 'n9'; there are n0000"):
        chosen_world(replace(SMALL, away=("n9=1-2",)))
    with pytest.raises(BadParameter, match=r"begins after the end: 0.1 hours"):
        chosen_world(replace(SMALL, away=("n0001=1-2",)))


def test_patterns(tmp_path: Path) -> None:
    step = relative_pattern("step peak=3 at=100", 1.0)
    assert (step.due_by(100.0), step.due_by(200.0)) == (100.0, 400.0)
    assert relative_pattern("sine peak=1.5 period=3600", 1.0).due_by(3600.0) == pytest.approx(3600)
    (tmp_path / "trace.csv").write_text("0,100\n1800,300\n")
    trace = relative_pattern(f"trace {tmp_path / 'trace.csv'}", 1.0)
    assert (trace.due_by(1800.0), trace.due_by(3600.0)) == (900.0, 3600.0), "1 on average"


@pytest.mark.parametrize(("text", "error", "match"), [
    ("wave", BadParameter, "no pattern 'wave'; there are constant, step"),
    ("", BadParameter, "no pattern ''"),
    ("step", BadParameter, "missing.*peak.*NAME=VALUE"),
    ('"step', BadParameter, "no closing quotation"),
    ("step peak=high at=3", BadParameter, "peak is 'high', which is not a number"),
    ("step top=3", BadParameter, "unexpected keyword argument 'top'"),
    ("sine peak=5 period=10", TopologyError, "would fall below 0"),
    ("trace no-such.csv", TopologyError, "cannot be read"),
])
def test_patterns_that_are_wrong(text: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        relative_pattern(text, 1.0)


def test_schedulers_that_are_wrong() -> None:
    with pytest.raises(UnknownName, match="fastest"):
        run(replace(SMALL, schedulers=("fastest",)), console())
    with pytest.raises(UnknownName, match="no scheduler named ''"):
        run(replace(SMALL, schedulers=("",)), console())


def test_the_command() -> None:
    result = CliRunner().invoke(app, ["simulate", "--nodes", "2", "--tasks", "8", "--hours", "0.02", "--away", "n0001=0-0.01",
                                      "--scheduler", "even", "--json", "--estimator", "last", "--overload", "0.8",
                                      "--min-gain", "0.1", "--payback", "60", "--cool-down", "20", "--period", "60"])
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout.splitlines()[-1])["runs"]
    assert (row["scheduler"], row["nodes"], row["tasks"]) == ("even", 2, 8)


@pytest.mark.parametrize(("options", "match"), [
    (["--history", "h.db", "--nodes", "5", "--walk", "0.2"], r"--nodes, --walk cannot be given with --history"),
    (["--situation", "s.json", "--tasks", "5"], r"--tasks cannot be given with --situation"),
    (["--cluster", "one"], r"give --history FILE, too"),
])
def test_options_that_would_change_nothing_are_refused(options: list[str], match: str) -> None:
    error = CliRunner().invoke(app, ["simulate", *options]).exception
    assert isinstance(error, BadParameter) and re.search(match, str(error)), error


def test_the_command_compare() -> None:
    result = CliRunner().invoke(app, ["scheduler", "compare", "--random", "2", "--tasks", "5-6", "--nodes", "2", "--shape",
                                      "chain", "--cores", "2", "--only", "even", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["instances"] == 2
    for wrong in ("x", "3-", "0", "5-4"):
        assert isinstance(CliRunner().invoke(app, ["scheduler", "compare", "--random", "1", "--tasks", wrong]).exception,
                          MillraceError)

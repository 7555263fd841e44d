"""`millrace scheduler`, `move`, `rebalance`, `plan` and `load` against a running master: exit codes, JSON, one-line errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.main import main
from millrace.master.requests.client import ask
from millrace.model.graph import TaskId
from millrace.model.situation import Situation
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, AuditedStream

Cli = Callable[..., tuple[int, str, str]]
QUICK = ["--period", "0.5", "--cool-down", "0.5"]
CYCLES = ["--set", "supervisor_cycle=0.1", "--set", "worker_cycle=0.1"]


@pytest.fixture(scope="module")
def stream() -> Iterator[AuditedStream]:
    """A stream on two workers and two nodes, after its first load window."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="run") as runtime_directory:
        patch.setenv("XDG_RUNTIME_DIR", runtime_directory)
        patch.setenv("XDG_STATE_HOME", f"{runtime_directory}/state")
        patch.setenv("COLUMNS", "200")
        directory = Path(runtime_directory) / "audited"
        directory.mkdir()
        with ForkedCluster(2, nodes=2, settings={"load.period.secs": 0.5}) as cluster:
            made = AuditedStream(cluster.master, directory, rate=100)
            made.until(lambda: "audited" in cluster.master.scheduling.load and made.positions() != {})
            yield made


@pytest.fixture
def cli(stream: AuditedStream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Run commands in this process."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    yield run
    signal.signal(signal.SIGTERM, before)


def value(result: tuple[int, str, str]) -> Any:
    """The one JSON value that `--json` printed."""
    code, out, err = result
    assert (code, err) == (0, ""), err
    assert out.count("\n") == 1
    return json.loads(out)


def assert_one_line(result: tuple[int, str, str], says: str) -> None:
    code, out, err = result
    assert (code, out) == (1, "")
    assert says in err
    assert err.startswith("millrace: ") and err.count("\n") == 1 and "Traceback" not in err, err
    assert not re.match(r"millrace: \w+(Error|Exception): ", err), "the name of a Python exception helps nobody"


def split(stream: AuditedStream) -> tuple[TaskId, int]:
    """A task that can be moved, and its slot."""
    task = TaskId("split", 0)
    return task, stream.state.places[task].slot


def test_list_needs_no_cluster(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="run") as runtime_directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime_directory)
        schedulers = value(cli("scheduler", "list", "--json"))
        assert {"even", "tstorm", "otd", "slstream", "optimal"} <= set(schedulers)
        assert {row["name"]: row["default"] for row in schedulers["tstorm"]["parameters"]}["gamma"] == 1.5
        assert all(entry["about"] for entry in schedulers.values())
        code, out, _ = cli("scheduler", "list")
        assert code == 0 and "tstorm" in out and "gamma" in out and "module:Class" in out
        code, out, _ = cli("scheduler", "list", "tstorm")
        assert code == 0 and "gamma=1.5" in out and "Consolidation" in out and "otd" not in out
        assert value(cli("scheduler", "list", "tstorm", "--json")) == {"tstorm": schedulers["tstorm"]}
        assert_one_line(cli("scheduler", "list", "nope"), "there is no scheduler named 'nope'")
        for verb in (["scheduler", "show"], ["scheduler", "history"], ["scheduler", "set", "otd"], ["plan"], ["load"],
                     ["move", "split[0]", "1"], ["regroup", "count", "0=1"]):
            assert_one_line(cli(*verb), "no Millrace cluster is running on this machine")
            assert_one_line(cli(*verb, "--cluster", "ghost"), "no Millrace cluster named 'ghost'")


def test_set_show_and_off(cli: Cli, stream: AuditedStream) -> None:
    answer = value(cli("scheduler", "set", "otd", "high=0.75", *QUICK, "--dry-run", "--balance", "--json"))
    assert answer["scheduler"] == "otd" and answer["parameters"]["high"] == 0.75
    assert (answer["policy"]["period"], answer["policy"]["dry_run"], answer["window_seconds"]) == (0.5, True, 0.5)
    assert answer["policy"]["balance"] is True
    stream.until(lambda: bool(stream.master.scheduling.generator.decisions))
    shown = value(cli("scheduler", "show", "--json"))
    assert shown["last_decision"]["scheduler"] == "otd"
    assert {**shown, "last_decision": None, "history": None} == {**answer, "last_decision": None, "history": None}
    code, out, err = cli("scheduler", "show")
    assert (code, err) == (0, "")
    assert "scheduler: otd (" in out and "high=0.75" in out and "policy:    period=0.5" in out and "last:" in out
    answer = value(cli("scheduler", "set", "otd", "low=0.4", "--act", "--estimator", "ewma", "--estimator-set", "a=0.25",
                       "--json"))
    assert (answer["parameters"]["high"], answer["parameters"]["low"]) == (0.75, 0.4)
    assert (answer["policy"]["period"], answer["policy"]["dry_run"]) == (0.5, False)
    assert answer["estimator"] == {"name": "ewma", "parameters": {"a": 0.25}}
    answer = value(cli("scheduler", "set", "otd", "--agent-poll", "0.5", "--worker-poll", "0.125", "--json"))
    assert (answer["policy"]["agent_poll"], answer["policy"]["worker_poll"]) == (0.5, 0.125)
    assert "polls:     agents every 0.5 s, workers every 0.125 s" in cli("scheduler", "show")[1]
    code, out, _ = cli("scheduler", "set", "off")
    assert code == 0 and out.startswith("scheduler: off\n")


def test_a_user_defined_scheduler(cli: Cli, stream: AuditedStream) -> None:
    answer = value(cli("scheduler", "set", "support.user_schedulers:Tuned", "least=3", "label=as said", "--period", "0",
                       "--json"))
    assert (answer["parameters"], answer["policy"]["period"]) == ({"least": 3, "label": "as said"}, 17.0)
    cli("scheduler", "set", "support.user_schedulers:Raises", *QUICK)
    stream.until(lambda: stream.master.scheduling.generator.decisions[-1].scheduler == "support.user_schedulers:Raises")
    code, out, err = cli("scheduler", "history")  # the message has brackets that look like markup
    assert (code, err) == (0, "") and "[/bold]" in out
    code, out, err = cli("status")
    assert code == 0 and "[/bold]" in out
    assert "[/bold]" in value(cli("scheduler", "history", "--json"))["decisions"][-1]["reason"]
    value(cli("scheduler", "set", "off", "--json"))


@pytest.mark.parametrize(("arguments", "says"), [
    (["nope"], "there is no scheduler named 'nope'; there are even,"),
    (["no_such_module:X"], "no_such_module"),
    (["support.user_schedulers:Nope"], "has no 'Nope'"),
    (["support.user_schedulers:CannotBeMade"], "no licence"),
    (["tstorm", "gamma"], "KEY=VALUE"),
    (["tstorm", "=2"], "KEY=VALUE"),
    (["tstorm", "gama=2"], "has no parameter 'gama'; it has minimise, between_workers, gamma"),
    (["tstorm", "gamma=0.5"], "out of range: it must be at least 1"),
    (["tstorm", "gamma=lots"], "must be a finite number"),
    (["tstorm", "gamma=NaN"], "must be a finite number"),
    (["tstorm", "gamma=1e999"], "must be a finite number"),
    (["tstorm", "gamma=true"], "must be a finite number"),
    (["tstorm", "gamma=[1]"], "must be a finite number"),
    (["tstorm", "gamma=" + "9" * 40], "too large"),
    (["tstorm", "gamma=" + "[" * 100_000], "must be a finite number"),
    (["otd", "queue_high=1.5"], "must be a whole number"),
    (["tstorm", "--period", "-1"], "at least 0"),
    (["tstorm", "--period", "nan"], "finite number"),
    (["tstorm", "--min-gain", "2"], "from 0 to 1"),
    (["tstorm", "--strategy", "teleport"], "is not one of handover, rollback"),
    (["tstorm", "--strategy", "dcr"], "'audited' takes no waves, so it cannot be migrated by dcr"),
    (["tstorm", "--strategy-set", "message_timeout=5"], "handover has no parameter 'message_timeout'; it has none"),
    (["tstorm", "--strategy", "storm", "--strategy-set", "message_timeout=-1"], "expected seconds, 0 or more"),
    (["tstorm", "--strategy", "storm", "--strategy-set", "message_timeout"], "KEY=VALUE"),
    (["tstorm", "--estimator", "nope"], "there is no estimator named 'nope'"),
    (["tstorm", "--estimator", "ewma", "--estimator-set", "a=1"], "never learn"),
    (["tstorm", "--estimator-set", "a"], "KEY=VALUE"),
    (["off", "gamma=1"], "'off' is not a scheduler"),
])
def test_invalid_settings(cli: Cli, arguments: list[str], says: str) -> None:
    before = value(cli("scheduler", "show", "--json"))
    code, out, err = cli("scheduler", "set", *arguments)
    assert_one_line((code, out, err), says)
    after = value(cli("scheduler", "show", "--json"))
    assert {**after, "history": None} == {**before, "history": None}


@pytest.mark.parametrize("arguments", [
    ["scheduler", "set"], ["scheduler", "dance"], ["scheduler", "set", "otd", "--period", "soon"],
    ["scheduler", "history", "--limit", "0"], ["move", "split[0]"], ["move", "split[0]", "one"], ["scheduler", "compare", "x"],
    ["regroup", "count"],
])
def test_usage(cli: Cli, arguments: list[str]) -> None:
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "") and "Usage: millrace" in err and "Traceback" not in err


def test_the_strategy_of_a_scheduler(cli: Cli) -> None:
    answer = value(cli("scheduler", "set", "off", "--strategy", "storm", "--strategy-set", "message_timeout=5", "--json"))
    assert (answer["policy"]["strategy"], answer["policy"]["strategy_parameters"]) == ("storm", {"message_timeout": 5})
    code, out, _ = cli("scheduler", "show")
    assert code == 0 and "strategy=storm (message_timeout=5)" in out
    answer = value(cli("scheduler", "set", "off", "--strategy", "handover", "--json"))
    assert (answer["policy"]["strategy"], answer["policy"]["strategy_parameters"]) == ("handover", {})


def test_history_ends_with_the_newest(cli: Cli, stream: AuditedStream) -> None:
    decisions = stream.master.scheduling.generator.decisions
    for name in ("tstorm", "otd", "even"):
        value(cli("scheduler", "set", name, *QUICK, "--dry-run", "--json"))
        stream.until(lambda name=name: bool(decisions) and decisions[-1].scheduler == name)
    value(cli("scheduler", "set", "off", "--act", "--json"))
    rows = value(cli("scheduler", "history", "--json"))["decisions"]
    assert [row["number"] for row in rows] == sorted(row["number"] for row in rows)
    assert rows[-1]["scheduler"] == "even"
    assert value(cli("scheduler", "history", "--limit", "1", "--json"))["decisions"] == rows[-1:]
    code, out, err = cli("scheduler", "history", "--limit", "3")
    assert (code, err) == (0, "") and "even" in out


def test_move(cli: Cli, stream: AuditedStream) -> None:
    task, slot = split(stream)
    answer = value(cli("move", str(task), str(1 - slot), "--json"))
    assert answer == {"topology": "audited", "task": "split[0]", "from": slot, "to": 1 - slot, "keyed": False,
                      "waves": False, "batched": False, "strategy": "handover", "waits_for": [],
                      "starting": False}
    stream.until(lambda: split(stream)[1] == 1 - slot and stream.state.handover.at_rest)
    assert value(cli("plan", "--json"))["topologies"]["audited"]["placement"]["split[0]"] == 1 - slot
    code, out, _ = cli("move", "split[0]", str(1 - slot), "--topology", "audited")
    assert (code, out) == (0, f"split[0] is on worker {1 - slot} already\n")
    code, out, _ = cli("move", "split[0]", str(slot))
    assert (code, out) == (0, f"split[0] of audited moves from worker {1 - slot} to worker {slot}\n"
                              "it is handed over while the stream runs; `moves` shows its progress\n")
    stream.until(lambda: split(stream)[1] == slot and stream.state.handover.at_rest)
    stream.advance(50)


def test_moves_while_a_task_is_being_moved(cli: Cli, stream: AuditedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan leaves the master meanwhile, so that the first move does not go on."""
    task, slot = split(stream)
    other = TaskId("count", 0)
    place, version = stream.state.places[other].slot, stream.state.version
    with monkeypatch.context() as patch:
        patch.setattr(stream.master.distribution, "distribute", lambda command: None)
        assert cli("move", str(task), str(1 - slot))[0] == 0
        assert_one_line(cli("move", str(task), str(1 - slot)), f"split[0] is being moved to worker {1 - slot}. Try again when "
                                                               f"it has arrived, or cancel that by a move to worker {slot}")
        assert value(cli("move", str(other), str(1 - place), "--json"))["waits_for"] == ["split[0]"]
        code, out, _ = cli("move", str(other), str(1 - place))
        assert code == 0 and "it is handed over after split[0]; `moves` shows its progress\n" in out
        group = stream.state.key_groups["count"].index(0)
        code, out, _ = cli("regroup", "count", f"{group}=1")
        assert code == 0 and "1 key group of count of audited goes to other tasks after a move of split[0]; `moves`" in out
        for back in (other, task):  # cancels it
            assert cli("move", str(back), str(stream.state.places[back].slot))[0] == 0
        assert_one_line(cli("move", "split[0]", "7"), "there is no worker 7; there are 0, 1")
    stream.master.call(lambda: stream.master.distribution.distribute(stream.master.state.distribution()))
    stream.until(lambda: stream.state.handover.at_rest and stream.state.key_groups["count"][group] == 1)
    assert split(stream) == (task, slot) and stream.state.places[other].slot == place
    assert stream.state.version > version and stream.state.losses == 0
    assert cli("regroup", "count", f"{group}=0")[0] == 0
    stream.until(lambda: stream.state.handover.at_rest)
    stream.advance(50)


def test_regroup(cli: Cli, stream: AuditedStream) -> None:
    owners = stream.state.key_groups["count"]
    first = [group for group, owner in enumerate(owners) if owner == 0][:3]
    items = [f"{group}=1" for group in first]
    answer = value(cli("regroup", "count", *items, "--json"))
    assert answer == {"topology": "audited", "component": "count", "splits": False, "batched": False, "waits_for": [],
                      "starting": False, "groups": {str(group): {"from": 0, "to": 1} for group in first}}
    stream.until(lambda: stream.state.handover.at_rest)
    wanted = [1 if group in first else owner for group, owner in enumerate(owners)]
    assert value(cli("plan", "--json"))["topologies"]["audited"]["key_groups"]["count"] == wanted
    code, out, _ = cli("regroup", "count", *items, "--topology", "audited")
    assert (code, out) == (0, "count of audited has these key groups where they are wanted already\n")
    code, out, _ = cli("regroup", "count", *[f"{group}=0" for group in first])
    assert code == 0 and "go to other tasks while the stream runs; `moves` shows the progress\n" in out
    stream.until(lambda: stream.state.handover.at_rest)
    assert stream.state.key_groups["count"] == owners
    stream.advance(50)


@pytest.mark.parametrize(("arguments", "says"), [
    (["ghost", "0=1"], "no running topology has 'ghost'; audited has "),
    (["split", "0=1"], "'split' has no key groups, because no fields grouping leads to it; components that have some: count"),
    (["count", "128=1"], "'count' has no key group 128; it has 0 to 127"),
    (["count", "0=1", "120-130=1"], "'count' has no key group 128; it has 0 to 127"),
    (["count", "0=3"], "'count' has no task 3; it has 0 to 2"), (["count", "0=-1"], "'count' has no task -1"),
    (["count", "0"], "KEY=VALUE"), (["count", "x=1"], "'x' is neither a key group, as in 12=1, nor a range, as in 0-7=1"),
    (["count", "7-0=1"], "'7-0' is neither a key group"), (["count", "0=one"], "must be a whole number"),
    (["count", "0-=1"], "'0-' is neither a key group"),
    (["count", "0-7=1", "3=2"], "regroup '3=2': key group 3 is already given to task 1, and it can have only one owner"),
    (["count", "0=1", "--topology", "nope"], "no topology named 'nope' is running; running: audited"),
])
def test_invalid_changes_of_key_groups(cli: Cli, stream: AuditedStream, arguments: list[str], says: str) -> None:
    version, owners = stream.state.version, stream.state.key_groups["count"]
    assert_one_line(cli("regroup", *arguments), says)
    assert stream.state.version == version and stream.state.key_groups["count"] == owners
    assert stream.state.handover.at_rest


@pytest.mark.parametrize(("arguments", "says"), [
    (["split", "0"], "'split' does not name a task"), (["split[x]", "0"], "'split[x]' does not name a task"),
    (["", "0"], "does not name a task"),
    (["split[9]", "0"], "no running topology has a task split[9]; there are "), (["nope[0]", "0"], "no running topology"),
    (["split[0]", "7"], "7"), (["split[0]", "0", "--topology", "nope"], "nope"),
    (["split[9]", "0", "--topology", "audited"], "split[9]"), (["nope[0]", "0", "--topology", "audited"], "nope"),
])
def test_invalid_moves(cli: Cli, stream: AuditedStream, arguments: list[str], says: str) -> None:
    version = stream.state.version
    assert_one_line(cli("move", *arguments), says)
    assert stream.state.version == version


def test_move_by_a_strategy(cli: Cli, stream: AuditedStream) -> None:
    task, slot = split(stream)
    for target in (1 - slot, slot):
        code, out, _ = cli("move", str(task), str(target), "--strategy", "nstorm", *CYCLES)
        assert code == 0 and "it moves by nstorm; `moves` shows its progress\n" in out
        stream.until(lambda target=target: stream.state.migration is None and split(stream)[1] == target)
    version = stream.state.version
    for target in (0, 1):
        assert_one_line(cli("move", str(task), str(target), "--strategy", "teleport"), "there is no strategy 'teleport'")
        assert_one_line(cli("move", str(task), str(target), "--set", "drain=1"), "handover has no parameter 'drain'")
    assert_one_line(cli("move", str(task), str(1 - slot), "--strategy", "dcr"), "'audited' takes no waves")
    assert stream.state.version == version


def test_rebalance(cli: Cli, stream: AuditedStream, tmp_path: Path) -> None:
    before, owners = dict(stream.state.plan.placement), stream.state.key_groups["count"]
    arguments = ["rebalance", "--scheduler", "support.user_schedulers:MovesTasksAndKeyGroups", "--strategy", "nstorm", *CYCLES]
    assert_one_line(cli(*arguments, "--no-wait"), "the plan also gives key groups of count to other tasks")
    answer = value(cli(*arguments, "--json"))
    assert (answer["record"]["strategy"], answer["record"]["outcome"]) == ("nstorm", "done")
    assert {move["task"]: move["to"] for move in answer["moves"]} == {str(task): 1 - slot for task, slot in before.items()}
    assert [(change["component"], change["groups"]) for change in answer["regrouped"]] == [
        ("count", {"0": {"from": owners[0], "to": max(owners)}})]
    stream.until(lambda: stream.state.handover.at_rest and stream.state.key_groups["count"] == (max(owners), *owners[1:]))
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({str(task): slot for task, slot in before.items()}))
    code, out, err = cli("rebalance", "audited", "--to", str(file))
    assert (code, err) == (0, "") and "of audited: handover, done" in out
    assert stream.state.plan.placement == before
    assert cli("rebalance", "--to", str(file)) == (0, "every task of audited is already where the plan wants it\n", "")
    assert cli("regroup", "count", f"0={owners[0]}")[0] == 0
    stream.until(lambda: stream.state.handover.at_rest)
    stream.advance(50)


def test_a_rebalance_that_is_refused_or_cancelled(cli: Cli, stream: AuditedStream, tmp_path: Path) -> None:
    task, slot = split(stream)
    file, version = tmp_path / "plan.json", stream.state.version
    file.write_text(json.dumps({str(task): 1 - slot}))
    assert_one_line(cli("rebalance", "--to", str(file), "--strategy", "dcr"), "'audited' takes no waves")
    assert stream.state.version == version

    def cancel() -> None:
        stream.until(lambda: stream.state.migration is not None)
        ask(None, "cancel move", task=str(task))

    with ThreadPoolExecutor(1) as pool:
        cancelled = pool.submit(cancel)
        code, out, _ = cli("rebalance", "--to", str(file), "--strategy", "storm", "--set", "message_timeout=3600")
        cancelled.result()
    assert code == 1 and "storm, cancelled" in out and "a person cancelled it" in out
    assert split(stream) == (task, slot)
    stream.advance(50)


def test_scale_refuses_what_cannot_be(cli: Cli, stream: AuditedStream) -> None:
    assert_one_line(cli("scale", "lines=3"), "is a spout")
    assert_one_line(cli("scale", "nope=3"), "no running topology has 'nope'; audited has ")


def test_a_negative_worker_number_is_refused(cli: Cli) -> None:
    assert_one_line(cli("move", "split[0]", "--", "-1"), "-1")


def test_plan(cli: Cli, stream: AuditedStream) -> None:
    answer = value(cli("plan", "--json"))
    assert {TaskId.parse(task): slot for task, slot in answer["topologies"]["audited"]["placement"].items()} == {
        task: place.slot for task, place in dict(stream.state.places).items()}
    code, out, err = cli("plan")
    assert (code, err) == (0, "")
    assert "audited: running, plan version" in out and "split[" in out and "key groups of count: 43 each for [0..1]" in out


def test_load_and_save(cli: Cli, stream: AuditedStream, tmp_path: Path) -> None:
    answer = value(cli("load", "--json"))
    assert set(answer["workers"]) == {"0", "1"} and set(answer["nodes"]) == {"node0", "node1"}
    assert set(answer["topologies"]["audited"]["components"]) == {"lines", "split", "count", "sink"}
    code, out, err = cli("load", "--tasks")
    assert (code, err) == (0, "") and "count[2]" in out and "pairs of tasks" in out
    assert value(cli("load", "audited", "--json"))["topologies"].keys() == {"audited"}
    code, out, err = cli("load")
    assert (code, err) == (0, "") and "split" in out and "node0" in out
    file = tmp_path / "a situation.json"
    code, out, err = cli("load", "--save", str(file))
    assert (code, err) == (0, "") and f"saved to {file}" in out
    situation = Situation.read(file)
    assert [graph.name for graph in situation.graphs] == ["audited"] and situation.load["audited"].tasks
    assert_one_line(cli("load", "nope"), "nope")
    assert_one_line(cli("load", "--save", str(tmp_path / "no" / "such" / "file")), "cannot write")


def test_compare_a_saved_situation(cli: Cli, tmp_path: Path) -> None:
    file = str(tmp_path / "s.json")
    value(cli("load", "--save", file, "--json"))
    code, out, _ = cli("scheduler", "compare", "--load", file, "--json")
    assert code == 0 and out.count("\n") == 1
    assert {"even", "tstorm", "otd"} <= set(json.loads(out)["schedulers"])
    code, out, _ = cli("scheduler", "compare", "--load", file, "--only", "tstorm")
    assert code == 0 and "tstorm" in out
    assert_one_line(cli("scheduler", "compare"), "--load FILE")
    assert_one_line(cli("scheduler", "compare", "--load", str(tmp_path / "nothing")), "cannot read")
    (tmp_path / "nonsense").write_text("{}")
    assert_one_line(cli("scheduler", "compare", "--load", str(tmp_path / "nonsense")), "millrace load --save FILE")
    assert_one_line(cli("scheduler", "compare", "--load", file, "--only", "nope"), "no scheduler named 'nope'")


def test_as_a_separate_process(stream: AuditedStream, tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        done = subprocess.run([sys.executable, "-m", "millrace.cli.main", *arguments], capture_output=True, text=True,
                              check=False, timeout=SECONDS, cwd=tmp_path, env=os.environ)
        return done.returncode, done.stdout, done.stderr

    assert value(run("scheduler", "show", "--json"))["scheduler"] == stream.master.scheduling.generator.choice.name
    assert_one_line(run("scheduler", "set", "tstorm", "gama=2", "--json"), "has no parameter 'gama'")

"""A stream on real processes that is scaled by itself, and `millrace elastic` beside it."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.cli.main import main
from millrace.master.service import Master
from millrace.model.graph import graph_of
from millrace.spark.running_topology import RunningTopology
from support.processes.forked import ForkedCluster
from support.topologies.waiting_service import WaitingService

SECONDS = 90.0  # a safety limit, never a measure
RATE = 250.0  # calls per second: one task can do fewer than 100
NAME = "calls"
QUICK = {"period": 1.0, "cool_down": 1.0}
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="run") as runtime_directory:
        patch.setenv("XDG_RUNTIME_DIR", runtime_directory)
        patch.setenv("XDG_STATE_HOME", f"{runtime_directory}/state")
        patch.setenv("COLUMNS", "200")
        with ForkedCluster(2, settings={"load.period.secs": 1.0}) as cluster:
            cluster.master.submit(graph_of(WaitingService, NAME, {"rate": RATE}), False)
            assert cluster.master.wait_until(lambda: NAME in cluster.master.scheduling.elastic.predictions, SECONDS)
            yield cluster.master


@pytest.fixture
def cli(master: Master, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    yield run
    signal.signal(signal.SIGTERM, before)


def service_tasks(master: Master) -> int:
    return master.state.topologies[NAME].graph.component("service").par


def test_tasks_follow_the_offered_rate_and_what_came_of_it_is_recorded(master: Master, cli: Cli) -> None:
    """One task processes fewer than 100 calls a second of 250, so that at least 3 are needed. Then the goal allows fewer."""
    handle = RunningTopology(master, NAME).elastic
    shown = handle.set("ds2", utilization=0.9, **QUICK)
    assert (shown["model"], shown["par"]["service"]) == ("ds2", 1)

    def grown() -> bool:
        return service_tasks(master) >= 3 and master.state.topologies[NAME].scaling is None

    assert master.wait_until(grown, SECONDS), (handle.show(), list(master.events))
    assert master.wait_until(lambda: any(decision["helped"] is not None for decision in
                                         master.scheduling.elastic.past(20)), SECONDS), handle.history()
    decision = next(row for row in handle.history() if row["helped"] is not None)
    assert decision["direction"] == "grow" and decision["measured_ms"] is not None
    code, out, _ = cli("load", "--json")
    prediction = json.loads(out)["topologies"][NAME]["prediction"]
    assert code == 0 and {"calls", "service", "end"} == {row["component"] for row in prediction["components"]}
    assert prediction["offered_rate"] > 0
    code, out, _ = cli("load")
    assert code == 0 and "latency in ms" in out and "predicted" in out
    code, out, _ = cli("elastic", "history")
    assert code == 0 and "ds2: grow enacted" in out and "service 1 -> " in out
    code, out, _ = cli("elastic", "history", "--json")
    assert json.loads(out)["decisions"][0]["topology"] == NAME
    code, out, _ = cli("elastic", "off", "--json")
    assert code == 0 and json.loads(out)["topologies"][NAME]["model"] == "off"
    assert cli("status", "--json")[0] == 0


@pytest.mark.parametrize(("arguments", "words"), [
    (["magic"], "there is no elastic model named 'magic'; there are erstream, ds2, predictive"),
    (["erstream"], "needs a goal: c_max=N"),
    (["erstream", "t_max_ms=0.001"], "is below the least possible latency of"),
    (["erstream", "c_max=2"], "and c_max is 2. Nothing has changed; possible: c_max="),
    (["erstream", "t_max_ms=soon"], "t_max_ms = 'soon': it must be a number of milliseconds above 0"),
    (["ds2", "gamma=1"], "elastic model 'ds2' has no parameter 'gamma'; it has c_max, utilization, and the loop has period"),
    (["ds2", "--topology", "nope"], "nope"),
])
def test_bad_input_is_refused_at_once(cli: Cli, arguments: list[str], words: str) -> None:
    cli("elastic", "off")
    code, out, err = cli("elastic", "set", *arguments)
    assert (code, out) == (1, "") and words in err and len(err.splitlines()) == 1, err
    assert json.loads(cli("elastic", "show", "--json")[1])["topologies"][NAME]["model"] == "off"


def test_set_show_and_list(cli: Cli) -> None:
    code, out, _ = cli("elastic", "set", "erstream", "t_max_ms=5000", "dry_run=true", "cool_down=7")
    assert code == 0 and "erstream (t_max_ms=5000)" in out and "cool_down=7" in out
    shown: dict[str, Any] = json.loads(cli("elastic", "show", "--json")[1])["topologies"][NAME]
    assert (shown["model"], shown["limits"], shown["policy"]["dry_run"]) == ("erstream", {"t_max_ms": 5000.0}, True)
    code, out, _ = cli("elastic", "list")
    assert code == 0 and "t_max_ms" in out and "utilization=0.8" in out and "hysteresis=0.1" in out
    assert set(json.loads(cli("elastic", "list", "--json")[1])["models"]) == {"erstream", "ds2", "predictive"}
    cli("elastic", "off")

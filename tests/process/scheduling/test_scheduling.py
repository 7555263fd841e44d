"""Schedulers are swapped while a stream runs: no tuple is lost, and a faulty scheduler changes nothing."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.control.scheduling.schedule_generator import (
    ADVISED,
    BY_REQUEST,
    ENACTED,
    FAILED,
    NOT_WORTH_IT,
    OVERTAKEN,
    Decision,
)
from millrace.errors import BadParameter, MillraceError, SchedulerFailed, TopologyError, UnknownName
from millrace.master.load.history import History
from millrace.master.requests.client import ask
from millrace.master.service import Master
from millrace.model.graph import TaskId
from millrace.workloads.audit import AuditResult, audit, true_counts
from support.load.hot_stream import HotPage
from support.processes.forked import ForkedCluster
from support.topologies.audited import (
    SECONDS,
    UNHURRIED,
    AuditedStream,
    StatefulStream,
    assert_all_exact,
    assert_exact,
    assert_nothing_lost,
)

RATE = 400  # lines per second and spout: enough traffic, far below the machine's limit
ZIPF = 1.2  # word k of the vocabulary has weight 1 / k ** ZIPF
QUICK = {"period": 0.2, "cool_down": 0.2}
Open = Callable[..., ForkedCluster]


@pytest.fixture(autouse=True)
def user_directories_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with tempfile.TemporaryDirectory(prefix="run") as runtime_directory:  # sockets need a short path
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime_directory)
        yield


class SkewedStream(StatefulStream):
    """A stream with state in which some words are far more frequent than others."""

    def finish_both(self) -> tuple[AuditResult, Counter[str], Counter[str]]:
        self.drain()
        expected = self.positions()
        result, counts = audit(self.directory, expected, zipf=ZIPF), self.counts()
        self.end()
        return result, counts, true_counts(expected, zipf=ZIPF)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ForkedCluster]:
    with ForkedCluster(4, nodes=2, settings={"history.url": f"sqlite:///{tmp_path}/history.db"}) as cluster:
        yield cluster


@pytest.fixture
def stream(cluster: ForkedCluster, tmp_path: Path) -> AuditedStream:
    (tmp_path / "audited").mkdir()
    stream = AuditedStream(cluster.master, tmp_path / "audited", rate=RATE, **UNHURRIED)
    stream.advance(100)
    return stream


def decisions(master: Master, scheduler: str, outcome: str = "") -> list[Decision]:
    """All as of one moment: only the master's thread adds and replaces them."""
    known: list[Decision] = master.call(lambda: list(master.scheduling.generator.decisions))
    return [decision for decision in known if decision.scheduler == scheduler and outcome in ("", decision.outcome)]


def times(master: Master, scheduler: str, outcome: str = "") -> int:
    return sum(decision.times for decision in decisions(master, scheduler, outcome))


def outcomes(master: Master, scheduler: str) -> set[str]:
    return {decision.outcome for decision in decisions(master, scheduler)}


def assert_all_there(stream: AuditedStream) -> None:
    """Check that nothing is lost, and nothing repeated unless a worker was lost."""
    stream.master.set_scheduler("off", {}, {})
    stream.advance(100)
    check = assert_nothing_lost if stream.state.losses else assert_exact
    check(stream.finish())


def slots_of(stream: AuditedStream) -> dict[TaskId, int]:
    return {task: place.slot for task, place in dict(stream.state.places).items()}


def user(name: str) -> str:
    return f"support.user_schedulers:{name}"


def test_bad_schedulers_change_nothing_and_are_reported_once(cluster: ForkedCluster, stream: AuditedStream) -> None:
    """One scheduler for each way to fail; test_scheduler_process covers all invalid answers."""
    master, version = cluster.master, stream.state.version
    for name, says in {"Raises": "it raised KeyError", "UsesADeadSlot": "it uses slot 77", "Exits": "ended with code 3",
                       "Hangs": "no answer within"}.items():
        scheduler = user(name)
        master.set_scheduler(scheduler, {}, {**QUICK, "time_limit": 0.2 if name == "Hangs" else 30.0})
        stream.until(lambda scheduler=scheduler: times(master, scheduler) >= 2)
        assert outcomes(master, scheduler) == {FAILED}
        warnings = [event for event in master.status()["events"] if f"scheduler {scheduler} failed" in event["text"]]
        assert len(warnings) == 1 and warnings[0]["level"] == "warning", warnings
        assert says in warnings[0]["text"] and "millrace scheduler set" in warnings[0]["text"]
    assert stream.state.version == version and stream.state.losses == 0
    stream.advance(100)
    master.set_scheduler("tstorm", {}, {**QUICK, "time_limit": 30.0})
    stream.until(lambda: times(master, "tstorm") >= 1)
    assert not decisions(master, "tstorm", FAILED)
    assert_all_there(stream)


def test_plans_are_carried_out_by_request_and_even_is_re_established(cluster: ForkedCluster, stream: AuditedStream) -> None:
    master = cluster.master
    settings = ask(master.name, "scheduler set", seconds=SECONDS, name="tstorm", parameters={"gamma": 4},
                   policy={"period": 0.2, "cool_down": 1e6}, enact=True)
    assert settings["enacts_next"] and settings["scheduler"] == "tstorm"
    stream.until(lambda: decisions(master, "tstorm", ENACTED))
    stream.until(lambda: stream.state.handover.at_rest)
    packed = Counter(slots_of(stream).values())
    assert len(packed) <= 2, "a worker on each of two nodes at most"
    assert not ask(master.name, "scheduler show")["enacts_next"]
    master.set_scheduler("even", {}, {"min_gain": 1.0, "dry_run": True}, enact=True)  # the cool-down holds for others
    stream.until(lambda: decisions(master, "even", ENACTED))
    assert [decision.trigger for decision in decisions(master, "even", ENACTED)] == [BY_REQUEST]
    stream.until(lambda: stream.state.handover.at_rest)
    counts = Counter(slots_of(stream).values())
    assert len(counts) == 4 and max(counts.values()) - min(counts.values()) <= 1, counts
    assert_all_there(stream)


def test_a_failure_is_reported_again_when_the_scheduler_is_set_again(cluster: ForkedCluster, stream: AuditedStream) -> None:
    for expected in (1, 2):
        cluster.master.set_scheduler(user("Raises"), {}, QUICK)
        before = times(cluster.master, user("Raises"))
        stream.until(lambda before=before: times(cluster.master, user("Raises")) >= before + 2)
        assert len([event for event in list(cluster.master.events) if "failed" in event["text"]]) == expected


@pytest.mark.parametrize(("request_", "kind", "says"), [
    ({"name": "nope"}, UnknownName, "there is no scheduler named 'nope'; there are even,"),
    ({"name": "support.user_schedulers:Nope"}, SchedulerFailed, "nothing has changed"),
    ({"name": "no_such_module:Nope"}, SchedulerFailed, "no_such_module"),
    ({"name": "support.user_schedulers:CannotBeMade"}, SchedulerFailed, "no licence"),
    ({"name": "tstorm", "parameters": {"gama": 2}}, BadParameter,
     "has no parameter 'gama'; it has minimise, between_workers, gamma"),
    ({"name": "tstorm", "parameters": {"gamma": 0.5}}, BadParameter, "out of range: it must be at least 1"),
    ({"name": "tstorm", "parameters": {"gamma": "lots"}}, BadParameter, "finite number"),
    ({"name": "support.user_schedulers:Tuned", "parameters": {"least": 100}}, SchedulerFailed, "from 1 to 9"),
    ({"name": "tstorm", "policy": {"period": -1}}, BadParameter, "at least 0"),
    ({"name": "tstorm", "policy": {"perod": 1}}, BadParameter, "the schedule generator has no parameter 'perod'"),
    ({"name": "tstorm", "policy": {"strategy": "teleport"}}, BadParameter, "is not one of handover, rollback"),
    ({"name": "tstorm", "policy": {"strategy": "storm", "strategy_parameters": {"timeout": 1}}}, UnknownName,
     "the strategy storm has no parameter 'timeout'; it has message_timeout=30"),
    ({"name": "tstorm", "policy": {"strategy_parameters": {"message_timeout": 1}}}, UnknownName, "it has none"),
    ({"name": "tstorm", "estimator": "nope"}, UnknownName, "there is no estimator named 'nope'"),
    ({"name": "tstorm", "estimator": "ewma", "estimator_parameters": {"a": 1.0}}, BadParameter, "never learn"),
    ({"name": "tstorm", "estimator_parameters": {"a": 7}}, BadParameter, "out of range"),
    ({"name": "off", "parameters": {"gamma": 2}}, BadParameter, "'off' is not a scheduler"),
])
def test_an_invalid_choice_changes_nothing(idle: Master, request_: dict[str, Any], kind: type[MillraceError],
                                           says: str) -> None:
    before = ask(idle.name, "scheduler show")
    events = len(idle.events)
    with pytest.raises(kind) as refused:
        ask(idle.name, "scheduler set", seconds=SECONDS, **{"parameters": {}, "policy": {}, **request_})
    assert says in str(refused.value)
    assert ask(idle.name, "scheduler show") == before
    assert len(idle.events) == events


@pytest.fixture(scope="module")
def idle() -> Iterator[Master]:
    """A master without workers that uses otd. Its load window is longer than any test."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="run") as runtime_directory:
        patch.setenv("XDG_RUNTIME_DIR", runtime_directory)
        master = Master(f"idle-{os.getpid()}", settings={"history.url": "none", "load.period.secs": 1e6})
        master.start()
        master.set_scheduler("otd", {"high": 0.7}, {"period": 1e6})
        yield master
        master.stop()


@pytest.fixture(autouse=True)
def runtime_directory_of_idle(request: pytest.FixtureRequest, user_directories_hidden: None) -> Iterator[None]:
    """Point clients at the runtime directory in which the idle master was started."""
    if "idle" in request.fixturenames:
        master: Master = request.getfixturevalue("idle")
        assert master._request_socket is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", str(master._request_socket.path.parents[1]))
            yield
    else:
        yield


def test_unset_parameters_keep_their_values(idle: Master) -> None:
    before = idle.set_scheduler("otd", {"high": 0.7, "low": 0.5}, {"period": 1e6, "min_gain": 0.02}, "ewma", {"a": 0.5})
    after = idle.set_scheduler("otd", {"low": 0.3}, {"min_gain": 0.1}, None, {"a": 0.25})
    assert after["parameters"] == {**before["parameters"], "low": 0.3}
    assert after["policy"] == {**before["policy"], "min_gain": 0.1}
    assert after["estimator"] == {"name": "ewma", "parameters": {"a": 0.25}}
    assert idle.set_scheduler("otd", {}, {}, "ewma")["estimator"] == after["estimator"]
    assert idle.set_scheduler("otd", {}, {}, "last")["estimator"] == {"name": "last", "parameters": {}}
    assert idle.set_scheduler("otd", {}, {}, "ewma")["estimator"] == {"name": "ewma", "parameters": {"a": 0.5}}


def test_off_and_on_again(idle: Master) -> None:
    assert idle.set_scheduler("off", {}, {})["scheduler"] == "off"
    again = idle.set_scheduler("otd", {}, {"period": 0})
    assert (again["parameters"]["high"], again["policy"]["period"]) == (0.8, 5.0), "other schedulers' parameters do not stay"
    assert idle.set_scheduler("otd", {"high": 0.7}, {"period": 1e6})["policy"]["period"] == 1e6


def test_invalid_requests(idle: Master) -> None:
    for verb, arguments, says in [
        ("scheduler history", {"limit": "many"}, "many"), ("scheduler set", {}, "name"),
        ("move", {"task": "x", "slot": 0}, "'x' does not name a task"),
        ("move", {"task": "count[0]", "slot": "one"}, "one"), ("move", {"task": "count[0]", "slot": 1}, "no running topology"),
        ("dance", {}, "unknown command"), ("load", {"topology": "nope"}, "nope"),
    ]:
        with pytest.raises(MillraceError, match=says):
            ask(idle.name, verb, **arguments)
    assert ask(idle.name, "scheduler history", limit=0) == []


def test_a_dry_run_moves_nothing(cluster: ForkedCluster, stream: AuditedStream) -> None:
    version = stream.state.version
    cluster.master.set_scheduler("tstorm", {"gamma": 10.0}, {**QUICK, "dry_run": True})
    stream.until(lambda: times(cluster.master, "tstorm", ADVISED) >= 2)
    advised = decisions(cluster.master, "tstorm", ADVISED)[-1]
    assert advised.moved and advised.expected and not advised.came_of
    assert stream.state.version == version
    assert_all_there(stream)


def test_schedulers_are_swapped_while_it_runs(cluster: ForkedCluster, stream: AuditedStream, tmp_path: Path) -> None:
    master = cluster.master
    spread = slots_of(stream)
    for name, parameters in [("tstorm", {"gamma": 10.0}), ("otd", {}), ("tstorm", {"gamma": 1.0}), ("even", {}),
                             ("otd", {"threshold": 0.0}), ("tstorm", {"gamma": 10.0})]:
        before = times(master, name)
        master.set_scheduler(name, parameters, QUICK)
        stream.until(lambda name=name, before=before: times(master, name) >= before + 3)
        assert not decisions(master, name, FAILED), decisions(master, name, FAILED)
        stream.advance(100)
    stream.until(lambda: any(decision.came_of for decision in decisions(master, "tstorm", ENACTED)))
    assert slots_of(stream) != spread
    assert_all_there(stream)
    master.stop()
    known = {decision.number: decision for decision in master.scheduling.generator.decisions}

    history = History(f"sqlite:///{tmp_path}/history.db", master.name, 3600.0)
    try:
        stored = {row["number"]: Decision.from_json(row) for row in history.decisions(1000)}
        assert stored == known, "the history has every decision and its outcome"
        enacted = [decision for decision in stored.values() if decision.outcome == ENACTED and decision.came_of]
        assert enacted and all(decision.expected["after"] for decision in enacted)
        windows = history.windows(0.0, "audited")
        assert len(windows) >= 6
    finally:
        history.close()


def test_a_strategy_that_a_topology_does_not_allow(cluster: ForkedCluster, tmp_path: Path) -> None:
    """It is refused, or reported once if the topology came after the strategy was chosen."""
    master = cluster.master
    master.set_scheduler("off", {}, {"strategy": "dcr"})
    (tmp_path / "audited").mkdir()
    stream = AuditedStream(master, tmp_path / "audited", rate=RATE, **UNHURRIED)
    stream.advance(100)
    version = stream.state.version
    with pytest.raises(TopologyError, match="'audited' takes no waves, so it cannot be migrated by dcr"):
        master.set_scheduler("tstorm", {"gamma": 10.0}, {**QUICK, "strategy": "dcr"})
    assert master.scheduling.settings()["scheduler"] == "off"
    master.set_scheduler("tstorm", {"gamma": 10.0}, QUICK)
    stream.until(lambda: times(master, "tstorm", OVERTAKEN) >= 2)
    said = [event["text"] for event in list(master.events)]
    warnings = [text for text in said if "plans of scheduler tstorm cannot be carried out" in text]
    assert len(warnings) == 1 and "takes no waves" in warnings[0] and "scheduler set --strategy" in warnings[0]
    assert stream.state.version == version
    master.set_scheduler("tstorm", {"gamma": 10.0}, {"strategy": "nstorm", "strategy_parameters": {
        "supervisor_cycle": 0.1, "worker_cycle": 0.1}})
    stream.until(lambda: bool(decisions(master, "tstorm", ENACTED)) and stream.state.migration is None)
    [record, *_] = [row for row in master.past_migrations("audited") if row["strategy"] == "nstorm"]
    assert (record["outcome"], record["parameters"]) == ("done", {"supervisor_cycle": 0.1, "worker_cycle": 0.1})
    master.set_scheduler("off", {}, {})
    stream.advance(100)
    assert_nothing_lost(stream.finish())


def test_plans_that_would_restart_workers_of_other_topologies_are_reported_once(cluster: ForkedCluster, tmp_path: Path) -> None:
    master = cluster.master
    streams = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        streams.append(AuditedStream(master, tmp_path / name, name, rate=RATE, **UNHURRIED))
    for stream in streams:
        stream.advance(100)
    master.set_scheduler("tstorm", {"gamma": 10.0}, {**QUICK, "strategy": "storm"})
    streams[0].until(lambda: times(master, "tstorm", OVERTAKEN) >= 5)
    warnings = [event["text"] for event in list(master.events) if "plans of scheduler tstorm cannot be" in event["text"]]
    assert warnings and all("would be restarted" in text for text in warnings)
    assert len(warnings) < times(master, "tstorm", OVERTAKEN), "the same reason is not told again and again"
    master.set_scheduler("off", {}, {})
    for stream in streams:
        assert_nothing_lost(stream.finish())


@pytest.mark.parametrize(("scheduler", "parameters", "policy"), [("balance", {"tolerance": 0.05}, {}),
                                                                 ("even", {}, {"balance": True})])
def test_skewed_key_groups_are_balanced_while_it_runs(cluster: ForkedCluster, tmp_path: Path, scheduler: str,
                                                      parameters: dict[str, Any], policy: dict[str, Any]) -> None:
    master = cluster.master
    stream = SkewedStream(master, tmp_path, rate=RATE, zipf=ZIPF, **UNHURRIED)
    before = stream.state.key_groups["count"]
    master.set_scheduler(scheduler, parameters, {**QUICK, **policy})
    stream.until(lambda: stream.state.key_groups["count"] != before)
    master.set_scheduler("off", {}, {})
    stream.until(lambda: stream.state.handover.at_rest)
    moved = [move for row in ask(master.name, "migrations", topology=stream.name) if row["outcome"] == "done"
             for move in row["moved"] if row["cause"].startswith("scheduler: decision ")]
    assert moved and all(move["groups"] and move["task"].startswith("count[") for move in moved)
    enacted = decisions(master, "balance", ENACTED)[0]
    assert enacted.expected["before"]["skew"] > enacted.expected["after"]["skew"]
    stream.advance(100)
    assert stream.state.losses == 0
    assert_all_exact(stream.finish_both())


def test_a_key_that_fills_a_task_is_reported_once() -> None:
    with ForkedCluster(2, settings={"load.period.secs": 1.0, "history.url": "none"}) as cluster:
        master = cluster.master
        cluster.submit(HotPage, name="hot", config={"topology.guarantee": "at-most-once"})
        assert master.wait_until(lambda: bool(master.scheduling.hot_groups.warnings()), SECONDS), master.status()
        first = master.scheduling.sample
        assert master.wait_until(lambda: master.scheduling.sample is not first, SECONDS)
        status = master.status()
        (warning,) = status["warnings"]
        assert warning.startswith("hot: key group ") and "The key 'home' has about " in warning
        events = [event for event in status["events"] if "tasks cannot share a key group" in event["text"]]
        assert [event["level"] for event in events] == ["warning"]
        load = ask(master.name, "load", topology="hot")["topologies"]["hot"]
        assert load["components"]["clicks"]["blocked"] > load["components"]["visits"]["blocked"] == 0.0


def test_a_scheduler_that_moves_everything_each_time_is_not_followed(cluster: ForkedCluster, stream: AuditedStream) -> None:
    version = stream.state.version
    cluster.master.set_scheduler(user("Shuffles"), {}, QUICK)
    stream.until(lambda: times(cluster.master, user("Shuffles")) >= 4)
    assert outcomes(cluster.master, user("Shuffles")) == {NOT_WORTH_IT}
    assert stream.state.version == version
    assert_all_there(stream)


@pytest.mark.parametrize("change", ["ended", "lost", "chosen"])
def test_a_change_during_scheduling_overtakes_the_plan(cluster: ForkedCluster, stream: AuditedStream, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    master, gate = cluster.master, tmp_path / "gate"
    os.mkfifo(gate)
    monkeypatch.setenv("GATE", str(gate))
    (tmp_path / "other").mkdir()
    other = AuditedStream(master, tmp_path / "other", "other", rate=RATE)
    other.advance(50)
    master.set_scheduler(user("Gathers"), {}, QUICK, enact=True)  # whatever the plan gains by chance in a few short windows
    stream.until(lambda: master.scheduling.asking and len(master.scheduling.situation().graphs) == 2)
    before = slots_of(stream)
    if change == "ended":
        master.kill("other", wait=0)
    elif change == "lost":
        cluster.kill(3)
        stream.until(lambda: 3 not in stream.slots())
        before = slots_of(stream)
    else:
        master.set_scheduler("off", {}, {})
    if change == "chosen":  # nothing waits for the gate now
        stream.until(lambda: not master.scheduling.asking)
        assert not decisions(master, user("Gathers"))
    else:
        gate.write_text("go on")
        stream.until(lambda: bool(decisions(master, user("Gathers"))))
        assert decisions(master, user("Gathers"))[0].outcome == OVERTAKEN
    assert slots_of(stream) == before
    assert_all_there(stream)


@pytest.mark.parametrize(("name", "says"), [("ForgetsToReturn", "it must return a Load"), ("FailsToEstimate", "no samples")])
def test_a_users_estimator_that_fails_is_replaced(cluster: ForkedCluster, stream: AuditedStream, name: str,
                                                  says: str) -> None:
    master = cluster.master
    master.set_scheduler("otd", {}, QUICK, user(name))
    stream.until(lambda: times(master, "otd") >= 3)
    warnings = [event["text"] for event in list(master.events) if f"estimator {user(name)} failed" in event["text"]]
    assert len(warnings) == 1 and says in warnings[0]
    assert ask(master.name, "scheduler show")["estimator"]["name"] == "last"
    assert_all_there(stream)


def test_another_scheduler_can_be_set_while_one_hangs(cluster: ForkedCluster, stream: AuditedStream) -> None:
    master = cluster.master
    for name in ("otd", user("Tuned")):
        master.set_scheduler(user("Hangs"), {}, {**QUICK, "time_limit": 1e6})
        stream.until(lambda: master.scheduling.asking)
        master.set_scheduler(name, {}, QUICK)
        stream.until(lambda name=name: times(master, name) >= 1)
    assert not decisions(master, user("Hangs")), "an abandoned request is not a failure"
    assert_all_there(stream)


def test_the_master_ends_while_a_scheduler_hangs(tmp_path: Path) -> None:
    with ForkedCluster(1, settings={"history.url": "none"}) as cluster:
        stream = AuditedStream(cluster.master, tmp_path, rate=RATE)
        cluster.master.set_scheduler(user("Hangs"), {}, {**QUICK, "time_limit": 1e6})
        stream.until(lambda: cluster.master.scheduling.asking)
    assert not (tmp_path / "state").exists(), "history.url is none: nothing is kept"

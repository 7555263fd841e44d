"""Checks of a topology before it runs: weak guarantees, unknown settings, and the state of an earlier run."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from story import Story, graph, said

from millrace import Bolt, CounterState, Grouping, Topology, Tuple
from millrace.config import check_engine_settings, check_topology_config
from millrace.connectors.dataframe_sink import DataFrameSink
from millrace.connectors.sinks import JsonLinesSink
from millrace.control.events import Submitted
from millrace.control.submission import check_begun, check_choice, check_guarantee, check_older, chosen, weak_points
from millrace.errors import MillraceError, TopologyError
from millrace.model.graph import graph_of
from millrace.state.checkpoint import Manifest
from millrace.workloads.wordcount import Count, Lines


class Counter(Bolt):
    counts = CounterState()

    def process(self, tup: Tuple) -> None:
        self.counts[tup.values[0]] += 1


class Mailer(Bolt):
    def process(self, tup: Tuple) -> None: ...


class Sinks(Topology):
    """One of each kind, with nothing that reads them but a file for dead letters."""

    lines = Lines.spec(par=1)
    passing = Count.spec(inputs={lines: Grouping.fields("line")})
    counter = Counter.spec(inputs={lines: Grouping.fields("line")})
    table = DataFrameSink.spec(inputs=[lines], config={"schema": "line string", "write": "m:f"})
    file = JsonLinesSink.spec(inputs=[lines])
    mailer = Mailer.spec(inputs=[lines])
    letters = JsonLinesSink.spec(inputs=[mailer.dead_letters])


def test_only_a_bolt_that_may_write_to_other_systems_is_reported() -> None:
    [warning] = weak_points(graph_of(Sinks, config={"topology.guarantee": "exactly-once"}))
    assert warning.startswith("exactly-once does not cover writes of mailer to other systems")
    assert weak_points(graph_of(Sinks)) == []


def test_exactly_once_needs_a_replayable_spout() -> None:
    made = graph(**{"topology.guarantee": "exactly-once"})
    stuck = replace(made, components=(replace(made.components[0], movable=False), *made.components[1:]))
    with pytest.raises(TopologyError, match=r"asks for exactly-once, and lines cannot .*, or set topology.guarantee to"):
        check_guarantee(stuck)
    with pytest.raises(TopologyError, match=r"runs in batches, .* or run it on the resident engine"):
        check_guarantee(replace(stuck, batched=True))


@pytest.mark.parametrize(("settings", "says"), [
    ({"checkpoint.stroe": "/tmp"}, "checkpoint.stroe: not a setting of the engine; did you mean checkpoint.store"),
    ({"nonsense": 1}, "nonsense: not a setting of the engine; the settings are worker.heartbeat.*docs/settings.md"),
    ({"checkpoint.store": 7}, "checkpoint.store = 7 must be a non-empty string"),
    ({"worker.lease.secs": "long"}, "must be a number"),
    ({"topology.guarantee": "exactly-once"}, "a setting of a topology, not of the engine.*--set.*config"),
    ({"tap.rows": 5}, "a setting of a topology"),
    ({7: 1}, "7: not a setting of the engine"),
])
def test_unknown_engine_settings_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(MillraceError, match=says):
        check_engine_settings(settings)


@pytest.mark.parametrize(("config", "says"), [
    ({"topology.gurantee": "exactly-once"}, "topology.gurantee: there is no such setting; did you mean topology.guarantee"),
    ({"topology.zzz": 1}, "there is no such setting. All are in"),
    ({"checkpoint.store": "/tmp"}, "a setting of the engine, not of a topology.*--set.*settings="),
])
def test_unknown_topology_settings_are_refused(config: dict[str, object], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        check_topology_config(config)
    [warned] = [text for text in said(Story(1).on(Submitted(graph(**config)))) if "setting" in text]
    assert warned.startswith(next(iter(config)))


def test_user_settings_are_accepted() -> None:
    mine = {"path": "/tmp", "worker.of.mine": 1, "topology.debug": True, "tap.rows": 5, "topology.workers": 1}
    check_topology_config(mine)
    assert [text for text in said(Story(1).on(Submitted(graph(**mine)))) if "setting" in text] == [
        "worker.of.mine: there is no such setting. All are in docs/settings.md"]


AT = datetime(2026, 3, 1, 12, 30).timestamp()  # local time, as in messages


def manifest(wave: int, at: float = AT, offsets: str = "") -> Manifest:
    return Manifest("words", wave, 5, 128, {"count": 2}, [], at, offsets=offsets)


@pytest.mark.parametrize(("latest", "says"), [
    (manifest(7), "/store has checkpoints of 'words', the last of wave 7, made 2026-03-01 12:30:00. Choose "),
    (manifest(7, at=0.0), "the last of wave 7. Choose "),
    (manifest(7, offsets="1699"), "the last of wave 7, made "),  # a run fed by DataFrames
    (manifest(7, offsets="4-0"), "the last of batch 6 (wave 7), made "),
    (manifest(7, offsets="4-5"), "the last of batch 1 (wave 7), made "),
])
def test_an_earlier_run_needs_a_choice_of_resume_or_fresh(latest: Manifest, says: str) -> None:
    with pytest.raises(TopologyError) as refused:
        check_choice(None, latest, "/store")
    assert says in str(refused.value)
    assert "Choose --resume (resume=True) to continue from there, or --fresh (resume=False) to start over" in str(refused.value)


@pytest.mark.parametrize(("latest", "choice"), [(None, None), (manifest(0), None), (manifest(7), True)])
def test_auto_resumes_what_there_is(latest: Manifest | None, choice: bool | None) -> None:
    """A supervisor restarts with the same command before the first wave and after it."""
    assert chosen("auto", latest) is choice
    check_choice(chosen("auto", latest), latest, "/store")
    assert [chosen(resume, latest) for resume in (True, False, None)] == [True, False, None]


@pytest.mark.parametrize("resume", [True, False])
def test_an_explicit_choice_is_accepted(resume: bool) -> None:
    check_choice(resume, manifest(7), "/store")


@pytest.mark.parametrize("resume", [True, None])
def test_a_fresh_run_that_committed_nothing_needs_another_choice(resume: bool | None) -> None:
    with pytest.raises(TopologyError) as refused:
        check_begun(resume, manifest(7), AT, "/store")
    assert "started with --fresh, at 2026-03-01 12:30:00" in str(refused.value)
    assert ("Choose --resume older (resume='older') to continue with that one, or --fresh (resume=False) to start over again"
            in str(refused.value))
    for choice in ("older", False):
        check_begun(choice, manifest(7), AT, "/store")


def test_without_an_older_run_there_is_no_way_back() -> None:
    check_older(None, "/store")  # refused for want of any checkpoint
    with pytest.raises(TopologyError, match=r"'words' has no older run to go back to: .* /store has its last run, up to wave "
                                            r"7, made 2026-03-01 12:30:00\. Choose --resume \(resume=True\)"):
        check_older(manifest(7), "/store")


def test_without_an_earlier_run_no_choice_is_needed() -> None:
    check_choice(None, None, "/store")
    check_choice(None, manifest(0), "/store")  # an epoch that committed no wave

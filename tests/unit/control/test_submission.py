"""What is found wrong, or weak, in a topology before anything of it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from story import Story, graph, said

from millrace import Bolt, CounterState, Grouping, Topology, Tuple
from millrace.config import check_engine_settings, check_topology_config
from millrace.connectors.frame_sink import DataFrameSink
from millrace.connectors.sinks import JsonLinesSink
from millrace.control.events import Submitted
from millrace.control.submission import check_guarantee, weak_points
from millrace.errors import MillraceError, TopologyError
from millrace.model.graph import graph_of
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


def test_only_what_can_be_there_for_nothing_else_is_said_to_write_outside() -> None:
    [said] = weak_points(graph_of(Sinks, config={"topology.guarantee": "exactly-once"}))
    assert said.startswith("exactly-once does not cover what mailer may write to other systems")
    assert weak_points(graph_of(Sinks)) == []


def test_a_spout_that_cannot_be_read_again() -> None:
    made = graph(**{"topology.guarantee": "exactly-once"})
    stuck = replace(made, components=(replace(made.components[0], movable=False), *made.components[1:]))
    with pytest.raises(TopologyError, match=r"asks for exactly-once, and lines cannot .*, or set topology.guarantee to"):
        check_guarantee(stuck)
    with pytest.raises(TopologyError, match=r"runs in batches, .* or run it on the resident engine"):
        check_guarantee(replace(stuck, batched=True))


@pytest.mark.parametrize(("settings", "says"), [
    ({"checkpoint.stroe": "/tmp"}, "checkpoint.stroe: not a setting of the engine; did you mean checkpoint.store"),
    ({"nonsense": 1}, "nonsense: not a setting of the engine; the settings are worker.heartbeat.*docs/settings.md"),
    ({"checkpoint.store": 7}, "checkpoint.store = 7 must be a non-empty text"),
    ({"worker.lease.secs": "long"}, "must be a number"),
    ({"topology.guarantee": "exactly-once"}, "a setting of a topology, not of the engine.*--set.*config"),
    ({"tap.rows": 5}, "a setting of a topology"),
    ({7: 1}, "7: not a setting of the engine"),
])
def test_settings_that_no_engine_has(settings: dict[str, object], says: str) -> None:
    with pytest.raises(MillraceError, match=says):
        check_engine_settings(settings)


@pytest.mark.parametrize(("config", "says"), [
    ({"topology.gurantee": "exactly-once"}, "topology.gurantee: there is no such setting; did you mean topology.guarantee"),
    ({"topology.zzz": 1}, "there is no such setting. All are in"),
    ({"checkpoint.store": "/tmp"}, "a setting of the engine, not of a topology.*--set.*settings="),
])
def test_config_that_would_be_passed_over(config: dict[str, object], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        check_topology_config(config)
    [warned] = [text for text in said(Story(1).on(Submitted(graph(**config)))) if "setting" in text]
    assert warned.startswith(next(iter(config)))


def test_config_that_is_the_users_own() -> None:
    mine = {"path": "/tmp", "task.of.mine": 1, "topology.debug": True, "tap.rows": 5, "topology.workers": 1}
    check_topology_config(mine)
    assert [text for text in said(Story(1).on(Submitted(graph(**mine)))) if "setting" in text] == [
        "task.of.mine: there is no such setting. All are in docs/settings.md"]

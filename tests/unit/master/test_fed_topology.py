"""The master's port for the queries that feed a topology, tested with a state machine and no master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.control.events import Event, Killed, Say, Submitted, WaveRequested, WorkerJoined
from millrace.control.master_state import MasterState
from millrace.errors import UnknownTopology
from millrace.master.feeding import FedTopology
from millrace.master.load.observed import TopologyObserved
from millrace.model.cluster import Node
from millrace.model.graph import ComponentDef, StreamDef, TopologyGraph
from millrace.runtime.wire.transport import Keys

ROWS = ComponentDef("rows", "spout", "m:C", 1, {}, (StreamDef("default", ("row",)),), (), False, "next_tuple", dataframe=True)
LINES = ComponentDef("lines", "spout", "m:C", 1, {}, (StreamDef("default", ("line",)),), (), False, "next_tuple")
AT_MOST_ONCE = {"topology.guarantee": "at-most-once"}
EXACTLY_ONCE = {"topology.guarantee": "exactly-once"}


class FakePort:
    """A master that runs work at once, if it is to wait for it, or when `run_later` is called."""

    settings: dict[str, Any] = {}
    endpoint = "tcp://127.0.0.1:1"
    keys = Keys("public", "secret")

    def __init__(self) -> None:
        self.state, self.observed = MasterState(), dict[str, TopologyObserved]()
        self.said, self.told = list[Say](), list[Event]()
        self.delays: dict[str, Callable[[Killed], None]] = {}
        self._later: list[Callable[[], Any]] = []
        self.state.handle(WorkerJoined(0, 1, Node("host", 4, 1000.0, 4096), "boot", "e", "ipc 0", ""))

    def submit(self, name: str, *components: ComponentDef, config: dict[str, Any] = AT_MOST_ONCE, offsets: str = "") -> None:
        graph = TopologyGraph(name, components, config)
        self.state.handle(Submitted(graph, offsets=offsets))
        self.observed[name] = TopologyObserved(graph, 0.0)

    def call(self, work: Callable[[], Any]) -> Any:
        return work()

    def later(self, work: Callable[[], Any]) -> None:
        self._later.append(work)

    def run_later(self) -> None:
        todo, self._later = self._later, []
        for work in todo:
            work()

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        return condition()

    def tell(self, event: Event) -> None:
        self.told.append(event)
        self.state.handle(event)

    def say(self, message: Say) -> None:
        self.said.append(message)

    def delay_kill(self, topology: str, hook: Callable[[Killed], None]) -> None:
        self.delays[topology] = hook


@pytest.fixture
def port() -> FakePort:
    return FakePort()


def test_an_error_is_reported_and_recorded(port: FakePort) -> None:
    port.submit("words", ROWS)
    FedTopology("words", port).report_error("rows", "it broke")
    assert port.said == [], "it may be called on any thread"
    port.run_later()
    assert port.said == [Say("it broke", "words", "error")]
    assert port.observed["words"].errors == [{"topology": "words", "task": "rows", "error": "it broke", "traceback": ""}]


def test_an_error_after_the_end_is_reported_only(port: FakePort) -> None:
    FedTopology("words", port).report_error("rows", "it broke")
    port.run_later()
    assert [message.text for message in port.said] == ["it broke"]


def test_a_delayed_kill_gives_the_tuples_in_flight_their_whole_time(port: FakePort) -> None:
    port.submit("words", ROWS)
    fed, asked = FedTopology("words", port), list[Killed]()
    fed.delay_kill(asked.append)
    port.delays["words"](Killed("words", 3.0, now=-1000.0))
    fed.kill(asked[0])
    port.run_later()
    [killed] = port.told
    assert isinstance(killed, Killed) and (killed.name, killed.wait) == ("words", 3.0) and killed.now >= 0


def test_a_topology_that_has_ended_is_not_killed_again(port: FakePort) -> None:
    FedTopology("words", port).kill(Killed("words", 3.0, 0.0))
    port.run_later()
    assert port.told == []


def test_spouts_of_all_topologies_are_counted_if_they_are_fed(port: FakePort) -> None:
    fed = FedTopology("words", port)
    assert fed.fed_spouts() == 0
    port.submit("words", ROWS, LINES)
    port.submit("more", ROWS)
    assert fed.fed_spouts() == 2


def test_a_wave_is_requested_and_awaited(port: FakePort) -> None:
    port.submit("words", ROWS, config=EXACTLY_ONCE, offsets="run 1")
    fed, waves = FedTopology("words", port), port.state.topology("words").waves
    assert waves is not None and (fed.offsets(), fed.committed_offsets()) == ("run 1", "")
    waves.wave = 6
    before = fed.roll_backs()
    assert fed.request_wave() == 6 and port.told == [WaveRequested("words")]
    assert not fed.wait_for_wave(7, before, 0.0)
    assert fed.wait_for_wave(7, before - 1, 0.0), "tasks were rolled back meanwhile"
    waves.committed = 7
    assert fed.wait_for_wave(7, before, 0.0)


def test_a_topology_that_has_ended_takes_no_wave(port: FakePort) -> None:
    fed = FedTopology("words", port)
    assert fed.committed_offsets() == ""
    with pytest.raises(UnknownTopology):
        fed.request_wave()

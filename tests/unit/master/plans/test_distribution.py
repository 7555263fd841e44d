"""Distribution of plans, with a master and agents that record their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.config import EMBEDDED
from millrace.control.assignment import Assignment
from millrace.control.events import Distribute, Say, WorkerJoined
from millrace.control.master_state import MasterState
from millrace.errors import NotTheAuthor, StoreUnreachable
from millrace.master.load.cluster_links import ClusterLinks
from millrace.master.plans.distribution import PlanDistribution
from millrace.model.cluster import Node
from millrace.runtime.wire import messages as wire


class FakePort:
    """The master's port and the agents."""

    def __init__(self) -> None:
        self.author = 0
        self.texts: list[str] = []
        self.gave_way: list[str] = []
        self.sent: list[tuple[int, wire.Agency]] = []
        self.polls = 0.0, 0.0

    def call(self, work: Callable[[], Any]) -> Any:
        return work()

    def say(self, message: Say) -> None:
        self.texts.append(message.text)

    def give_way(self, error: NotTheAuthor) -> None:
        self.gave_way.append(str(error))

    def send_to_agent(self, slot: int, agency: wire.Agency) -> None:
        self.sent.append((slot, agency))


@pytest.fixture
def recorder() -> FakePort:
    return FakePort()


@pytest.fixture
def distribution(recorder: FakePort) -> Iterator[PlanDistribution]:
    state = MasterState()
    state.agents = {"n0": 0, "n1": 3}
    made = PlanDistribution(EMBEDDED, "cluster", b"secret", state, recorder, recorder, ClusterLinks({}), lambda: recorder.polls)
    recorder.author = made.publisher.claim()
    yield made
    made.publisher.close()


def plan(author: int) -> Distribute:
    whole = Assignment(2, author=author)
    return Distribute(whole, {"n0": whole})


def part(author: int) -> bytes:
    return wire.encode(Assignment(2, author=author))


def test_every_agent_gets_the_part_of_its_node(distribution: PlanDistribution, recorder: FakePort) -> None:
    author = recorder.author
    distribution.distribute(plan(author))
    assert recorder.sent == [(0, wire.Agency(True, author, 2, part(author))), (3, wire.Agency(True, author, 2, b""))]


def test_an_agent_that_asks_gets_a_newer_plan_only(distribution: PlanDistribution, recorder: FakePort) -> None:
    author = recorder.author
    distribution.distribute(plan(author))
    assert distribution.answer("n0", wire.Fetch(0, 1, author, 1)) == wire.Agency(True, author, 2, part(author))
    assert distribution.answer("n0", wire.Fetch(0, 1, author, 2)) == wire.Agency(True, 0, 0, b"")


def test_another_worker_of_the_node_is_told_that_it_is_not_the_agent(distribution: PlanDistribution,
                                                                     recorder: FakePort) -> None:
    distribution.distribute(plan(recorder.author))
    assert distribution.answer("n0", wire.Fetch(1, 1, 0, 0)) == wire.Agency(False, 0, 0, b"")


def test_new_periods_of_polls_are_told_to_all_workers_at_once_and_to_those_that_ask_later(distribution: PlanDistribution,
                                                                                          recorder: FakePort) -> None:
    for slot in (0, 1):
        distribution._state.handle(WorkerJoined(slot, 1, Node("n0", 4, 1000.0, 4096), "boot", "e", "ipc", ""))
    distribution.tick()
    assert recorder.sent == []
    recorder.polls = 5.0, 2.0
    distribution.tick()
    distribution.tick()
    assert recorder.sent == [(0, wire.Agency(True, agent_poll=5.0, worker_poll=2.0)),
                             (1, wire.Agency(False, agent_poll=5.0, worker_poll=2.0))]
    assert distribution.answer("n0", wire.Fetch(1, 1, 0, 0)) == wire.Agency(False, agent_poll=5.0, worker_poll=2.0)


def test_trouble_with_the_store_is_reported(distribution: PlanDistribution, recorder: FakePort) -> None:
    distribution._failed(StoreUnreachable("it is away"))
    distribution._failed(None)
    assert recorder.texts == ["new plans cannot be published; tasks keep running under the current plan: it is away",
                              "the coordination store is available again: the newest plan is written"]
    assert recorder.gave_way == []


def test_another_author_ends_this_master(distribution: PlanDistribution, recorder: FakePort) -> None:
    distribution._failed(NotTheAuthor("author 8 has taken over"))
    assert recorder.gave_way == ["author 8 has taken over"] and recorder.texts == []

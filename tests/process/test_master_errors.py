"""Unexpected errors on the master's thread: logged with a traceback, shown to users, and the end of what they concern."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.config import CHECKPOINTS, HISTORY
from millrace.control.events import Event, ManifestStored, MoveArmed, MoveTaken, Rescaled, Say, Ticked
from millrace.control.scheduling.capacity import Shortage
from millrace.errors import NoRoom
from millrace.master.service import Master
from millrace.model.graph import graph_of
from millrace.workloads.audit import StatefulWordCount
from support.topologies.audited import SECONDS

NAMES = ["first", "second"]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    """A master with two topologies, which wait for workers."""
    master = Master("errors", settings={HISTORY.key: "none", CHECKPOINTS.key: str(tmp_path / "store")})
    master.start()
    try:
        for name in NAMES:
            master.submit(graph_of(StatefulWordCount, name, {"path": str(tmp_path)}))
        yield master
    finally:
        master.stop()


def fail(*arguments: Any) -> None:
    raise ZeroDivisionError("a defect")


def errors(master: Master) -> list[tuple[str, str]]:
    return [(event["topology"], event["text"]) for event in list(master.events) if event["level"] == "error"]


def failures(master: Master) -> dict[str, str]:
    return {name: ended.failure for name, ended in master.ended.items() if ended.failure}


def topologies(master: Master) -> list[str]:
    return sorted(master.state.topologies)


def test_an_error_in_work_that_nobody_waits_for_ends_all_topologies(master: Master, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "millrace.master"):
        master.later(fail)
        assert master.wait_until(lambda: not master.state.topologies, SECONDS)
    assert "Traceback" in caplog.text and "ZeroDivisionError: a defect" in caplog.text
    found = failures(master)
    assert sorted(found) == NAMES
    assert found["first"].startswith("first: ended by an unexpected error of the master: ZeroDivisionError: a defect")
    assert [topology for topology, _ in errors(master)] == ["", *NAMES]


def test_a_scale_that_finds_no_room_is_refused_and_asks_for_workers(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = master.state.handle

    def full(event: Event, now: float) -> Any:
        if isinstance(event, Rescaled):
            raise NoRoom("no slot has room")
        return handle(event, now)

    monkeypatch.setattr(master.state, "handle", full)
    with pytest.raises(NoRoom, match="no slot has room"):
        master.rescale("first", {"count": 9})
    shortage = master.call(lambda: master.capacity._unplaced(time.monotonic()))
    assert shortage == Shortage(1, "no slot has room") and topologies(master) == NAMES


def fail_at(master: Master, monkeypatch: pytest.MonkeyPatch, *kinds: type[Event]) -> None:
    """Make the master fail at events of these kinds while it has topologies."""
    handle = master.state.handle

    def fails(event: Event, now: float) -> Any:
        return fail() if isinstance(event, kinds) and master.state.topologies else handle(event, now)

    monkeypatch.setattr(master.state, "handle", fails)


@pytest.mark.parametrize("about", [lambda number: ManifestStored("second", 1, 1, ""),
                                   lambda number: MoveArmed(number, 0, 1, 0),
                                   lambda number: MoveTaken(number, 0, 1)], ids=["manifest", "armed", "taken"])
def test_an_error_in_a_decision_about_one_topology_ends_only_that(master: Master, monkeypatch: pytest.MonkeyPatch,
                                                                  about: Callable[[int], Event]) -> None:
    event = about(master.state.topologies["second"].number)
    fail_at(master, monkeypatch, type(event))
    master.call(lambda: master.tell(event))
    assert topologies(master) == ["first"] and list(failures(master)) == ["second"]
    assert "ZeroDivisionError: a defect" in failures(master)["second"]
    assert [topology for topology, _ in errors(master)] == ["second"]


def test_an_error_in_a_tick_ends_all_topologies(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(master, monkeypatch, Ticked)
    assert master.wait_until(lambda: not master.state.topologies, SECONDS)
    assert sorted(failures(master)) == NAMES


def test_the_thread_outlives_an_error_that_is_no_exception(master: Master) -> None:
    def leave() -> None:
        raise SystemExit("no such thing")

    master.later(leave)
    assert master.wait_until(lambda: not master.state.topologies, SECONDS)
    assert "SystemExit: no such thing" in failures(master)["first"]


def test_an_error_in_measuring_ends_no_topology_and_is_reported_once(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[float] = []

    def tick(now: float) -> None:
        ticks.append(now)
        fail()

    looks: list[float] = []  # of the control of workers, which goes on
    monkeypatch.setattr(master.capacity, "tick", looks.append)
    monkeypatch.setattr(master.scheduling, "tick", tick)
    assert master.wait_until(lambda: len(ticks) >= 2, SECONDS), "it is tried again"
    assert len(looks) > len(ticks)
    assert len(errors(master)) == 1 and topologies(master) == NAMES and not failures(master)


def test_a_listener_that_fails_hears_no_more(master: Master) -> None:
    heard: list[Say] = []
    master.events.listeners += [fail, heard.append]
    for text in ("one", "two"):
        master.call(lambda text=text: master.say(Say(text)))
    assert [message.text for message in heard] == ["one", "two"]
    assert fail not in master.events.listeners and topologies(master) == NAMES


def test_callers_get_the_errors_of_what_they_asked_for(master: Master) -> None:
    with pytest.raises(ZeroDivisionError):
        master.call(fail)
    assert topologies(master) == NAMES

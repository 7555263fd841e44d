"""Attempts to start a topology on a checkpoint store: what is refused, and what an attempt that came to nothing leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millrace.control.events import Event, Say
from millrace.control.submission import Resume
from millrace.errors import NotTheAuthor, TopologyError
from millrace.master.checkpoints import checkpointing
from millrace.master.checkpoints.checkpointing import Checkpointing, StartAttempt
from millrace.model.graph import TopologyGraph, graph_of
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.author import Author
from millrace.state.checkpoint import Manifest
from millrace.testing.local_cluster import MemoryStore
from millrace.workloads.audit import StatefulWordCount

LIMIT_SECONDS = 60.0
STATELESS = TopologyGraph("plain", (), {})
EARLIER = Author("earlier", 7)


class SilentPort:
    """A master that has nothing to do: no topology runs."""

    def later(self, work: Callable[[], Any]) -> None:
        work()

    def tell(self, event: Event) -> None: ...

    def say(self, message: Say) -> None: ...

    def give_way(self, error: NotTheAuthor) -> None:
        raise error


@pytest.mark.parametrize(("resume", "option"), [(True, "--resume"), ("older", "--resume older")])
def test_a_topology_without_state_has_nothing_to_resume(resume: Resume, option: str) -> None:
    calls = Checkpointing("/nowhere", (), SilentPort(), LIMIT_SECONDS)
    with pytest.raises(TopologyError, match=rf"'plain' keeps no state.* nothing to resume\. Start it without {option}$"):
        calls.attempt(STATELESS, resume)
    calls.close()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A store with a checkpoint of an earlier run."""
    store = MemoryStore()
    Checkpoints(store, "words").enter(Manifest("words", 3, 7, 128, {}, [], 0.0))
    store.blobs["words/author"] = EARLIER.encode()
    monkeypatch.setattr(checkpointing, "open_store", lambda place: store)
    return store


def until_idle(calls: Checkpointing) -> None:
    calls._thread.ask("wait", lambda: None).result(LIMIT_SECONDS)


def begun(calls: Checkpointing, running: list[str]) -> StartAttempt:
    """A fresh start that was taken over and submitted."""
    attempt = calls.attempt(graph_of(StatefulWordCount, "words", {"path": "/nowhere"}), resume=False)
    calls.take_over(attempt)
    running.append("words")
    return attempt


def test_a_start_that_fails_while_the_topology_runs_is_given_back_at_its_end(store: MemoryStore) -> None:
    running: list[str] = []
    calls = Checkpointing("/nowhere", running, SilentPort(), LIMIT_SECONDS)
    before = dict(store.blobs)
    begun(calls, running)
    calls.start_failed("words")
    until_idle(calls)
    assert Author.decode(store.blobs["words/author"]).fresh, "it may still write"
    running.clear()
    calls.ended("words")
    until_idle(calls)
    assert store.blobs == before and calls._locks == {}
    calls.close()


def test_it_is_given_back_if_the_master_stops_before_its_end(store: MemoryStore) -> None:
    running: list[str] = []
    calls = Checkpointing("/nowhere", running, SilentPort(), LIMIT_SECONDS)
    before = dict(store.blobs)
    begun(calls, running)
    calls.start_failed("words")
    calls.close()
    assert store.blobs == before


def test_a_run_that_has_written_a_manifest_is_not_given_back(store: MemoryStore) -> None:
    """Else its author would be lost, and --resume would take its checkpoint for one of the earlier run."""
    running: list[str] = []
    calls = Checkpointing("/nowhere", running, SilentPort(), LIMIT_SECONDS)
    begun(calls, running)
    author = calls.author("words")
    calls.store(Manifest("words", 0, author.epoch + 1, 128, {}, [], 0.0), claim=True)
    calls.start_failed("words")
    running.clear()
    calls.ended("words")
    until_idle(calls)
    assert Author.decode(store.blobs["words/author"]) == author and calls._locks == {}
    calls.close()


def test_the_end_of_a_topology_that_started_gives_nothing_back(store: MemoryStore) -> None:
    running: list[str] = []
    calls = Checkpointing("/nowhere", running, SilentPort(), LIMIT_SECONDS)
    begun(calls, running)
    author = calls.author("words")
    running.clear()
    calls.ended("words")
    until_idle(calls)
    assert Author.decode(store.blobs["words/author"]) == author and calls._locks == {}
    calls.close()


def test_an_attempt_that_is_undone_late_leaves_the_next_one_its_lock(store: MemoryStore) -> None:
    running: list[str] = []
    calls = Checkpointing("/nowhere", running, SilentPort(), LIMIT_SECONDS)
    first = begun(calls, running)
    running.clear()
    calls.ended("words")
    begun(calls, running)
    author = calls.author("words")
    running.clear()
    calls.refused(first)
    until_idle(calls)
    assert calls.author("words") == author == Author.decode(store.blobs["words/author"])
    calls.close()

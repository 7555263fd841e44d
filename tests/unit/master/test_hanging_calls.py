"""The master's calls of a checkpoint store that hangs until the test releases it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from millrace.control.events import Event, ManifestStored, Say
from millrace.errors import NotTheAuthor, StoreUnreachable, TopologyError
from millrace.master.checkpoints import checkpointing
from millrace.master.checkpoints.checkpointing import Checkpointing, StartAttempt
from millrace.master.checkpoints.store_calls import StoreCalls
from millrace.model.graph import TopologyGraph, graph_of
from millrace.runtime.checkpoints.trial import join_trial
from millrace.state.author import Author
from millrace.state.checkpoint import Manifest
from millrace.testing.local_cluster import MemoryStore
from millrace.workloads.audit import StatefulWordCount

LIMIT_SECONDS = 60.0
PLACE = "redis://store:6379"


class HangingStore(MemoryStore):
    """Every call waits for `released`; if `hangs` is "write", only those that write."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.released, self.reached_hanging = threading.Event(), threading.Event(), threading.Event()
        self.written: list[str] = []
        self.hangs = "read"
        self._writing = False

    def _check(self) -> None:
        self.reached.set()
        if self.hangs == "read" or self._writing:
            if not self.released.is_set():
                self.reached_hanging.set()
            assert self.released.wait(LIMIT_SECONDS)

    def write(self, name: str, parts: Any) -> None:
        self._writing = True
        super().write(name, parts)
        self._writing = False
        self.written.append(name)


class FakePort:
    """The master: its thread is the test's, so `later` only keeps the work."""

    def __init__(self) -> None:
        self.said: list[Say] = []
        self.told: list[Event] = []
        self.work: list[Callable[[], Any]] = []

    def later(self, work: Callable[[], Any]) -> None:
        self.work.append(work)

    def tell(self, event: Event) -> None:
        self.told.append(event)

    def say(self, message: Say) -> None:
        self.said.append(message)

    def give_way(self, error: NotTheAuthor) -> None:
        raise error


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingStore]:
    store = HangingStore()
    monkeypatch.setattr(checkpointing, "open_store", lambda place: store)
    monkeypatch.setattr(checkpointing, "CLOSE_SECONDS", 0.05)
    yield store
    store.released.set()


def manifest(wave: int) -> Manifest:
    return Manifest("words", wave, 1, 128, {}, [], 0.0)


def graph() -> TopologyGraph:
    return graph_of(StatefulWordCount, "words", {"path": "/nowhere"})


def until_idle(calls: Checkpointing) -> None:
    calls._thread.ask("wait", lambda: None).result(LIMIT_SECONDS)


def test_a_call_that_hangs_is_told_once_and_its_end_too(store: HangingStore) -> None:
    port = FakePort()
    calls = Checkpointing(PLACE, (), port, timeout=0.0)
    calls.store(manifest(1), claim=False)
    assert store.reached.wait(LIMIT_SECONDS)
    calls.tick(0.0)
    calls.tick(1.0)
    assert calls.alarm == f"the checkpoint store {PLACE} has not answered for 0 s (pending call: manifest of 'words')"
    assert port.said == [Say(calls.alarm, level="error")]
    store.released.set()
    until_idle(calls)
    calls._timeout = LIMIT_SECONDS
    calls.tick(2.0)
    assert calls.alarm == "" and port.said[1:] == [Say(f"the checkpoint store {PLACE} answers again")]
    calls.close()


def test_only_the_newest_manifest_waits(store: HangingStore) -> None:
    port = FakePort()
    calls = Checkpointing(PLACE, (), port, LIMIT_SECONDS)
    calls.store(manifest(1), claim=False)
    assert store.reached.wait(LIMIT_SECONDS)
    for wave in range(2, 50):
        calls.store(manifest(wave), claim=False)
    store.released.set()
    until_idle(calls)
    for work in port.work:
        work()
    assert [event.wave for event in port.told if isinstance(event, ManifestStored)] == [1, 49]
    calls.close()


def test_a_trial_that_ctrl_c_breaks_off_leaves_no_mark(store: HangingStore) -> None:
    store.released.set()
    calls = Checkpointing(PLACE, (), FakePort(), LIMIT_SECONDS)

    def joined_without_answer(token: str) -> Future[dict[int, str]]:
        assert join_trial(store, token, "0") == ""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calls.try_store(joined_without_answer, str)
    assert len(store.written) == 2 and store.names("") == []
    calls.close()


def test_a_submission_is_refused_after_the_timeout_and_leaves_no_lock(store: HangingStore) -> None:
    calls = Checkpointing(PLACE, (), FakePort(), timeout=0.05)
    with pytest.raises(StoreUnreachable, match=r"\(pending call: search for checkpoints of 'words'\)\. Start"):
        calls.attempt(graph(), resume=None)
    store.released.set()
    until_idle(calls)
    assert calls._locks == {}
    calls.close()


@pytest.mark.parametrize("earlier", [None, Author("earlier", 7)], ids=["the first run", "an earlier run"])
@pytest.mark.parametrize("hangs", ["read", "write"])
def test_a_topology_is_not_taken_over_after_the_timeout(store: HangingStore, hangs: str, earlier: Author | None) -> None:
    """The store answers only when the user has been told that the start failed."""
    if earlier is not None:
        store.blobs["words/author"] = earlier.encode()
    before = dict(store.blobs)
    store.released.set()
    calls = Checkpointing(PLACE, (), FakePort(), LIMIT_SECONDS)
    attempt = calls.attempt(graph(), resume=False)
    store.hangs = hangs
    store.released.clear()
    calls._timeout = 0.05
    with pytest.raises(StoreUnreachable, match=r"pending call: takeover of 'words'\)\. Start"):
        calls.take_over(attempt)
    assert store.reached_hanging.wait(LIMIT_SECONDS)
    calls.refused(attempt)
    store.released.set()
    until_idle(calls)
    assert store.blobs == before and calls._locks == {} and calls._authors == {}
    if hangs == "read":
        assert store.written == [], "not even for a moment"
    calls.close()


def test_an_attempt_that_is_refused_leaves_another_one_alone(store: HangingStore) -> None:
    store.released.set()
    calls = Checkpointing(PLACE, (), FakePort(), LIMIT_SECONDS)
    first = calls.attempt(graph(), resume=None)
    second = StartAttempt(graph(), None)
    with pytest.raises(TopologyError, match="'words' is running already"):
        calls._look_for(second)
    calls.refused(second)
    until_idle(calls)
    event = calls.take_over(first)
    assert event.after[0] == calls.author("words").epoch
    calls.close()


def test_a_takeover_is_undone_though_the_master_stops(store: HangingStore) -> None:
    """The store hangs at first, so that the master stops before it could be undone."""
    store.blobs["words/author"] = Author("earlier", 7).encode()
    before = dict(store.blobs)
    store.released.set()
    calls = Checkpointing(PLACE, (), FakePort(), LIMIT_SECONDS)
    attempt = calls.attempt(graph(), resume=False)
    calls.take_over(attempt)
    store.released.clear()
    calls.collect("words", 1)
    assert store.reached_hanging.wait(LIMIT_SECONDS)
    calls.refused(attempt)
    calls.close()
    store.released.set()
    assert calls._thread.close(LIMIT_SECONDS)
    assert store.blobs == before


def test_closing_does_not_wait_for_it(store: HangingStore) -> None:
    calls = Checkpointing(PLACE, (), FakePort(), LIMIT_SECONDS)
    calls.store(manifest(1), claim=False)
    assert store.reached.wait(LIMIT_SECONDS)
    calls.close()
    assert store.written == []


def test_calls_that_have_not_begun_are_cancelled_by_the_end() -> None:
    calls, released, begun = StoreCalls(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        assert released.wait(LIMIT_SECONDS)

    calls.submit("hang", hang)
    queued = calls.ask("never", lambda: None)
    assert begun.wait(LIMIT_SECONDS)
    assert not calls.close(0.0)
    released.set()
    assert calls.close(LIMIT_SECONDS)
    assert queued.cancelled()


class StuckLock:
    def close(self) -> None:
        raise OSError("the lock's server is away")


def test_an_error_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    calls = Checkpointing(PLACE, (), FakePort(), LIMIT_SECONDS)
    calls._locks["words"] = StuckLock()
    calls.ended("words")
    until_idle(calls)
    [record] = caplog.records
    assert record.getMessage() == "a call of the checkpoint store failed (release of the lock of 'words')"
    assert record.exc_info is not None and str(record.exc_info[1]) == "the lock's server is away"
    calls.close()

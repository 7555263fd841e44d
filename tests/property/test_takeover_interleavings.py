"""A driver is overtaken while it commits: every interleaving of the two, on stores that compare and write in one step and on
those that do not. Every later driver continues from what the first has published, and none from what a later one discarded."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest

from millrace.errors import NotTheAuthor
from millrace.model.graph import TopologyGraph
from millrace.runtime.checkpoints.resumption import StartOnStore
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import Manifest
from millrace.testing.local_cluster import MemoryStore

GRAPH = TopologyGraph("t", (), {})
LAST = 3  # operations of a commit that decide: look at the author, write, look again; the checks before them only read


class ComparingStore(MemoryStore):
    """A store that compares and writes in one step."""

    def write_if(self, name: str, parts: Sequence[bytes | memoryview], guard: str, content: bytes) -> bool:
        if self.blobs.get(guard) != content:
            return False
        self.write(name, parts)
        return True


class SteppedStore:
    """One driver's access to a shared store: `step` is called before each of its operations."""

    def __init__(self, store: MemoryStore, step: Callable[[], None]) -> None:
        self._store, self._step = store, step

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        self._step()
        self._store.write(name, parts)

    def write_if(self, name: str, parts: Sequence[bytes | memoryview], guard: str, content: bytes) -> bool:
        if isinstance(self._store, ComparingStore):
            self._step()
            return self._store.write_if(name, parts, guard, content)
        return MemoryStore.write_if(self, name, parts, guard, content)  # type: ignore[arg-type]

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._step()
        return self._store.read(name, offset, length)

    def names(self, prefix: str) -> list[str]:
        self._step()
        return self._store.names(prefix)

    def missing(self, names: Iterable[str]) -> set[str]:
        self._step()
        return self._store.missing(names)

    def delete(self, names: Iterable[str]) -> None:
        self._step()
        self._store.delete(names)

    def lock(self, topology: str) -> None: ...

    def close(self) -> None: ...


class Driver:
    """A driver's work on a thread of its own, which stops before every operation of the store. `advance` lets it do one."""

    def __init__(self, store: MemoryStore, work: Callable[[SteppedStore], object]) -> None:
        self.result: object = None
        self.over = False
        self._go, self._stopped, self._dead = threading.Semaphore(0), threading.Semaphore(0), False
        self._thread = threading.Thread(target=self._run, args=(SteppedStore(store, self._step), work), daemon=True)
        self._thread.start()
        self._stopped.acquire()

    def _run(self, store: SteppedStore, work: Callable[[SteppedStore], object]) -> None:
        try:
            self.result = work(store)
        except NotTheAuthor as error:
            self.result = error
        except SystemExit:
            pass
        finally:
            self.over = True
            self._stopped.release()

    def _step(self) -> None:
        self._stopped.release()
        self._go.acquire()
        if self._dead:
            raise SystemExit

    def advance(self, operations: int = 1_000) -> None:
        for _ in range(operations):
            if self.over:
                return
            self._go.release()
            self._stopped.acquire()

    def kill(self) -> None:
        self._dead = True
        self.advance(1)
        self._thread.join()


def manifest(wave: int, epoch: int) -> Manifest:
    return Manifest("t", wave, epoch, 128, {}, [], 0.0, epoch)


def start(store: MemoryStore | SteppedStore, run: str) -> tuple[Checkpoints, Manifest | None, int]:
    """Take over, and resume from the newest wave. Returns that, and the first epoch."""
    checkpoints = Checkpoints(store, "t")
    event = StartOnStore(GRAPH, checkpoints, "store", run).submission(resume=True)
    return checkpoints, event.checkpoint, event.after[0] + 1


def resume(store: MemoryStore | SteppedStore, run: str) -> Manifest:
    """Take over and claim. When this returns, sinks publish the wave and discard everything after it."""
    checkpoints, found, epoch = start(store, run)
    assert found is not None
    claim = msgspec.structs.replace(found, epoch=epoch)
    checkpoints.claim(claim)
    return claim


def run_first(store: MemoryStore) -> tuple[Checkpoints, int]:
    """The first driver, which has committed and published wave 1."""
    checkpoints = Checkpoints(store, "t")
    epoch = StartOnStore(GRAPH, checkpoints, "store", "first").submission(None).after[0] + 1
    checkpoints.commit(manifest(1, epoch))
    return checkpoints, epoch


def committing(first: Checkpoints, epoch: int) -> Callable[[SteppedStore], object]:
    """Commit wave 2. If this returns a wave, the sinks publish it."""
    def work(store: SteppedStore) -> object:
        Checkpoints(store, "t", first.author).commit(manifest(2, epoch))
        return 2

    return work


def operations(kind: type[MemoryStore]) -> tuple[int, int]:
    """Operations of a commit, and of a takeover."""
    counts = []
    for second in (False, True):
        store = kind()
        first, epoch = run_first(store)
        driver, count = Driver(store, (lambda each: resume(each, "second")) if second else committing(first, epoch)), 0
        while not driver.over:
            driver.advance(1)
            count += 1
        counts.append(count)
    return counts[0], counts[1]


def check(store: MemoryStore, first: Driver, second: Driver) -> None:
    """Compare what was published and discarded with the wave from which a third driver continues."""
    published = 2 if first.result == 2 else 1
    assert first.result == 2 or isinstance(first.result, NotTheAuthor)
    claim = second.result if isinstance(second.result, Manifest) else None
    if claim is not None:
        assert claim.wave >= published, "the second driver repeats what the first has published"
    third = resume(store, "third")
    assert third.wave >= published, "a third driver repeats what the first has published"
    assert claim is None or third.wave == claim.wave, "a third driver continues from a wave that the second has discarded"


@pytest.mark.parametrize("kind", [MemoryStore, ComparingStore])
def test_every_interleaving_of_a_commit_and_a_takeover(kind: type[MemoryStore]) -> None:
    ours, theirs = operations(kind)
    outcomes = set()
    deciding = min(ours, LAST)
    for places in itertools.combinations_with_replacement(range(theirs + 1), deciding):
        store = kind()
        first, epoch = run_first(store)
        commit, takeover = Driver(store, committing(first, epoch)), Driver(store, lambda each: resume(each, "second"))
        commit.advance(ours - deciding)
        for place in range(theirs + 1):
            commit.advance(places.count(place))
            takeover.advance(1)
        commit.advance()
        takeover.advance()
        assert isinstance(takeover.result, Manifest)
        check(store, commit, takeover)
        outcomes.add((commit.result == 2, takeover.result.wave))
    assert outcomes >= {(True, 2), (False, 1)}, "the interleavings do not reach both ends"


@pytest.mark.parametrize("kind", [MemoryStore, ComparingStore])
def test_a_takeover_that_breaks_off_anywhere(kind: type[MemoryStore]) -> None:
    """The first driver commits before, amid or after it, and a third one takes over."""
    ours, theirs = operations(kind)
    for stop, split, later in itertools.product(range(theirs + 1), range(ours + 1), range(theirs + 1)):
        store = kind()
        first, epoch = run_first(store)
        commit, takeover = Driver(store, committing(first, epoch)), Driver(store, lambda each: resume(each, "second"))
        takeover.advance(min(stop, later))
        commit.advance(split)
        takeover.advance(stop - min(stop, later))
        if not takeover.over:
            takeover.kill()
        commit.advance()
        check(store, commit, takeover)


@pytest.mark.parametrize("kind", [MemoryStore, ComparingStore])
def test_a_takeover_while_the_driver_before_writes_a_missing_author_back(kind: type[MemoryStore]) -> None:
    """It takes the store for an emptied one; the other takes over between any two of its operations."""
    outcomes = set()
    for split in range(20):
        store = kind()
        first, epoch = run_first(store)
        store.delete(["t/author"])
        commit, takeover = Driver(store, committing(first, epoch)), Driver(store, lambda each: resume(each, "second"))
        commit.advance(split)
        takeover.advance()
        commit.advance()
        check(store, commit, takeover)
        outcomes.add(commit.result == 2)
    assert outcomes == {True, False}


def test_the_driver_before_rolls_back_during_the_takeover() -> None:
    """It claims a new epoch just before the other writes the author: that one must not number its epochs like it."""
    _, theirs = operations(MemoryStore)
    for places in itertools.combinations_with_replacement(range(theirs + 1), LAST):
        store = MemoryStore()
        first, epoch = run_first(store)
        author = first.author

        def claiming(each: SteppedStore, epoch: int = epoch, author: object = author) -> object:
            Checkpoints(each, "t", author).claim(msgspec.structs.replace(manifest(1, epoch), epoch=epoch + 1))  # type: ignore[arg-type]
            return 1

        rolling, takeover = Driver(store, claiming), Driver(store, lambda each: resume(each, "second"))
        for place in range(theirs + 1):
            rolling.advance(places.count(place))
            takeover.advance(1)
        rolling.advance()
        takeover.advance()
        assert isinstance(takeover.result, Manifest) and takeover.result.epoch > epoch + 1
        assert resume(store, "third").wave == takeover.result.wave

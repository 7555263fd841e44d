"""A second driver resumes a topology on a store without locks while the first one runs, and commits, at any moment of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from millrace.control.waves import IDLE
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import Exact, expected_rows

LIMIT = 2000
MOMENTS = 20  # more operations than a submission takes


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    parts.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.Numbers, "clock", parts.Numbers.clock)
        yield


class InterruptedStore(MemoryStore):
    """The second driver's view of the first one's store: before its operation number `at`, `interrupt` is called."""

    def __init__(self, store: MemoryStore, at: int, interrupt: Callable[[], None]) -> None:
        super().__init__()
        self.blobs, self._at, self._interrupt, self.operations = store.blobs, at, interrupt, 0

    def _check(self) -> None:
        self.operations += 1
        if self.operations == self._at:
            self._interrupt()


def started(store: MemoryStore, resume: bool | None = None) -> LocalCluster:
    cluster = LocalCluster(3, nodes=3, store=store)
    parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(cluster.clock.now)
    cluster.submit(Exact, resume=resume, config={"limit": LIMIT, "rate": 3000.0})
    return cluster


def committed(cluster: LocalCluster) -> int:
    waves = cluster.master.topologies["exact"].waves
    assert waves is not None
    return waves.committed if waves.phase == IDLE else -1


def try_to_commit(cluster: LocalCluster) -> None:
    """Run until another wave is committed and published, or the driver has noticed that it was overtaken."""
    parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(cluster.clock.now)
    before = committed(cluster)
    cluster.run_until(lambda: committed(cluster) > before or any("another driver" in text for text in cluster.said))


@pytest.mark.parametrize("at", range(1, MOMENTS))
def test_a_wave_committed_during_the_takeover_is_not_repeated(at: int) -> None:
    store = MemoryStore()
    first = started(store)
    first.run_until(lambda: committed(first) == 2)
    view = InterruptedStore(store, at, lambda: try_to_commit(first))
    second = started(view, resume=True)
    parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(second.clock.now)
    second.run_until(lambda: second.master.topologies["exact"].status == "running")
    assert view.operations >= at
    seen = len(parts.VISIBLE)
    first.run(1.0)  # with its own workers, unaware of its successor
    assert len(parts.VISIBLE) == seen
    parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(second.clock.now)
    second.run_until(lambda: len(parts.VISIBLE) >= LIMIT * 2)
    second.stop("exact", wait=100)
    second.run_until(lambda: "exact" not in second.master.topologies)
    rows = sorted((key, number) for key, number, *_ in parts.VISIBLE)
    assert rows == sorted(expected_rows(LIMIT, 2).elements())

"""Taps on a whole cluster in one process: rows survive failures in order, and an absent reader blocks the stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from millrace.model.graph import TaskId
from millrace.runtime.taps.messages import Seen, decode_rows, join_rows
from millrace.runtime.taps.port import TapPort, open_here
from millrace.runtime.taps.reader import Offset, first_offset, last_offset, ranges_between
from millrace.runtime.taps.rows import TapRows
from millrace.runtime.tasks.sender import CHUNK_STRETCH
from millrace.runtime.wire.transport import Keys
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.topologies.tapped import WORDS, CountedTap, Numbers, Tapped, TwoWidths

LIMIT = 3000


@pytest.fixture(autouse=True)
def port(tmp_path: Path) -> Iterator[None]:
    """A port shared by all workers, which are in one process."""
    tmp_path.chmod(0o700)
    context = zmq.Context()
    opened = TapPort(context, tmp_path / "t.ipc", "", Keys.make(), "")
    open_here(opened)
    yield
    open_here(None)
    opened.close()
    context.destroy(linger=0)


@pytest.fixture(autouse=True)
def own_clock() -> Iterator[None]:
    """Give the spout's class its clock back: `start` sets that of its cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Numbers, "clock", Numbers.clock)
        yield


def start(topology: Any, store: MemoryStore | None = None, resume: bool = False, **config: Any) -> LocalCluster:
    cluster = LocalCluster(3, nodes=3, store=store)
    Numbers.clock = Numbers.wall_clock = staticmethod(cluster.clock.now)
    cluster.submit(topology, resume=resume, config={"limit": LIMIT, "rate": 3000.0, **config})
    return cluster


def taps(cluster: LocalCluster) -> dict[int, TapRows]:
    """The rows of running tasks on workers that are alive."""
    alive = {slot: view.address.generation for slot, view in cluster.master.workers.items()}
    return {task.name.index: task.component.rows for task in cluster.tasks("out")
            if task.started and alive.get(task.worker.slot) == task.worker.generation}


class Reader:
    """Handles offsets as the streaming reader does, without sockets."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.rows: list[Any] = []
        self.by_tap: defaultdict[tuple[int, str], list[Any]] = defaultdict(list)  # task and incarnation of the tap
        self.offset: Offset = first_offset(self._seen({}))

    def _seen(self, committed: Offset) -> dict[int, tuple[str, Seen]]:
        seen = {}
        for task, rows in taps(self.cluster).items():
            till = committed.get(str(task))
            rows.commit(till["next"] if till is not None and till["tap"] == rows.name else 0)
            seen[task] = rows.name, Seen(rows.first, rows.readable)
        return seen

    def batch(self) -> None:
        """Commit the previous batch, and read the new rows."""
        end = last_offset(self.offset, self._seen(self.offset))
        for wanted in ranges_between(self.offset, end):
            tap = taps(self.cluster).get(wanted.task)
            if tap is not None and tap.name == wanted.name:
                rows = decode_rows(join_rows(tap.read(wanted.start, wanted.stop, LIMIT, 2**62)[1]))
                self.rows += rows
                self.by_tap[wanted.task, wanted.name] += rows
        self.offset = end

    def read_all(self, count: int = LIMIT) -> None:
        def enough() -> bool:
            self.batch()
            return len({row[0] for row in self.rows}) >= count

        self.cluster.run_until(enough, seconds=200)


def assert_numbers_in_order(reader: Reader, spouts: int = 2) -> None:
    """Check that each incarnation of a tap task has the numbers of each spout task in the order they were sent."""
    for rows in reader.by_tap.values():
        for spout in range(spouts):
            sent = [row[0] for row in rows if row[0] % spouts == spout]
            assert sent == sorted(set(sent))


def assert_counted_once_in_order(reader: Reader) -> None:
    """Check that every number and every count of a word came once, and in order from each task of the tap."""
    assert Counter(row[0] for row in reader.rows) == Counter(range(LIMIT))
    by_word: defaultdict[str, list[int]] = defaultdict(list)
    by_task: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for (task, _), rows in reader.by_tap.items():
        for _, word, count in rows:
            by_word[word].append(count)
            by_task[task, word].append(count)
    assert {word: sorted(counts) for word, counts in by_word.items()} == {
        word: list(range(1, LIMIT // len(WORDS) + 1)) for word in WORDS}
    assert all(counts == sorted(counts) for counts in by_task.values())


def test_rows_are_acked_when_they_are_committed() -> None:
    cluster = start(Tapped)
    cluster.run_until(lambda: sum(rows.unread for rows in taps(cluster).values()) == LIMIT)
    assert sum(cluster.master.topologies["tapped"].positions.values()) == 0
    reader = Reader(cluster)
    reader.batch()
    cluster.run(1.0)
    assert sum(cluster.master.topologies["tapped"].positions.values()) == 0, "read is not committed"
    reader.batch()
    cluster.run_until(lambda: sum(cluster.master.topologies["tapped"].positions.values()) == LIMIT)
    assert Counter(reader.rows) == Counter((number, WORDS[number % len(WORDS)]) for number in range(LIMIT))
    assert_numbers_in_order(reader)


def test_rows_of_a_lost_task_are_replayed() -> None:
    cluster = start(Tapped)
    cluster.run(0.3)
    reader = Reader(cluster)
    reader.batch()
    before = {rows.name for rows in taps(cluster).values()}
    for task, slot in cluster.where("tapped").items():
        if task.component == "out" and task.index == 0:
            cluster.kill(slot)
            break
    reader.read_all()
    assert {rows.name for rows in taps(cluster).values()} - before, "another incarnation has another name"
    assert set(reader.rows) == {(number, WORDS[number % len(WORDS)]) for number in range(LIMIT)}


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_exactly_once_a_worker_dies(slot: int) -> None:
    cluster = start(CountedTap, **{"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.2})
    cluster.run_until(lambda: any(rows.unread for rows in taps(cluster).values()))
    reader = Reader(cluster)
    reader.batch()
    cluster.kill(slot)
    cluster.run(0.2)
    reader.batch()
    cluster.start(slot)
    reader.read_all()
    assert_counted_once_in_order(reader)


def test_exactly_once_the_driver_dies_and_resumes() -> None:
    store, config = MemoryStore(), {"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.2}
    cluster = start(CountedTap, store, **config)
    cluster.run_until(lambda: any(rows.unread for rows in taps(cluster).values()))
    reader = Reader(cluster)
    reader.batch()
    cluster.run_until(lambda: any(rows.unread > len(reader.rows) for rows in taps(cluster).values()))
    reader.batch()
    reader.cluster = start(CountedTap, store, resume=True, **config)
    reader.read_all()
    assert_counted_once_in_order(reader)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_task_of_the_tap_moves(guarantee: str) -> None:
    cluster = start(Tapped, **{"topology.guarantee": guarantee, "topology.checkpoint.interval.secs": 0.2})
    cluster.run_until(lambda: any(rows.unread for rows in taps(cluster).values()))
    reader = Reader(cluster)
    reader.batch()
    task = TaskId("out", 0)
    slot = (cluster.where("tapped")[task] + 1) % 3
    cluster.move("tapped", task, slot)
    cluster.run_until(lambda: cluster.where("tapped")[task] == slot)
    reader.read_all()
    assert cluster.where("tapped")[task] == slot
    counts = Counter(row[0] for row in reader.rows)
    assert counts.keys() == set(range(LIMIT))
    if guarantee == "exactly-once":
        assert counts == Counter(range(LIMIT))
        assert_numbers_in_order(reader)


def test_exactly_once_rows_cannot_be_read_before_their_wave() -> None:
    cluster = start(CountedTap, **{"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 50.0})
    cluster.run_until(lambda: sum(rows.end for rows in taps(cluster).values()) > 100)
    assert all(rows.unread == 0 for rows in taps(cluster).values())


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_an_unread_tap_blocks_the_spouts(guarantee: str) -> None:
    limit, chunk, window, spouts = 200, 50, 4, 2
    cluster = start(Tapped, **{"topology.guarantee": guarantee, "topology.checkpoint.interval.secs": 0.1, "tap.rows": limit,
                               "topology.chunk.tuples": chunk, "topology.channel.window": window, "limit": 100_000,
                               "rate": 0.0})
    cluster.run_until(lambda: len(taps(cluster)) == 2 and all(rows.unread >= limit for rows in taps(cluster).values()))
    cluster.run(1.0)
    sent = {task.name: task.meters.emitted for task in cluster.tasks("numbers")}
    cluster.run(100.0)  # beyond all timeouts
    kept = [rows.end - rows.first for rows in taps(cluster).values()]
    assert {task.name: task.meters.emitted for task in cluster.tasks("numbers")} == sent or guarantee == "at-least-once"
    # There is no room for replays either. Exactly-once, uncommitted rows do not count.
    assert max(kept) <= limit + spouts * window * chunk * CHUNK_STRETCH or guarantee == "exactly-once"
    reader = Reader(cluster)
    reader.read_all(5000)


def test_a_byte_limit_blocks_the_spouts_too() -> None:
    cluster = start(Tapped, **{"tap.mb": 0.001, "topology.chunk.tuples": 10, "limit": 100_000, "rate": 0.0})
    cluster.run_until(lambda: len(taps(cluster)) == 2 and all(rows.unread_bytes >= 1000 for rows in taps(cluster).values()))
    cluster.run(20.0)
    assert max(rows.end for rows in taps(cluster).values()) < 2000
    Reader(cluster).read_all(5000)


def test_inputs_with_different_columns_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    cluster = start(TwoWidths)
    cluster.run(0.5)
    assert "inputs of different widths (numbers.default: number, word; count.default: number, word, count)" in caplog.text


def test_a_tap_alone_does_not_start_waves() -> None:
    cluster = start(Tapped)
    assert cluster.master.topologies["tapped"].waves is None

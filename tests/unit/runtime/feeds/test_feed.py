"""The feed of a DataFrame spout and feeders that send to it, over real sockets; a thread plays spout and master."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import zmq

from millrace.control.feeding import FEED, FEED_WINDOW, FeedAddress, Key
from millrace.errors import FeedingFailed, MillraceError
from millrace.runtime.feeds import feeder
from millrace.runtime.feeds.feed import NoFeeds, SocketFeed, SocketFeeds, SplitInbox, WholeFeed
from millrace.runtime.feeds.feeder import Feeder, Feeding
from millrace.runtime.feeds.messages import Done, Push, Refused, Returned, read_feed_answer
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_batch
from millrace.runtime.wire.transport import Gate, Keys, bind_tcp, boot_id, serve

SECONDS = 30.0  # a safety limit, never a measure
BATCH = pa.record_batch({"line": ["a", "b", "c"]})


class Workplace:
    """A worker's feeds and their senders."""

    def __init__(self, directory: Path) -> None:
        self.context, self.keys, self.counters = zmq.Context(), Keys.make(), Counter[str]()
        self.gate = Gate(self.context, self.keys)
        self.feeds = SocketFeeds(self.context, directory, "127.0.0.1", self.keys, boot_id(), self.counters, 1 << 20)
        self.addresses: list[FeedAddress] = []

    def open(self, name: str = "t/lines[0]") -> WholeFeed:
        return self.open_splits(name).whole()

    def open_splits(self, name: str) -> SocketFeed:
        addresses: dict[str, FeedAddress] = {}
        feed = self.feeds.open(name, addresses.__setitem__)
        self.addresses.append(addresses[FEED])
        return feed

    def sender(self, address: FeedAddress) -> zmq.Socket[Any]:
        socket = self.context.socket(zmq.DEALER)
        socket.linger, socket.rcvtimeo = 0, int(SECONDS * 1000)
        socket.connect(address.ipc)
        return socket

    def close(self) -> None:
        self.gate.close()
        self.context.destroy(linger=0)


@pytest.fixture
def place() -> Iterator[Workplace]:
    with tempfile.TemporaryDirectory(prefix="feed") as directory:  # sockets: a short path
        made = Workplace(Path(directory))
        yield made
        made.close()


def push(socket: zmq.Socket[Any], sequence: int = 0, batch: pa.RecordBatch = BATCH, digest: int = 5, split: int = 0) -> None:
    socket.send_multipart([wire.encode(Push("q", 0, 0, sequence, digest, split)), encode_batch(batch)])


def taken(feed: WholeFeed | SplitInbox) -> tuple[Key, pa.RecordBatch]:
    """Wait for the next new batch."""
    poller = zmq.Poller()
    for socket in feed._feed._sockets:
        poller.register(socket, zmq.POLLIN)
    while True:
        batch = feed.take()
        if batch is not None:
            return batch
        assert poller.poll(SECONDS * 1000), "nothing came"


# -- the feed --


def test_a_batch_comes_once_and_is_answered_when_it_is_done(place: Workplace) -> None:
    feed = place.open()
    first, second = place.sender(place.addresses[0]), place.sender(place.addresses[0])
    push(first)
    key, batch = taken(feed)
    assert (key, batch) == (Key("q", 0, 0, 0, 5), BATCH)
    push(second)
    push(second, sequence=1)
    assert taken(feed)[0].sequence == 1, "what is on its way is not taken in again"
    feed.done(key)
    assert read_feed_answer(first.recv()) == read_feed_answer(second.recv()) == Done(0)
    push(second)
    push(second, sequence=2)
    assert taken(feed)[0].sequence == 2
    assert read_feed_answer(second.recv()) == Done(0), "answered at once: it is done"


def test_an_invalid_batch_is_dropped_or_refused(place: Workplace) -> None:
    feed = place.open()
    sender = place.sender(place.addresses[0])
    header = wire.encode(Push("q", 0, 0, 0, 5))
    for frames in ([b"junk"], [b"junk", b"junk"], [header], [header, b"junk"], [header, b"", b""]):
        sender.send_multipart(frames)
    push(sender, sequence=1)
    assert taken(feed)[0].sequence == 1
    assert place.counters["malformed"] == 5
    answer = read_feed_answer(sender.recv())
    assert isinstance(answer, Refused) and "is not an Arrow batch" in answer.reason


def test_a_task_that_starts_again_has_another_address(place: Workplace) -> None:
    before = place.open()
    after = place.open()
    assert place.addresses[0].ipc != place.addresses[1].ipc
    assert not Path(place.addresses[0].ipc.removeprefix("ipc://")).exists()
    assert before.take() is None, "asked once more, while its successor is being started"
    before.close()
    before.done(Key("q", 0, 0, 0, 5))
    after.close()
    assert not Path(place.addresses[1].ipc.removeprefix("ipc://")).exists()


def test_no_more_waits_in_it_than_a_feeder_sends_without_an_ack(place: Workplace) -> None:
    assert [socket.rcvhwm for socket in place.open_splits("t/lines[0]")._sockets] == [FEED_WINDOW, FEED_WINDOW]


def test_each_split_has_its_own_batches(place: Workplace) -> None:
    feed = place.open_splits("t/lines[0]")
    sender = place.sender(place.addresses[0])
    first, third = feed.split(1), feed.split(3)
    for sequence in range(4):
        push(sender, sequence, split=1 + 2 * (sequence % 2))
    push(sender, 4, split=2)
    push(sender, 5, split=3)
    assert [taken(third)[0].sequence for _ in range(3)] == [1, 3, 5]
    assert read_feed_answer(sender.recv()) == Returned(4), "the task does not read split 2"
    assert [taken(first)[0].sequence for _ in range(2)] == [0, 2]


def test_a_split_that_leaves_returns_what_is_not_done(place: Workplace) -> None:
    feed = place.open_splits("t/lines[0]")
    sender = place.sender(place.addresses[0])
    leaving, other = feed.split(0), feed.split(1)
    for sequence in range(4):
        push(sender, sequence, split=0)
    push(sender, 4, split=1)
    key, _ = taken(leaving)
    taken(leaving)
    taken(other)
    leaving.done(key)
    record = leaving.record()
    leaving.close()
    answers = [read_feed_answer(sender.recv()) for _ in range(4)]
    assert answers == [Done(0), Returned(1), Returned(2), Returned(3)]
    successor = place.open_splits("t/lines[1]").split(0)
    successor.resume(record)
    sender = place.sender(place.addresses[1])
    push(sender, 0)
    push(sender, 1)
    assert taken(successor)[0].sequence == 1
    assert read_feed_answer(sender.recv()) == Done(0), "processed by the other task"


def test_a_worker_without_sockets_reports_an_error() -> None:
    with pytest.raises(MillraceError, match="run its topology on a ResidentEngine"):
        NoFeeds().open("t/lines[0]", lambda name, value: None)


# -- feeders --


class Surroundings(threading.Thread):
    """Answers feeders in the master's place, and lets `spout` look at the feeds now and then."""

    def __init__(self, place: Workplace, spout: Callable[[], None] = lambda: None, status: str = "running") -> None:
        super().__init__(daemon=True)
        self.place, self.spout, self.status = place, spout, status
        self.shown: list[FeedAddress] = list(place.addresses)
        self.owners: list[int] = []
        self.over = threading.Event()
        self._socket = place.context.socket(zmq.ROUTER)
        self._socket.linger = 0
        serve(self._socket, place.keys)
        self.endpoint = bind_tcp(self._socket, "127.0.0.1")

    def run(self) -> None:
        while not self.over.is_set():
            if self._socket.poll(5):
                identity, frame = self._socket.recv_multipart()
                request = wire.decode_control(frame)
                assert request == wire.AskFeeds("t", "lines")
                self._socket.send_multipart([identity, wire.encode(wire.Feeds(self.status, self.shown, self.owners))])
            self.spout()
        self._socket.close()

    def feeding(self, rows: int = 2, timeout: float = SECONDS) -> Feeding:
        return Feeding(self.endpoint, self.place.keys, "t", "lines", "q", 7, rows, timeout, 1 << 16, len(self.owners))

    def __enter__(self) -> Surroundings:
        self.start()
        return self

    def __exit__(self, *rest: object) -> None:
        self.over.set()
        self.join(SECONDS)


class Spouts:
    """Takes each batch from the feeds and reports it done."""

    def __init__(self, *feeds: WholeFeed | SplitInbox) -> None:
        self.feeds, self.rows, self.pieces = list(feeds), Counter[str](), Counter[int]()

    def __call__(self) -> None:
        for number, feed in enumerate(self.feeds):
            batch = feed.take()
            if batch is not None:
                self.rows.update(batch[1].column(0).to_pylist())
                self.pieces[number] += 1
                feed.done(batch[0])


LINES = [f"line {i}" for i in range(101)]
BATCHES = [pa.record_batch({"line": lines}) for lines in (LINES[:50], [], LINES[50:])]


def test_everything_arrives_in_pieces_spread_over_the_tasks(place: Workplace) -> None:
    spouts = Spouts(place.open("t/lines[0]"), place.open("t/lines[1]"))
    with Surroundings(place, spouts) as around, Feeder(around.feeding(rows=2), 3) as sending:
        assert sending.send(BATCHES) == 101
    assert spouts.rows == Counter(LINES)
    assert spouts.pieces == {0: 26, 1: 25} or spouts.pieces == {0: 25, 1: 26}


def test_by_tcp_with_the_cluster_s_key_where_the_machine_is_another(place: Workplace) -> None:
    spouts = Spouts(place.open())
    with Surroundings(place, spouts) as around:
        around.shown = [place.addresses[0]._replace(boot="another")]
        with Feeder(around.feeding(), 0) as sending:
            assert sending.send(BATCHES) == 101
    assert spouts.rows == Counter(LINES)


def test_a_task_that_moves_gets_what_is_not_acked(place: Workplace) -> None:
    deaf = place.open("t/lines[0]")
    spouts = Spouts(place.open("t/lines[1]"))
    with Surroundings(place) as around:
        around.shown = [place.addresses[0]]

        def move() -> None:
            if deaf.take() is not None:  # and never answers again
                around.shown = [place.addresses[1]]
            spouts()

        around.spout = move
        with Feeder(around.feeding(), 0) as sending:
            assert sending.send(BATCHES) == 101
    assert spouts.rows == Counter(LINES)


def test_batches_are_dealt_to_splits_wherever_they_are(place: Workplace) -> None:
    """Splits change their owner all the time: what one task returns, the next one gets."""
    tasks = [place.open_splits(f"t/lines[{index}]") for index in range(3)]
    rows, by_split, moves = Counter[str](), Counter[int](), [0]
    with Surroundings(place) as around:
        around.owners = [0, 0, 1, 1, 2]
        splits = [tasks[owner].split(number) for number, owner in enumerate(around.owners)]

        def look() -> None:
            for number, split in enumerate(splits):
                batch = split.take()
                if batch is not None:
                    rows.update(batch[1].column(0).to_pylist())
                    by_split[number] += 1
                    split.done(batch[0])
            moving = moves[0] = (moves[0] + 1) % 5
            record = splits[moving].record()
            splits[moving].close()
            around.owners[moving] = (around.owners[moving] + 1) % 3
            splits[moving] = tasks[around.owners[moving]].split(moving)
            splits[moving].resume(record)

        around.spout = look
        with Feeder(around.feeding(), 0) as sending:
            assert sending.send(BATCHES) == 101
    assert rows == Counter(LINES)
    assert sorted(by_split.values()) == [10, 10, 10, 10, 11]


def test_a_split_whose_task_has_no_address_yet_is_asked_for_again(place: Workplace) -> None:
    task = place.open_splits("t/lines[0]")
    spouts = Spouts(task.split(0), task.split(1))
    with Surroundings(place) as around:
        around.owners = [0, -1]

        def look() -> None:
            spouts()
            if spouts.pieces[0] == 16:  # the window holds only batches that cannot be sent
                around.owners = [0, 0]

        around.spout = look
        with Feeder(around.feeding(), 0) as sending:
            assert sending.send(BATCHES) == 101
    assert spouts.rows == Counter(LINES)


def test_a_lost_ack_is_asked_for_again(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder, "RESEND_SECONDS", 0.2)
    feed = place.open()
    spouts = Spouts(feed)
    answer, lost = feed._feed.answer, [0]

    def lose_some(sender: Any, message: Any) -> None:
        lost[0] += 1
        if lost[0] % 3:
            answer(sender, message)

    monkeypatch.setattr(feed._feed, "answer", lose_some)
    with Surroundings(place, spouts) as around, Feeder(around.feeding(rows=10), 0) as sending:
        assert sending.send(BATCHES) == 101
    assert spouts.rows == Counter(LINES), "sent again, and not emitted again"


@pytest.mark.parametrize("status", ["stopping", ""])
def test_the_end_of_the_topology_is_the_end_of_feeding(place: Workplace, status: str) -> None:
    place.open()
    with (Surroundings(place, status=status) as around, Feeder(around.feeding(), 0) as sending,
          pytest.raises(FeedingFailed, match="'t' has ended, and not all of batch 7 is processed")):
        sending.send(BATCHES)


def test_every_wait_has_a_limit(place: Workplace) -> None:
    place.open()
    with (Surroundings(place) as around, Feeder(around.feeding(timeout=0.3), 0) as sending,
          pytest.raises(FeedingFailed, match=r"batch 7 sent to 'lines' has been acked for 0\.3 s")):
        sending.send(BATCHES)


def test_while_it_is_paused_nobody_is_late(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that advances with the master's answers while it is paused: ten times the timeout in all."""
    timeout, clock, located = 1.0, [0.0], Feeder._located
    monkeypatch.setattr(feeder, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(feeder, "ASK_SECONDS", -timeout)  # in every turn, whatever the clock says

    def located_later(sending: Feeder, message: Any) -> None:
        if message.status == "paused":
            clock[0] += 0.9 * timeout
            around.status = "running" if clock[0] > 10 * timeout else "paused"
        located(sending, message)

    monkeypatch.setattr(Feeder, "_located", located_later)
    spouts = Spouts(place.open())

    def look() -> None:
        if around.status == "running":
            spouts()

    with Surroundings(place, look, "paused") as around, Feeder(around.feeding(timeout=timeout), 0) as sending:
        assert sending.send(BATCHES) == 101
    assert clock[0] > 10 * timeout


def test_a_silent_master_is_abandoned(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder, "MASTER_SECONDS", 0.2)
    with (Feeder(Feeding("tcp://127.0.0.1:1", place.keys, "t", "lines", "q", 7, 10, SECONDS), 0) as sending,
          pytest.raises(FeedingFailed, match=r"has not answered for 0\.2 s")):
        sending.send(BATCHES)


def test_a_refused_batch_is_not_resent_for_ever(place: Workplace) -> None:
    feed = place.open()

    def refuse() -> None:
        batch = feed.take()
        if batch is not None:
            feed.refuse(batch[0], "other columns")

    with (Surroundings(place, refuse) as around, Feeder(around.feeding(), 4) as sending,
          pytest.raises(FeedingFailed, match="'lines' cannot emit batch 0 of partition 4: other columns")):
        sending.send(BATCHES)


def test_a_piece_that_is_too_long_for_a_frame_is_cut(place: Workplace) -> None:
    spouts = Spouts(place.open())
    long = [os.urandom(12_000).hex() for _ in range(8)]
    with Surroundings(place, spouts) as around:
        with Feeder(around.feeding(rows=8), 0) as sending:
            assert sending.send([pa.record_batch({"line": long})]) == 8
        with (Feeder(around.feeding(rows=8), 0) as sending,
              pytest.raises(FeedingFailed, match=r"a row for 'lines' has \d+ bytes; the limit of a message is 65536")):
            sending.send([pa.record_batch({"line": ["x" * 70_000]})])
    assert spouts.rows == Counter(long)

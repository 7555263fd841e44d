"""Fragment exchanges of several workers over real sockets: blobs are restored despite lost or faulty holders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import Queue
from random import Random
from typing import Any

import msgspec
import pytest
import zmq

from millrace.errors import BadParameter, MillraceError, NotEnoughFragments
from millrace.runtime.fragments.exchange import FragmentExchange
from millrace.runtime.fragments.jobs import Holders
from millrace.runtime.fragments.links import Address
from millrace.runtime.fragments.messages import (
    PART_BYTES,
    Accepted,
    Discard,
    Get,
    Head,
    Keep,
    Nothing,
    Part,
    Put,
    read_fragment_answer,
)
from millrace.runtime.wire.messages import encode
from millrace.runtime.wire.transport import Gate, Keys
from millrace.state.fragments import cut

BLOB = "words/count/3/1-17"
BOOT = "this kernel"
DATA = Random(7).randbytes(3 * PART_BYTES + 12_345)
PATIENT = 60.0  # seconds until a test fails
SHORT = 2.0  # of silence, where a holder is gone


class FakeWorker:
    """An exchange with a queue in place of a worker's loop."""

    def __init__(self, context: zmq.Context[Any], name: str, directory: Path, **options: Any) -> None:
        self.calls: Queue[Callable[[], None]] = Queue()
        defaults = {"bind": "", "keys": Keys.make(), "boot": BOOT, "silence": PATIENT}
        self.exchange = FragmentExchange(context, name, directory, post=self.calls.put, **{**defaults, **options})

    def run(self, start: Callable[[Callable[[Any], None]], None]) -> Any:
        """Run the loop on this thread and return the argument of `done`."""
        results: list[Any] = []
        start(results.append)
        while not results:
            self.calls.get(timeout=PATIENT)()
        return results[0]

    def save(self, data: bytes, r: int, c: int, holders: Holders, blob: str = BLOB) -> int:
        return int(self.run(lambda done: self.exchange.save(blob, [data[:100], data[100:]], r, c, holders, done)))

    def fetch(self, r: int, c: int, holders: Holders, blob: str = BLOB, seconds: float = PATIENT) -> Any:
        return self.run(lambda done: self.exchange.fetch(blob, r, c, holders, done, seconds))

    def held(self, prefix: str = "") -> list[str]:
        return [held.blob for held in self.run(lambda done: self.exchange.listing(done, prefix))]


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def start(context: zmq.Context[Any], tmp_path: Path) -> Iterator[Callable[..., FakeWorker]]:
    workers: list[FakeWorker] = []

    def one(**options: Any) -> FakeWorker:
        workers.append(FakeWorker(context, f"f{len(workers)}", tmp_path, **options))
        return workers[-1]

    yield one
    for worker in workers:
        worker.exchange.close()


@pytest.fixture
def workers(start: Callable[..., FakeWorker]) -> list[FakeWorker]:
    """Start workers: the first saves, the others hold fragments."""
    return [start() for _ in range(6)]


def holders_of(workers: list[FakeWorker]) -> Holders:
    return [(index, worker.exchange.endpoints) for index, worker in enumerate(workers[1:])]


@pytest.mark.parametrize("length", [0, 1, 1000, 3 * PART_BYTES, len(DATA)])
def test_a_saved_blob_is_fetched(length: int, workers: list[FakeWorker]) -> None:
    assert workers[0].save(DATA[:length], 3, 2, holders_of(workers)) == 5
    assert workers[0].fetch(3, 2, holders_of(workers)) == DATA[:length]
    assert workers[4].fetch(3, 2, holders_of(workers)) == DATA[:length]


def test_a_worker_may_hold_several_fragments_and_its_own(workers: list[FakeWorker]) -> None:
    holders = [(index, workers[index % 2].exchange.endpoints) for index in range(5)]
    assert workers[0].save(DATA, 3, 2, holders) == 5
    assert workers[0].fetch(3, 2, holders) == DATA


def test_several_at_once(workers: list[FakeWorker]) -> None:
    blobs = {f"words/count/{task}/1-1": DATA[task:] for task in range(6)}
    results: Queue[Any] = Queue()
    for blob, data in blobs.items():
        workers[0].exchange.save(blob, [data], 3, 2, holders_of(workers), results.put)
    for _ in blobs:
        workers[0].calls.get(timeout=PATIENT)()
    assert [results.get_nowait() for _ in blobs] == [5] * 6
    fetched: dict[str, Any] = {}
    for blob in blobs:
        workers[0].exchange.fetch(blob, 3, 2, holders_of(workers), lambda data, blob=blob: fetched.__setitem__(blob, data))
    for _ in blobs:
        workers[0].calls.get(timeout=PATIENT)()
    assert fetched == blobs


def test_done_is_called_on_the_workers_loop_only(workers: list[FakeWorker]) -> None:
    threads: list[int] = []
    workers[0].run(lambda done: workers[0].exchange.save(BLOB, [b"x"], 1, 0, holders_of(workers)[:1],
                                                         lambda held: (threads.append(threading.get_ident()), done(held))))
    assert threads == [threading.get_ident()]


def test_as_many_holders_may_be_gone_as_there_are_check_blocks(start: Callable[..., FakeWorker],
                                                               workers: list[FakeWorker]) -> None:
    holders, asking = holders_of(workers), start(silence=SHORT)
    assert workers[0].save(DATA, 3, 2, holders) == 5
    workers[1].exchange.close()
    workers[3].exchange.close()
    assert asking.fetch(3, 2, holders) == DATA
    workers[5].exchange.close()
    error = asking.fetch(3, 2, holders)
    assert isinstance(error, NotEnoughFragments)
    assert BLOB in str(error) and "4: its holder does not answer" in str(error)


def test_holders_that_are_gone_are_not_counted(start: Callable[..., FakeWorker], workers: list[FakeWorker]) -> None:
    holders, asking = holders_of(workers), start(silence=SHORT)
    workers[2].exchange.close()
    assert asking.save(DATA, 3, 2, holders) == 4
    assert asking.fetch(3, 2, holders) == DATA


def test_a_wait_for_an_abandoned_worker_ends(start: Callable[..., FakeWorker], tmp_path: Path) -> None:
    asking = start(silence=1000.0)
    nobody = Address(f"ipc://{tmp_path}/nobody.ipc", "", BOOT)

    def fetch(done: Callable[[Any], None]) -> None:
        asking.exchange.fetch(BLOB, 1, 0, [(0, nobody)], done, 1000.0)
        asking.exchange.forget(nobody)

    assert "does not answer" in str(asking.run(fetch))


@pytest.mark.parametrize("silence, seconds", [(0.1, PATIENT), (1000.0, 0.1)])
def test_nobody_answers(silence: float, seconds: float, start: Callable[..., FakeWorker], tmp_path: Path) -> None:
    nobody = [(index, Address(f"ipc://{tmp_path}/nobody{index}.ipc", "", BOOT)) for index in range(4)]
    asking = start(silence=silence)
    error = asking.fetch(2, 2, nobody, seconds=seconds)
    assert isinstance(error, NotEnoughFragments) and "received none" in str(error)
    assert asking.run(lambda done: asking.exchange.save(BLOB, [DATA], 2, 2, nobody, done, seconds)) == 0


def test_nobody_to_ask(start: Callable[..., FakeWorker]) -> None:
    alone = start()
    assert alone.save(DATA, 2, 1, []) == 0
    assert isinstance(alone.fetch(2, 1, []), NotEnoughFragments)


def test_a_worker_of_another_host_without_a_port_cannot_be_asked(start: Callable[..., FakeWorker]) -> None:
    local, remote = start(), start(boot="another kernel")
    assert local.save(DATA, 1, 0, [(0, remote.exchange.endpoints)]) == 0


@pytest.mark.parametrize("spoilt", [[0], [1, 4], [3, 4]])
def test_corrupt_fragments_are_replaced_by_others(spoilt: list[int], workers: list[FakeWorker]) -> None:
    assert workers[0].save(DATA, 3, 2, holders_of(workers)) == 5
    spoil(workers, spoilt)
    assert workers[0].fetch(3, 2, holders_of(workers)) == DATA


def spoil(workers: list[FakeWorker], indexes: list[int]) -> None:
    for index in indexes:
        fragment = workers[index + 1].exchange.tree.get(BLOB, index)
        assert fragment is not None and isinstance(fragment.payload, memoryview)
        fragment.payload[77] ^= 1


def test_too_many_corrupt_fragments_are_an_error(workers: list[FakeWorker]) -> None:
    assert workers[0].save(DATA, 3, 2, holders_of(workers)) == 5
    spoil(workers, [0, 2, 3])
    error = workers[0].fetch(3, 2, holders_of(workers))
    assert isinstance(error, NotEnoughFragments)
    assert all(f"{index}: corrupt" in str(error) for index in (0, 2, 3))


def test_a_forged_fragment_is_found_with_one_more(workers: list[FakeWorker]) -> None:
    holders = holders_of(workers)
    assert workers[0].save(DATA, 3, 2, holders) == 5
    true, stray = cut(BLOB, DATA, 3, 2)[1], cut(BLOB, DATA[::-1], 3, 2)[1]
    workers[2].exchange.tree.put(replace(true, payload=stray.payload, crc=stray.crc))
    assert workers[0].fetch(3, 2, holders) == DATA
    assert "together not the blob" in str(workers[0].fetch(3, 2, holders[:3]))


def test_stale_fragments_are_not_mixed_in(workers: list[FakeWorker]) -> None:
    """Holders 0 and 1 missed the second time that a blob of this name was saved."""
    assert workers[0].save(DATA[::-1], 3, 2, holders_of(workers)) == 5
    assert workers[0].save(DATA, 3, 2, holders_of(workers)[2:]) == 3
    assert workers[0].fetch(3, 2, holders_of(workers)) == DATA
    assert isinstance(workers[0].fetch(3, 2, holders_of(workers)[:4]), NotEnoughFragments)


def test_another_shape_is_not_taken(workers: list[FakeWorker]) -> None:
    assert workers[0].save(DATA, 3, 2, holders_of(workers)) == 5
    assert "of 3 + 2" in str(workers[0].fetch(2, 3, holders_of(workers)))


def test_an_unknown_blob_is_reported_at_once(workers: list[FakeWorker]) -> None:
    error = workers[0].fetch(3, 2, holders_of(workers), seconds=1000.0)
    assert isinstance(error, NotEnoughFragments) and "no longer held" in str(error)


def test_a_full_holder_refuses(start: Callable[..., FakeWorker]) -> None:
    saving, small, large = start(), start(limit=PART_BYTES), start()
    holders = [(0, small.exchange.endpoints), (1, large.exchange.endpoints), (2, large.exchange.endpoints)]
    assert saving.save(DATA, 2, 1, holders) == 2
    assert small.held() == [] and large.held() == [BLOB]
    assert saving.fetch(2, 1, holders) == DATA


def test_only_what_is_needed_is_kept(workers: list[FakeWorker]) -> None:
    first, holder = workers[:2]
    names = [f"words/count/0/1-{wave}" for wave in (1, 2, 3)] + ["words/count/1/1-1", "other/count/0/1-1"]
    for name in names:
        assert first.save(b"state", 1, 0, [(0, holder.exchange.endpoints)], name) == 1
    endpoints = [holder.exchange.endpoints]
    assert first.run(lambda done: first.exchange.keep("words/count/0", names[1:3], endpoints, done)) == 1
    assert holder.held() == sorted(names[1:])
    assert first.run(lambda done: first.exchange.drop("words", endpoints, done)) == 1
    assert holder.held() == ["other/count/0/1-1"]
    assert first.run(lambda done: first.exchange.drop("words", [], done)) == 0


def test_tcp_with_keys(context: zmq.Context[Any], start: Callable[..., FakeWorker]) -> None:
    keys = Keys.make()
    gate = Gate(context, keys)
    try:
        here = start(bind="127.0.0.1", keys=keys, boot="here", silence=SHORT)
        remote = [start(bind="127.0.0.1", keys=keys, boot="there") for _ in range(3)]
        stranger = start(bind="127.0.0.1", boot="elsewhere", silence=SHORT)
        holders = holders_of([here, *remote])
        assert here.exchange.endpoints.tcp.startswith("tcp://127.0.0.1:")
        assert here.save(DATA, 2, 1, holders) == 3
        remote[0].exchange.close()
        assert here.fetch(2, 1, holders) == DATA
        assert isinstance(stranger.fetch(2, 1, holders), NotEnoughFragments)
    finally:
        gate.close()


def test_calls_that_make_no_sense_are_refused(workers: list[FakeWorker]) -> None:
    exchange, address = workers[0].exchange, workers[1].exchange.endpoints
    for holders in ([(0, address), (0, address)], [(3, address)], [(-1, address)]):
        with pytest.raises(BadParameter, match="the indexes must be 0 to 2"):
            exchange.fetch(BLOB, 2, 1, holders, print)
    with pytest.raises(BadParameter, match="at least 1 raw"):
        exchange.save(BLOB, [b"x"], 0, 0, [], print)
    with pytest.raises(BadParameter, match="not a blob name"):
        exchange.save("words", [b"x"], 1, 0, [(0, address)], print)


def test_closing_ends_pending_calls(start: Callable[..., FakeWorker], tmp_path: Path) -> None:
    asking = start(silence=1000.0)
    nobody = [(0, Address(f"ipc://{tmp_path}/nobody.ipc", "", BOOT))]

    def fetch_and_close(done: Callable[[Any], None]) -> None:
        asking.exchange.fetch(BLOB, 1, 0, nobody, done, 1000.0)
        asking.exchange.close()
        asking.exchange.close()

    assert isinstance(asking.run(fetch_and_close), NotEnoughFragments)
    with pytest.raises(MillraceError, match="is closed"):
        asking.exchange.fetch(BLOB, 1, 0, nobody, print)


class Stranger:
    """Speaks to an exchange in raw frames."""

    def __init__(self, context: zmq.Context[Any], address: Address) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.connect(address.ipc)

    def ask(self, *frames: bytes) -> Any:
        self.socket.send_multipart(frames)
        assert self.socket.poll(PATIENT * 1000)
        return read_fragment_answer(self.socket.recv_multipart())[0]


@pytest.fixture
def stranger(context: zmq.Context[Any], workers: list[FakeWorker]) -> Iterator[Stranger]:
    stranger = Stranger(context, workers[1].exchange.endpoints)
    yield stranger
    stranger.socket.close(linger=0)


def test_malformed_frames_are_counted_and_dropped(stranger: Stranger, workers: list[FakeWorker]) -> None:
    head = Head.of(cut(BLOB, b"abc", 1, 0)[0])
    bad = [[b""], [b"\xc1"], [encode([99, 1])], [encode(Put(1, head, 0))], [encode(Get(1, BLOB, 0, 0)), b"?"],
           [encode(Put(1, head, 0)), b"abc", b"more"], [encode([2, 1, "", 0, 0])], [encode([2, 1, BLOB, -1, 0])],
           [encode([2, 1, BLOB, 0, 2**60])], [encode(Accepted(1, True))], [encode(Nothing(1))]]
    for frames in bad:
        stranger.socket.send_multipart(frames)
    assert isinstance(stranger.ask(encode(Get(5, BLOB, 0, 0))), Nothing)
    assert workers[1].exchange.malformed == len(bad)
    assert workers[0].save(b"abc", 1, 0, holders_of(workers)[:1]) == 1


def test_parts_that_do_not_fit_are_refused(stranger: Stranger, workers: list[FakeWorker]) -> None:
    fragment = cut(BLOB, DATA, 1, 0)[0]
    head, payload = Head.of(fragment), bytes(fragment.payload)
    first, second = payload[:PART_BYTES], payload[PART_BYTES : 2 * PART_BYTES]
    wrong = [(head, PART_BYTES, second),  # not from the beginning
             (Head(BLOB, 1, 1, 0, 3, 0, 0), 0, b"abc"),  # no such index
             (Head(BLOB, 0, 0, 0, 3, 0, 0), 0, b"abc"),  # no such shape
             (Head("words", 0, 1, 0, 3, 0, 0), 0, b"abc"),  # not the name of a blob
             (Head(BLOB, 0, 1, 0, 2**40, 0, 0), 0, first),  # no room
             (Head(BLOB, 0, 1, 0, 3, 0, 0), 0, b"abc"),  # wrong CRC
             (Head(BLOB, 0, 1, 0, 3, 0, 0), 0, b"abcd")]
    for number, (header, offset, part) in enumerate(wrong):
        assert stranger.ask(encode(Put(number, header, offset)), part) == Accepted(number, False)
    assert stranger.ask(encode(Put(20, head, 0)), first) == Accepted(20, True)
    assert stranger.ask(encode(Put(21, head, 2 * PART_BYTES)), second) == Accepted(21, False)
    assert stranger.ask(encode(Put(22, head, PART_BYTES)), second) == Accepted(22, False)
    assert workers[1].held() == []
    assert workers[1].exchange.malformed == 0


def test_other_messages_are_answered(stranger: Stranger) -> None:
    assert stranger.ask(encode(Keep(1, "words/count/0", []))) == Accepted(1, True)
    assert stranger.ask(encode(Discard(2, "words"))) == Accepted(2, True)


class Liar:
    """A holder that answers each request with the result of a function."""

    def __init__(self, context: zmq.Context[Any], path: Path, reply: Callable[[int, Get], list[bytes]]) -> None:
        self._socket = context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{path}")
        self.address = Address(f"ipc://{path}", "", BOOT)
        self._reply, self._ended = reply, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._socket.poll(20):
                peer, frame = self._socket.recv_multipart()
                get = msgspec.msgpack.decode(frame, type=Get)
                self._socket.send_multipart([peer, *self._reply(get.request, get)])
        self._socket.close(linger=0)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


TRUE = cut(BLOB, DATA, 3, 2)[0]
HEAD = Head.of(TRUE)
LIES: dict[str, Callable[[int, Get], list[bytes]]] = {
    "another index": lambda number, get: [encode(Part(number, Head.of(cut(BLOB, DATA, 3, 2)[1]), 0)), b"x"],
    "a short part": lambda number, get: [encode(Part(number, HEAD, 0)), b"x"],
    "another offset": lambda number, get: [encode(Part(number, HEAD, 5)), bytes(TRUE.payload[:PART_BYTES])],
    "a huge blob": lambda number, get: [encode(Part(number, Head(BLOB, 0, 3, 2, 2**47, 0, 0), 0)), bytes(PART_BYTES)],
    "a put's answer": lambda number, get: [encode(Accepted(number, True))],
    "garbage": lambda number, get: [b"\xc1"],
    "an answer to something else": lambda number, get: [encode(Nothing(number + 1000))],
    "the same part for ever": lambda number, get: [encode(Part(number, HEAD, 0)), bytes(TRUE.payload[:PART_BYTES])],
    "another mind": lambda number, get: [encode(Part(number, Head(BLOB, 0, 0, 0, 9, 0, 0) if get.offset else HEAD, get.offset)),
                                         bytes(TRUE.payload[get.offset : get.offset + PART_BYTES])],
    "zeros": lambda number, get: [encode(Part(number, HEAD, get.offset)),
                                  bytes(len(TRUE.payload[get.offset : get.offset + PART_BYTES]))],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_holder_that_lies_does_no_harm(lie: str, context: zmq.Context[Any], start: Callable[..., FakeWorker],
                                         workers: list[FakeWorker], tmp_path: Path) -> None:
    holders, asking = list(holders_of(workers)), start(silence=SHORT)  # what is no answer to the request is silence
    assert workers[0].save(DATA, 3, 2, holders) == 5
    liar = Liar(context, tmp_path / "liar.ipc", LIES[lie])
    try:
        assert asking.fetch(3, 2, [(0, liar.address), *holders[1:]]) == DATA
        error = asking.fetch(3, 2, [(0, liar.address), *holders[1:3]])
        assert isinstance(error, NotEnoughFragments) and "received" in str(error)
    finally:
        liar.close()

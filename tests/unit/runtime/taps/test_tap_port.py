"""A worker's port for taps, with a real socket and no worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from millrace.errors import MillraceError
from millrace.runtime.taps import client as tap_link
from millrace.runtime.taps import reader as tap_reader
from millrace.runtime.taps.client import HasAnotherReader, NoAnswer, TapLinks
from millrace.runtime.taps.messages import Seen, TapPlace
from millrace.runtime.taps.port import BYTES_PER_ANSWER, ROWS_PER_ANSWER, TapPort, open_here, port_here
from millrace.runtime.taps.reader import RowsGone, TapAddress, TapRange, look_at, read_range
from millrace.runtime.taps.rows import TapRows
from millrace.runtime.wire.transport import Gate, Keys, boot_id


class Loop(threading.Thread):
    """The part of a worker's loop that serves its taps."""

    def __init__(self, directory: Path, bind: str = "") -> None:
        super().__init__(daemon=True)
        self.context, self.keys, self._ended = zmq.Context(), Keys.make(), threading.Event()
        self.gate = Gate(self.context, self.keys) if bind else None
        self.port = TapPort(self.context, directory / "t0.ipc", bind, self.keys, boot_id())
        self.rows = TapRows()
        self._poller = zmq.Poller()
        self.port.listen_with(self._poller)
        self.place = self.port.show(self.rows)

    def run(self) -> None:
        while not self._ended.is_set():
            self.port.answer(dict(self._poller.poll(20)))

    def end(self) -> None:
        self._ended.set()
        self.join()
        self.port.close()
        if self.gate is not None:
            self.gate.close()
        self.context.destroy(linger=0)


@pytest.fixture(params=["", "127.0.0.1"], ids=["ipc", "tcp"])
def loop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Loop]:
    tmp_path.chmod(0o700)
    loop = Loop(tmp_path, request.param)
    if request.param:  # as another host would see it
        loop.place = TapPlace(loop.place.name, "ipc:///nowhere", loop.place.tcp, "another kernel")
    loop.start()
    yield loop
    loop.end()


def test_rows_are_read_and_committed(loop: Loop) -> None:
    for number in range(ROWS_PER_ANSWER + 3):
        loop.rows.add_readable((number, "text", 2**70), None)
    with TapLinks(loop.keys) as links:
        assert links.look(loop.place) == Seen(0, ROWS_PER_ANSWER + 3)
        start, rows = links.read(loop.place, 2, 2**62) or (-1, [])
        assert (start, len(rows), rows[0]) == (2, ROWS_PER_ANSWER, (2, "text", 2**70))
        assert links.look(loop.place, ROWS_PER_ANSWER) == Seen(ROWS_PER_ANSWER, ROWS_PER_ANSWER + 3)
        assert links.read(loop.place, 0, ROWS_PER_ANSWER + 1) == (ROWS_PER_ANSWER, [(ROWS_PER_ANSWER, "text", 2**70)])
    assert len(loop.rows.take_done()) == ROWS_PER_ANSWER


@pytest.fixture
def address(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> TapAddress:
    """Return the address of a tap whose only task is at the port."""
    monkeypatch.setattr(tap_reader, "ask_places", lambda *_: {0: loop.place})
    return TapAddress("", loop.keys, "t", "out", False, "one")


def test_rows_that_another_reader_commits_meanwhile_are_an_error(loop: Loop, address: TapAddress) -> None:
    count = 4 * ROWS_PER_ANSWER
    for number in range(count):
        loop.rows.add_readable((number,), None)
    pieces = read_range(address, TapRange(0, loop.place.name, 0, count))
    assert len(next(pieces)) == ROWS_PER_ANSWER
    with TapLinks(loop.keys) as links:
        links.look(loop.place, ROWS_PER_ANSWER)
        assert len(next(pieces)) == ROWS_PER_ANSWER, "what is still to be read is there"
        links.look(loop.place, 3 * ROWS_PER_ANSWER)
    first, last = 2 * ROWS_PER_ANSWER, 3 * ROWS_PER_ANSWER - 1
    with pytest.raises(RowsGone, match=f"rows {first} to {last} of task 0 of t.out were committed by another reader"):
        next(pieces)


def test_a_range_of_which_nothing_is_left_is_an_error(loop: Loop, address: TapAddress) -> None:
    for number in range(5):
        loop.rows.add_readable((number,), None)
    loop.rows.commit(5)
    with pytest.raises(RowsGone, match="rows 1 to 2 of task 0"):
        list(read_range(address, TapRange(0, loop.place.name, 1, 3)))


def test_a_master_that_was_restarted_at_the_same_address_is_asked_with_its_new_keys(
        loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    former = TapAddress("tcp://127.0.0.1:1", Keys.make(), "t", "out", True, "one")
    asked = list[Keys]()

    def ask(master: str, keys: Keys, *_: str) -> dict[int, TapPlace]:
        assert keys not in asked, "asked again with keys that were refused"
        asked.append(keys)
        if keys != loop.keys:
            raise NoAnswer("it has other keys")
        return {0: loop.place}

    monkeypatch.setattr(tap_reader, "ask_places", ask)
    for number in range(3):
        loop.rows.add_readable((number,), None)
    pieces = read_range(former, TapRange(0, loop.place.name, 0, 3), lambda: replace(former, keys=loop.keys, reader=""))
    assert [row for piece in pieces for row in piece] == [(0,), (1,), (2,)]


def test_large_rows_come_in_small_answers(loop: Loop, address: TapAddress) -> None:
    size, count = BYTES_PER_ANSWER // 4, 10
    for number in range(count):
        loop.rows.add_readable((number, bytes(size)), None)
    loop.rows.add_readable((count, bytes(2 * BYTES_PER_ANSWER)), None)
    pieces = list(read_range(address, TapRange(0, loop.place.name, 0, count + 1)))
    assert [[number for number, _ in piece] for piece in pieces] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9], [10]]
    assert len(pieces[-1][0][1]) == 2 * BYTES_PER_ANSWER


def test_one_reader_at_a_time(loop: Loop) -> None:
    loop.rows.add_readable((0,), None)
    places = {0: loop.place}
    with TapLinks(loop.keys) as links:
        assert look_at(links, places, {}, "1") == look_at(links, places, {}, "2") == {0: (loop.place.name, Seen(0, 1))}
        with pytest.raises(HasAnotherReader, match="it has another reader, which started later"):
            look_at(links, places, {"0": {"tap": loop.place.name, "next": 1}}, "1")
        assert links.look(loop.place) == Seen(0, 1), "nothing was committed, and who just looks may"
        assert look_at(links, places, {"0": {"tap": loop.place.name, "next": 1}}, "2") == {0: (loop.place.name, Seen(1, 1))}


def test_rows_of_another_name_are_not_there(loop: Loop) -> None:
    with TapLinks(loop.keys) as links:
        other = TapPlace("other", loop.place.ipc, loop.place.tcp, loop.place.boot)
        assert links.look(other) is None
        assert links.read(other, 0, 1) is None
        loop.port.hide(TapRows(loop.rows.name))  # of the same name, and not those that are shown
        assert links.look(loop.place) == Seen(0, 0)
        loop.port.hide(loop.rows)
        assert links.look(loop.place) is None


def test_an_invalid_request_is_dropped(loop: Loop) -> None:
    with TapLinks(loop.keys) as links:
        socket = links._sockets[loop.place] = links._connected(loop.place)  # `look` asks after them, on the same socket
        socket.send(b"what?")
        socket.send_multipart([b"", b"\xc1" * 100])
        assert links.look(loop.place) == Seen(0, 0)
        assert not socket.poll(0)
    assert loop.port.malformed == 2


def test_silence_is_reported_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_link, "ANSWER_SECONDS", 0.05)
    with TapLinks(Keys.make()) as links, pytest.raises(NoAnswer, match="does not answer within"):
        links.look(TapPlace("gone", f"ipc://{tmp_path}/gone.ipc", "", boot_id()))


def test_another_host_without_a_port_is_reported() -> None:
    with TapLinks(Keys.make()) as links, pytest.raises(MillraceError, match=r"no tcp port.*`bind`"):
        links.look(TapPlace("far", "ipc:///far", "", "another kernel"))


def test_a_process_that_is_not_a_worker_has_no_port() -> None:
    open_here(None)
    with pytest.raises(MillraceError, match="worker of the resident engine"):
        port_here()

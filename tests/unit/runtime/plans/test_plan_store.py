"""The plan store: one writer, many readers, several processes, some of which are killed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import lmdb
import pytest

from millrace.control.assignment import Stamp
from millrace.errors import MillraceError
from millrace.runtime.plans.plan_store import KEPT, MAP_SIZE, PART_LIMIT, PlanStore
from support.processes.forked import forked


def part_of(stamp: Stamp) -> bytes:
    """A part that tells its stamp, of a length that differs from one to the next: from bytes to many pages."""
    return str(stamp).encode() * (1 + stamp.revision % 7 * 300)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[PlanStore, PlanStore]]:
    writer, reader = PlanStore(tmp_path / "node", writer=True), PlanStore(tmp_path / "node", writer=False)
    yield writer, reader
    writer.close()
    reader.close()


def test_stamps_are_ordered_by_author_then_revision() -> None:
    assert Stamp(2, 1) > Stamp(1, 99) > Stamp(1, 98)
    assert Stamp.parse(str(Stamp(12, 3))) == Stamp(12, 3)
    with pytest.raises(ValueError):
        Stamp.parse("twelve")


def test_the_newest_is_read(stores: tuple[PlanStore, PlanStore]) -> None:
    writer, reader = stores
    assert reader.newest() is None
    assert writer.write(Stamp(1, 1), b"first")
    assert reader.newest() == (Stamp(1, 1), b"first")
    assert writer.write(Stamp(1, 300), b"")
    assert reader.newest() == writer.newest() == (Stamp(1, 300), b"")
    assert reader.newer_than(None) == reader.newer_than(Stamp(1, 1)) == (Stamp(1, 300), b"")
    assert reader.newer_than(Stamp(1, 300)) is None
    assert reader.newer_than(Stamp(2, 0)) is None


@pytest.mark.parametrize("stamp", [Stamp(5, 5), Stamp(5, 4), Stamp(4, 99)])
def test_a_plan_that_is_not_newer_changes_nothing(stores: tuple[PlanStore, PlanStore], stamp: Stamp) -> None:
    writer, reader = stores
    assert writer.write(Stamp(5, 5), b"kept")
    assert not writer.write(stamp, b"late")
    assert reader.newest() == (Stamp(5, 5), b"kept")


def test_only_the_last_ones_are_kept(stores: tuple[PlanStore, PlanStore], tmp_path: Path) -> None:
    writer, reader = stores
    for revision in range(1, KEPT + 4):
        assert writer.write(Stamp(1, revision), part_of(Stamp(1, revision)))
    writer.close()
    reader.close()
    with lmdb.open(str(tmp_path / "node"), map_size=MAP_SIZE) as environment, environment.begin() as transaction:
        revisions = [int.from_bytes(key[8:], "big") for key, _ in transaction.cursor()]
    assert revisions == list(range(4, KEPT + 4))


def test_the_file_takes_up_only_what_is_in_it(stores: tuple[PlanStore, PlanStore], tmp_path: Path) -> None:
    for revision in range(100):
        assert stores[0].write(Stamp(1, revision), b"x" * 10_000)
    status = (tmp_path / "node" / "data.mdb").stat()
    assert status.st_size == MAP_SIZE
    assert status.st_blocks * 512 < 2 << 20


def test_plans_survive_a_restart(tmp_path: Path) -> None:
    for revision in range(3):
        writer = PlanStore(tmp_path, writer=True)
        assert writer.write(Stamp(1, revision), part_of(Stamp(1, revision)))
        assert not writer.write(Stamp(1, revision), b"again")
        writer.close()
    reader = PlanStore(tmp_path, writer=False)
    assert reader.newest() == (Stamp(1, 2), part_of(Stamp(1, 2)))
    reader.close()


def test_a_large_part_fits_time_and_again(stores: tuple[PlanStore, PlanStore]) -> None:
    writer, reader = stores
    for revision in range(2 * KEPT):
        assert writer.write(Stamp(1, revision), bytes([revision]) * PART_LIMIT)
    newest = reader.newest()
    assert newest is not None and newest[1] == bytes([2 * KEPT - 1]) * PART_LIMIT


def test_wrong_use_is_refused(stores: tuple[PlanStore, PlanStore], tmp_path: Path) -> None:
    writer, reader = stores
    with pytest.raises(MillraceError, match=f"{PART_LIMIT + 1} bytes does not fit"):
        writer.write(Stamp(1, 1), bytes(PART_LIMIT + 1))
    with pytest.raises(MillraceError, match="opened for reading"):
        reader.write(Stamp(1, 1), b"")
    reader.close()
    reader.close()
    with pytest.raises(MillraceError, match="was closed"):
        reader.newest()
    (tmp_path / "file").touch()
    with pytest.raises(MillraceError, match="Is it a directory of this user"):
        PlanStore(tmp_path / "file", writer=True).newest()


def test_the_stores_of_one_process_share_the_environment(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "node")
    writer, reader = PlanStore(tmp_path / "node", writer=True), PlanStore(tmp_path / "link", writer=False)
    writer.write(Stamp(1, 1), b"part")
    writer.close()
    assert reader.newest() == (Stamp(1, 1), b"part")
    reader.close()
    lmdb.open(str(tmp_path / "node"), map_size=MAP_SIZE).close()  # refused while anyone here has it open


# --- damage ---------------------------------------------------------------------------------------------------------

def flip_last_byte(directory: Path, revision: int) -> None:
    key = (1).to_bytes(8, "big") + revision.to_bytes(8, "big")
    with lmdb.open(str(directory), map_size=MAP_SIZE) as environment, environment.begin(write=True) as transaction:
        value = bytearray(transaction.get(key))
        value[-1] ^= 1
        transaction.put(key, bytes(value))


def test_a_record_that_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    writer = PlanStore(tmp_path, writer=True)
    for revision in range(1, 5):
        writer.write(Stamp(1, revision), part_of(Stamp(1, revision)))
    writer.close()
    flip_last_byte(tmp_path, 4)
    flip_last_byte(tmp_path, 3)
    writer = PlanStore(tmp_path, writer=True)
    assert writer.newest() == (Stamp(1, 2), part_of(Stamp(1, 2)))
    assert writer.newer_than(Stamp(1, 2)) is None
    assert writer.write(Stamp(1, 3), b"again")  # the damaged ones do not count, and are gone
    assert writer.newest() == (Stamp(1, 3), b"again")
    writer.close()


DAMAGES = {
    "cut after the header": lambda path: os.truncate(path, 8192),
    "cut by a page": lambda path: os.truncate(path, MAP_SIZE - 4096),
    "cut inside the header": lambda path: os.truncate(path, 100),
    "not LMDB's": lambda path: path.write_bytes(b"something else" * 1000),
    "empty": lambda path: os.truncate(path, 0),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_writer_begins_a_new_file_and_readers_follow(stores: tuple[PlanStore, PlanStore], tmp_path: Path,
                                                         damage: str) -> None:
    writer, reader = stores
    writer.write(Stamp(1, 7), b"x" * 100_000)
    DAMAGES[damage](tmp_path / "node" / "data.mdb")
    assert reader.newest() is None
    assert writer.newest() is None
    assert writer.write(Stamp(1, 7), b"from the coordination store")
    assert reader.newest() == (Stamp(1, 7), b"from the coordination store")


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_done_while_nobody_looked(tmp_path: Path, damage: str) -> None:
    writer = PlanStore(tmp_path, writer=True)
    writer.write(Stamp(1, 7), b"x" * 100_000)
    writer.close()
    DAMAGES[damage](tmp_path / "data.mdb")
    reader = PlanStore(tmp_path, writer=False)
    assert reader.newest() is None
    writer = PlanStore(tmp_path, writer=True)
    assert writer.write(Stamp(1, 1), b"new")
    assert reader.newest() == (Stamp(1, 1), b"new")
    writer.close()
    reader.close()


def test_a_reader_says_once_that_the_file_is_damaged(stores: tuple[PlanStore, PlanStore], tmp_path: Path,
                                                     caplog: pytest.LogCaptureFixture) -> None:
    writer, reader = stores
    writer.write(Stamp(1, 1), b"part")
    os.truncate(tmp_path / "node" / "data.mdb", 8192)
    assert [reader.newest() for _ in range(5)] == [None] * 5
    assert len([record for record in caplog.records if "damaged" in record.message]) == 1


# --- several processes ----------------------------------------------------------------------------------------------

def write_for_ever(directory: Path, author: int, told: Connection) -> None:
    writer = PlanStore(directory, writer=True)
    revision = 0
    while True:
        revision += 1
        assert writer.write(Stamp(author, revision), part_of(Stamp(author, revision)))
        told.send(revision)


@pytest.mark.parametrize("writes", [1, 5, 40])
def test_a_writer_that_is_killed_leaves_a_whole_newest_record(tmp_path: Path, writes: int) -> None:
    reader = PlanStore(tmp_path, writer=False)
    for author in (1, 2, 3):  # each takes over what the one before left
        here, there = multiprocessing.Pipe(duplex=False)
        process = forked(write_for_ever, tmp_path, author, there)
        there.close()
        told = [here.recv() for _ in range(writes)][-1]
        process.kill()
        process.join()
        newest = reader.newest()
        assert newest is not None
        stamp, part = newest
        assert stamp >= Stamp(author, told)
        assert part == part_of(stamp)
    reader.close()


def read_until(directory: Path, last: Stamp, told: Connection) -> None:
    reader = PlanStore(directory, writer=False)
    told.send(reader.newest())
    seen: list[tuple[Stamp, bool]] = [(Stamp(0, 0), True)]
    while seen[-1][0] < last:
        newest = reader.newest()
        if newest is not None and newest[0] != seen[-1][0]:
            seen.append((newest[0], newest[1] == part_of(newest[0])))
    told.send(seen)


def test_readers_in_other_processes_see_whole_parts_with_rising_stamps(tmp_path: Path) -> None:
    last = Stamp(2, 150)
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    processes = [forked(read_until, tmp_path / "node", last, there) for _, there in pipes]
    assert [here.recv() for here, _ in pipes] == [None, None]  # they were there before the writer
    writer = PlanStore(tmp_path / "node", writer=True)
    for stamp in (Stamp(author, revision) for author in (1, 2) for revision in range(1, 151)):
        assert writer.write(stamp, part_of(stamp))
    for (here, _), process in zip(pipes, processes):
        seen = here.recv()
        assert all(earlier < later for (earlier, _), (later, _) in itertools.pairwise(seen))
        assert all(whole for _, whole in seen)
        assert seen[-1][0] == last
        process.join()
        assert process.exitcode == 0
    writer.close()


def read_on_demand(directory: Path, asked: Connection) -> None:
    reader = PlanStore(directory, writer=False)
    while asked.recv():
        asked.send(reader.newest())


def test_a_reader_in_another_process_follows_to_the_new_file(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    process = forked(read_on_demand, tmp_path, there)
    writer = PlanStore(tmp_path, writer=True)
    writer.write(Stamp(1, 1), b"x" * 50_000)
    here.send(True)
    assert here.recv() == (Stamp(1, 1), b"x" * 50_000)
    os.truncate(tmp_path / "data.mdb", 8192)
    here.send(True)
    assert here.recv() is None
    writer.write(Stamp(1, 1), b"new")
    here.send(True)
    assert here.recv() == (Stamp(1, 1), b"new")
    here.send(False)
    process.join()
    assert process.exitcode == 0
    writer.close()


def stay_in_a_transaction(directory: Path, told: Connection) -> None:
    reader = PlanStore(directory, writer=False)
    with reader._of_this_process().open() as environment, environment.begin():
        told.send(True)
        signal.pause()


def test_the_slot_of_a_reader_that_was_killed_is_cleared(tmp_path: Path) -> None:
    writer = PlanStore(tmp_path, writer=True)
    writer.write(Stamp(1, 1), b"part")
    here, there = multiprocessing.Pipe(duplex=False)
    process = forked(stay_in_a_transaction, tmp_path, there)
    there.close()  # so that `recv` raises should the process die
    assert here.recv()
    with writer._of_this_process().open() as environment:
        assert str(process.pid) in environment.readers()
        process.kill()
        process.join()
        assert writer.write(Stamp(1, 2), b"part")
        assert str(process.pid) not in environment.readers()
    writer.close()


def test_a_store_that_came_through_a_fork_opens_its_own(stores: tuple[PlanStore, PlanStore]) -> None:
    writer, reader = stores
    writer.write(Stamp(1, 1), b"of the parent")
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        good = reader.newest() == (Stamp(1, 1), b"of the parent") and writer.write(Stamp(1, 2), b"of the child")
        good = good and reader._of_this_process() is writer._of_this_process() and reader._of_this_process().pid == os.getpid()
        reader.close()
        writer.close()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reader.newest() == (Stamp(1, 2), b"of the child")
    assert writer.write(Stamp(1, 3), b"of the parent")
    assert reader.newest() == (Stamp(1, 3), b"of the parent")


def test_forks_while_another_thread_reads_and_writes(stores: tuple[PlanStore, PlanStore]) -> None:
    writer, reader = stores
    ended, wrong = threading.Event(), []

    def work() -> None:
        revision = 0
        while not ended.is_set():
            revision += 1
            writer.write(Stamp(1, revision), part_of(Stamp(1, revision)))
            if reader.newest() != (Stamp(1, revision), part_of(Stamp(1, revision))):
                wrong.append(revision)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            newest = reader.newest()
            os._exit(0 if newest is None or newest[1] == part_of(newest[0]) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ended.set()
    thread.join()
    assert not wrong

"""The plan store: one writer, many readers, several processes, some of which are killed or stopped."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from millrace.control.assignment import Stamp
from millrace.errors import MillraceError
from millrace.runtime.plans import plan_store
from millrace.runtime.plans.plan_store import KEPT, PlanStore
from support.processes.forked import forked


def part_of(stamp: Stamp) -> bytes:
    """A part that tells its stamp, of a length that differs from one to the next: from bytes to many pages."""
    return str(stamp).encode() * (1 + stamp.revision % 7 * 300)


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore(tmp_path / "node")


def versions(store: PlanStore) -> list[Path]:
    """The files of all versions, the oldest first."""
    return sorted(store.directory.glob("plan-*"))


def test_stamps_are_ordered_by_author_then_revision() -> None:
    assert Stamp(2, 1) > Stamp(1, 99) > Stamp(1, 98)
    assert Stamp.parse(str(Stamp(12, 3))) == Stamp(12, 3)
    with pytest.raises(ValueError):
        Stamp.parse("twelve")


def test_the_newest_is_read(store: PlanStore) -> None:
    assert store.newest() is None
    assert store.write(Stamp(1, 1), b"first")
    assert store.newest() == (Stamp(1, 1), b"first")
    assert store.write(Stamp(1, 300), b"")
    assert store.newest() == (Stamp(1, 300), b"")
    assert store.newer_than(None) == store.newer_than(Stamp(1, 1)) == (Stamp(1, 300), b"")
    assert store.newer_than(Stamp(1, 300)) is None
    assert store.newer_than(Stamp(2, 0)) is None


@pytest.mark.parametrize("stamp", [Stamp(5, 5), Stamp(5, 4), Stamp(4, 99)])
def test_a_plan_that_is_not_newer_changes_nothing(store: PlanStore, stamp: Stamp) -> None:
    assert store.write(Stamp(5, 5), b"kept")
    assert not store.write(stamp, b"late")
    assert store.newest() == (Stamp(5, 5), b"kept")


def test_only_the_last_ones_are_kept(store: PlanStore) -> None:
    for revision in range(1, KEPT + 4):
        assert store.write(Stamp(1, revision), part_of(Stamp(1, revision)))
    assert [int(path.name[-20:]) for path in versions(store)] == list(range(4, KEPT + 4))


def test_the_files_can_be_read_by_their_user_only(store: PlanStore) -> None:
    store.write(Stamp(1, 1), b"part")
    assert [path.stat().st_mode & 0o777 for path in versions(store)] == [0o600]
    assert store.directory.stat().st_mode & 0o777 == 0o700


def test_the_largest_stamp_has_a_file_name(store: PlanStore) -> None:
    largest = Stamp(2**64 - 1, 2**64 - 1)
    assert store.write(Stamp(2**64 - 1, 9), b"before")
    assert store.write(largest, b"part")
    assert store.newest() == (largest, b"part")


def test_other_files_of_the_directory_are_left_alone(store: PlanStore) -> None:
    store.directory.mkdir()
    others = [store.directory / name for name in ("plan.ipc", "plan-1", "worker-3.ipc")]
    for path in others:
        path.touch()
    for revision in range(2 * KEPT):
        assert store.write(Stamp(1, revision), b"part")
    assert all(path.exists() for path in others)


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = PlanStore(tmp_path / "file")
    for use in (store.newest, lambda: store.write(Stamp(1, 1), b"part")):
        with pytest.raises(MillraceError, match="Is it a directory of this user"):
            use()


def test_a_write_that_fails_leaves_nothing(store: PlanStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise OSError("no room")

    store.write(Stamp(1, 1), b"part")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(MillraceError, match="no room"):
            store.write(Stamp(1, 2), b"part")
    assert len(versions(store)) == 1
    assert store.write(Stamp(1, 2), b"again")
    assert store.newest() == (Stamp(1, 2), b"again")


# --- damage ---------------------------------------------------------------------------------------------------------

def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip_last_byte,
    "cut": lambda path: os.truncate(path, 50),
    "cut inside the checksum": lambda path: os.truncate(path, 3),
    "empty": lambda path: os.truncate(path, 0),
    "another version's": lambda path: path.write_bytes(path.with_name(path.name[:-1] + "1").read_bytes()),
    "gone": lambda path: path.unlink(),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("nothing")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_version_is_passed_over_and_written_again(store: PlanStore, damage: str) -> None:
    for revision in range(1, 5):
        store.write(Stamp(1, revision), part_of(Stamp(1, revision)))
    for path in versions(store)[2:]:
        DAMAGES[damage](path)
    assert store.newest() == (Stamp(1, 2), part_of(Stamp(1, 2)))
    assert store.newer_than(Stamp(1, 2)) is None
    for revision in (3, 4):
        assert store.write(Stamp(1, revision), b"from the coordination store")
        assert store.newest() == (Stamp(1, revision), b"from the coordination store")


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage != "another version's"])
def test_a_store_without_an_intact_version_is_empty(store: PlanStore, damage: str) -> None:
    store.write(Stamp(1, 7), b"x" * 100_000)
    DAMAGES[damage](versions(store)[0])
    assert store.newest() is None
    assert store.write(Stamp(1, 1), b"new")
    assert store.newest() == (Stamp(1, 1), b"new")


# --- several processes ----------------------------------------------------------------------------------------------

def write_for_ever(directory: Path, author: int, told: Connection) -> None:
    writer = PlanStore(directory)
    revision = 0
    while True:
        revision += 1
        assert writer.write(Stamp(author, revision), part_of(Stamp(author, revision)))
        told.send(revision)


@pytest.mark.parametrize("writes", [1, 5, 40])
def test_a_writer_that_is_killed_leaves_a_whole_newest_record(tmp_path: Path, writes: int) -> None:
    reader = PlanStore(tmp_path)
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


def read_until(directory: Path, last: Stamp, told: Connection) -> None:
    reader = PlanStore(directory)
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
    writer = PlanStore(tmp_path / "node")
    for stamp in (Stamp(author, revision) for author in (1, 2) for revision in range(1, 151)):
        assert writer.write(stamp, part_of(stamp))
    for (here, _), process in zip(pipes, processes):
        seen = here.recv()
        assert all(earlier < later for (earlier, _), (later, _) in itertools.pairwise(seen))
        assert all(whole for _, whole in seen)
        assert seen[-1][0] == last
        process.join()
        assert process.exitcode == 0


def stopped_writer(directory: Path, stamp: Stamp) -> int:
    """The id of a child process that stopped itself in the middle of writing a version."""
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        checksum = plan_store._checksum

        def stop(stamp: Stamp, part: bytes) -> int:
            os.kill(os.getpid(), signal.SIGSTOP)
            return checksum(stamp, part)

        plan_store._checksum = stop
        os._exit(0 if PlanStore(directory).write(stamp, part_of(stamp)) else 1)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    return child


def test_a_writer_that_is_stopped_while_it_writes_blocks_nobody(store: PlanStore) -> None:
    child = stopped_writer(store.directory, Stamp(1, 1))
    assert store.newest() is None
    assert store.write(Stamp(1, 1), b"by the next agent") and store.write(Stamp(1, 2), b"newer")
    os.kill(child, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.newest() == (Stamp(1, 2), b"newer")


def test_what_a_killed_writer_left_unfinished_is_removed(store: PlanStore) -> None:
    child = stopped_writer(store.directory, Stamp(1, 1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(versions(store)) == 1 and store.newest() is None
    for revision in range(1, KEPT + 2):
        assert store.write(Stamp(1, revision), b"part")
    assert len(versions(store)) == KEPT

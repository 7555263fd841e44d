"""Local copies of snapshots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.config import CHECKPOINTS, LOCAL_COPIES
from millrace.runtime.checkpoints.local_copies import LocalCopies, limit_of
from millrace.state.checkpoint import PieceRef, blob_name, pack

LIMIT = 10_000


def blob(task: int = 0, wave: int = 1) -> str:
    return blob_name("words", "count", task, 7, wave)


def add(copies: LocalCopies, name: str, contents: dict[int, bytes]) -> dict[int, PieceRef]:
    parts, refs = pack({group: (True, content) for group, content in contents.items()}, name)
    copies.add(name, parts)
    return refs


def test_pieces_of_a_copied_blob_are_read_back(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path / "copies", LIMIT)
    refs = add(copies, blob(), {1: b"one", 5: b"five"})
    assert copies.read([refs[5], refs[1]]) == {refs[5]: b"five", refs[1]: b"one"}


def test_nothing_is_found_of_a_blob_without_a_copy(tmp_path: Path) -> None:
    _, refs = pack({1: (True, b"one")}, blob())
    assert LocalCopies(tmp_path / "copies", LIMIT).read([refs[1]]) == {}


def test_pieces_are_copied_one_by_one(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, LIMIT)
    _, refs = pack({1: (True, b"one"), 2: (True, b"two"), 3: (True, b"three")}, blob())
    copies.add_pieces({refs[3]: b"three"})
    assert copies.read(list(refs.values())) == {refs[3]: b"three"}
    copies.add_pieces({refs[1]: b"one"})
    assert copies.read(list(refs.values())) == {refs[3]: b"three", refs[1]: b"one"}


def test_damaged_and_truncated_pieces_are_not_returned(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, LIMIT)
    refs = add(copies, blob(), {1: b"one", 2: b"two", 3: b"three"})
    path = tmp_path / blob()
    path.write_bytes(b"One" + path.read_bytes()[3:-1])
    assert copies.read(list(refs.values())) == {refs[2]: b"two"}


def test_copies_that_someone_deleted_are_not_returned(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, LIMIT)
    refs = add(copies, blob(), {1: b"one"})
    (tmp_path / blob()).unlink()
    assert copies.read([refs[1]]) == {}


def test_copies_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        add(LocalCopies(tmp_path, LIMIT), blob(), {1: b"one"})
    finally:
        os.umask(before)
    assert (tmp_path / blob()).stat().st_mode & 0o777 == 0o600


def test_the_oldest_copies_make_room(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, 100)
    refs = [add(copies, blob(wave=wave), {1: bytes([wave]) * 40})[1] for wave in (1, 2, 3)]
    assert list(copies.read(refs)) == refs[1:]
    assert [path.name for path in sorted((tmp_path / blob()).parent.iterdir())] == [blob(wave=wave)[-41:] for wave in (2, 3)]


def test_the_next_process_of_the_slot_finds_the_copies_and_their_age(tmp_path: Path) -> None:
    refs = [add(LocalCopies(tmp_path, 100), blob(wave=wave), {1: bytes([wave]) * 40})[1] for wave in (1, 2)]
    for wave, at in ((1, 2000), (2, 1000)):
        os.utime(tmp_path / blob(wave=wave), (at, at))
    copies = LocalCopies(tmp_path, 100)
    assert set(copies.read(refs)) == set(refs)
    add(copies, blob(wave=3), {1: b"3" * 40})
    assert list(copies.read(refs)) == refs[:1]


def test_copies_of_a_task_that_are_no_longer_needed_are_removed(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, LIMIT)
    refs = {(task, wave): add(copies, blob(task, wave), {1: b"state"})[1] for task in (1, 10) for wave in (1, 2, 3)}
    copies.keep("words/count/1", {blob(1, 2)}, wave=2)  # wave 3 is being prepared
    assert set(copies.read(list(refs.values()))) == {refs[1, 2], refs[1, 3], refs[10, 1], refs[10, 2], refs[10, 3]}


def test_copies_of_a_topology_that_ended_are_removed(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, LIMIT)
    refs = add(copies, blob(), {1: b"one"})
    others = add(copies, blob_name("words2", "count", 0, 7, 1), {1: b"one"})
    copies.drop("words")
    assert list(copies.read([refs[1], others[1]])) == [others[1]]


def test_a_disk_that_refuses_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "words").write_text("a file where a directory should be")
    copies = LocalCopies(tmp_path, LIMIT)
    refs = add(copies, blob(), {1: b"one"})
    assert copies.read([refs[1]]) == {}
    assert f"{blob()} is not copied to {tmp_path}" in caplog.text


def test_copies_are_gone_after_a_stop(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path / "copies-1", LIMIT)
    add(copies, blob(), {1: b"one"})
    copies.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("store", "megabytes", "one_host", "limit"), [
    ("redis://127.0.0.1:1", None, True, 2**30), ("s3://bucket/path", None, True, 2**30), ("/a/directory", None, True, 0),
    ("file:///a/directory", None, True, 0), ("/a/directory", None, False, 2**30), ("file:///a/directory", None, False, 2**30),
    ("/a/directory", 2, True, 2 * 2**20), ("redis://127.0.0.1:1", 0, True, 0), ("/a/directory", 0, False, 0)])
def test_only_stores_across_the_network_are_copied_unless_told(store: str, megabytes: float | None, one_host: bool,
                                                               limit: int) -> None:
    assert limit_of({CHECKPOINTS.key: store, LOCAL_COPIES.key: megabytes}, one_host) == limit

"""Directories of killed processes: swept if their users are dead, and never otherwise."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import pytest

from millrace.runtime import leftovers
from millrace.runtime.leftovers import IN_USE, UsedDirectory, lock_file, sweep
from support.processes.children import in_child


def used(path: Path) -> UsedDirectory:
    directory = UsedDirectory(path)
    (path / "w0.ipc").touch()
    (path / "node-0").mkdir(exist_ok=True)
    (path / "node-0" / "data.mdb").touch()
    return directory


def killed_with(path: Path) -> None:
    """A process uses the directory and is killed."""
    def use() -> None:
        used(path)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(use) == -signal.SIGKILL


def test_the_directory_of_a_killed_process_is_swept(tmp_path: Path) -> None:
    killed_with(tmp_path / "millrace-dead")
    assert (tmp_path / "millrace-dead" / "node-0" / "data.mdb").exists()
    assert sweep(tmp_path) == [tmp_path / "millrace-dead"] and list(tmp_path.iterdir()) == []


def test_a_directory_that_one_of_its_users_still_uses_stays(tmp_path: Path) -> None:
    path = tmp_path / "millrace-shared"
    survivor = used(path)
    killed_with(path)
    assert sweep(tmp_path) == [] and (path / "w0.ipc").exists()
    second = used(path)
    survivor.leave()
    assert path.exists(), "the last one removes it"
    second.leave()
    second.leave()
    assert not path.exists()


def test_nothing_is_swept_that_may_be_someone_s(tmp_path: Path) -> None:
    (tmp_path / "millrace-unmarked").mkdir()  # perhaps just made
    (tmp_path / "millrace-file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / IN_USE).touch()
    (tmp_path / "millrace-link").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    assert sweep(tmp_path) == [] and sorted(tmp_path.rglob("*")) == before


def test_another_user_s_directory_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_with(tmp_path / "millrace-dead")
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert sweep(tmp_path) == []


def test_a_directory_that_is_swept_while_a_process_enters_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flock = tmp_path / "millrace-run", fcntl.flock
    killed_with(path)
    swept: list[list[Path]] = []

    def sweep_first(descriptor: int, how: int) -> None:
        if not swept:
            swept.append([])
            swept[0] = sweep(tmp_path)
        flock(descriptor, how)

    monkeypatch.setattr(leftovers.fcntl, "flock", sweep_first)
    directory = UsedDirectory(path)
    assert swept == [[path]] and (path / IN_USE).exists() and not (path / "w0.ipc").exists()
    assert sweep(tmp_path) == []
    directory.leave()


def test_a_lock_on_a_file_that_its_holder_has_removed_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process opens the file, the first removes it and lets go, a third locks the next file of this name."""
    path, flock = tmp_path / "name.lock", fcntl.flock
    first, third = lock_file(path, fcntl.LOCK_EX), -1

    def after_the_others(descriptor: int, how: int) -> None:
        nonlocal third
        if third < 0:
            path.unlink()
            os.close(first)
            third = os.open(path, os.O_RDWR | os.O_CREAT)
            flock(third, fcntl.LOCK_EX)
        flock(descriptor, how)

    monkeypatch.setattr(leftovers.fcntl, "flock", after_the_others)
    with pytest.raises(BlockingIOError):
        lock_file(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(third)

"""A checkpoint store in a directory: crashes at any point, full disks, no permission."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from millrace.errors import StoreUnreachable
from millrace.runtime.checkpoints import directory as directory_store
from millrace.runtime.checkpoints.directory import UNFINISHED, UNFINISHED_SECONDS, DirectoryStore
from millrace.runtime.checkpoints.remote import RemoteStore
from millrace.runtime.checkpoints.store import open_store
from support.processes.children import in_child
from support.processes.small_disk import mount_small_disk
from support.suites.saved_waves import NEW, OLD

SHORT = NEW[:64]  # a process for each byte


def left_over(store: DirectoryStore) -> list[Path]:
    return list(store.root.rglob(f"{UNFINISHED}*"))


@pytest.mark.parametrize("before", [None, OLD], ids=["new", "again"])
def test_a_crash_at_any_byte_keeps_the_old_blob(directory: DirectoryStore, before: bytes | None) -> None:
    if before is not None:
        directory.write("t/a", [before])
    for size in range(len(SHORT)):

        def write(size: int = size) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel ends the process at exactly this byte of the file
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            directory.write("t/a", [SHORT])

        assert in_child(write) == -signal.SIGXFSZ
        assert [path.stat().st_size for path in left_over(directory)] == [size]
        assert directory.names("t/") == ([] if before is None else ["t/a"])
        if before is not None:
            assert directory.read("t/a") == before
        for path in left_over(directory):
            path.unlink()
    directory.write("t/a", [SHORT])
    assert directory.read("t/a") == SHORT


def test_an_error_at_any_byte_keeps_the_old_blob_and_nothing_else(directory: DirectoryStore) -> None:
    directory.write("t/a", [OLD])
    for size in range(0, len(NEW), 7):

        def write(size: int = size) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            with pytest.raises(StoreUnreachable, match=r"could not write t/a.*Make room"):
                directory.write("t/a", [NEW])

        assert in_child(write) == 0
        assert directory.read("t/a") == OLD and left_over(directory) == []


STEPS = [(Path, "mkdir"), (Path, "open"), (directory_store.os, "fsync"), (Path, "replace"), (directory_store.os, "open"),
         (directory_store.os, "close")]


def crash_at(step: int, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """End this process before or after the step with this number."""
    left = step

    def patched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **kwargs)
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return call

    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, patched(getattr(owner, name)))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("before", [None, OLD], ids=["new", "again"])
def test_a_crash_at_any_step_leaves_the_old_or_the_new_blob(directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch,
                                                            before: bytes | None, after: bool) -> None:
    if before is not None:
        directory.write("t/a", [before])
    seen: list[bytes | None] = []
    for step in range(40):

        def write(step: int = step) -> None:
            another = DirectoryStore(directory.root)
            crash_at(step, after, monkeypatch)
            another.write("t/a", [NEW])

        ended = in_child(write)
        seen.append(directory.read("t/a") if directory.names("t/") else None)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert ended == 0 and len(seen) > 6  # all steps were tried
    new = seen.index(NEW)
    assert set(seen[:new]) == {before} and set(seen[new:]) == {NEW} and 0 < new < len(seen) - 1


def test_a_blob_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        done.append(f"force {os.readlink(f'/proc/self/fd/{descriptor}').removeprefix(str(tmp_path))}")
        fsync(descriptor)

    def noted_replace(path: Path, target: Path) -> Path:
        done.append(f"rename to {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    store = DirectoryStore(tmp_path / "store")
    assert done == ["force "]
    store.write("t/a", [NEW])
    assert [step.partition(UNFINISHED)[0] for step in done] == ["force ", "force /store", "force /store/t/", "rename to a",
                                                               "force /store/t"]
    done.clear()
    store.write("t/b", [NEW])
    assert [step.partition(UNFINISHED)[0] for step in done] == ["force /store/t/", "rename to b", "force /store/t"]


def test_every_directory_above_a_blob_is_synced_in_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(tmp_path)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    DirectoryStore(tmp_path / "made" / "by" / "us").write("t/c/a", [NEW])
    assert forced[:3] == ["", "/made", "/made/by"]
    assert [path for path in forced if UNFINISHED not in path][3:] == ["/made/by/us", "/made/by/us/t", "/made/by/us/t/c"]


@pytest.mark.parametrize(("fails_at", "unsynced"), [(0, "t"), (1, "a"), (2, "a")], ids=["parent", "file", "directory"])
def test_nothing_is_trusted_after_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int,
                                                unsynced: str) -> None:
    """The kernel reports an error once: what was not synced is made again, with another file or directory entry."""
    store, fsync, mkdir, replace = DirectoryStore(tmp_path), os.fsync, Path.mkdir, Path.replace
    calls: list[int] = []
    made: list[str] = []

    def failing(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == fails_at + 1:
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    def noted_mkdir(path: Path, *args: Any, **named: Any) -> None:
        made.extend([] if path.exists() else [path.name])
        mkdir(path, *args, **named)

    def noted_replace(path: Path, target: Path) -> Path:
        made.append(target.name)
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", failing)
    monkeypatch.setattr(Path, "mkdir", noted_mkdir)
    monkeypatch.setattr(Path, "replace", noted_replace)
    with pytest.raises(StoreUnreachable, match="Input/output error"):
        store.write("t/a", [NEW])
    assert left_over(store) == []
    made.clear()
    store.write("t/a", [NEW])
    assert store.read("t/a") == NEW and unsynced in made


def test_only_the_user_can_read_checkpoints(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = DirectoryStore(tmp_path / "made" / "store")
        store.write("t/c/a", [NEW])
        lock = store.lock("t")
        assert lock is not None
        lock.close()
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"made": 0o700, "made/store": 0o700, "made/store/t": 0o700, "made/store/t/c": 0o700,
                     "made/store/t/c/a": 0o600, "made/store/t.lock": 0o600}


@pytest.mark.parametrize("kind", ["directory", "remote"])
def test_old_temporary_files_are_removed(tmp_path: Path, kind: str) -> None:
    store = DirectoryStore(tmp_path) if kind == "directory" else RemoteStore(fs.LocalFileSystem(), str(tmp_path), "test://")
    store.write("t/a", [b"x"])
    young, old = tmp_path / "t" / f"{UNFINISHED}1", tmp_path / "t" / f"{UNFINISHED}2"
    for path in (young, old):
        path.write_bytes(b"half")
    ago = old.stat().st_mtime - UNFINISHED_SECONDS - 1
    os.utime(old, (ago, ago))
    assert store.names("t/") == ["t/a"]
    assert young.exists() and not old.exists()


def test_a_deleted_directory_is_recreated(directory: DirectoryStore) -> None:
    directory.write("t/a", [b"x"])
    (directory.root / "t" / "a").unlink()
    (directory.root / "t").rmdir()
    directory.write("t/a", [b"y"])
    assert directory.read("t/a") == b"y"


def test_a_missing_store_does_not_count_as_empty(directory: DirectoryStore) -> None:
    directory.root.rmdir()
    with pytest.raises(StoreUnreachable, match="mounted or reachable"):
        directory.names("t/")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount_small_disk(tmp_path, "size=1m")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("kind", ["directory", "remote"])
def test_a_full_disk(small_disk: Path, kind: str) -> None:
    store = DirectoryStore(small_disk) if kind == "directory" else RemoteStore(fs.LocalFileSystem(), str(small_disk), "test://")
    store.write("t/a", [OLD])
    for _ in range(3):
        with pytest.raises(StoreUnreachable, match=r"could not write t/a.*No space left.*Make room"):
            store.write("t/a", [bytes(2 << 20)])
    assert store.read("t/a") == OLD and [path.name for path in (small_disk / "t").iterdir()] == ["a"]
    store.write("t/a", [NEW])
    assert store.read("t/a") == NEW


def test_no_permission(directory: DirectoryStore) -> None:
    directory.write("t/a", [OLD])

    def as_somebody_else() -> None:
        if os.geteuid() == 0:
            os.seteuid(65534)
        else:
            (directory.root / "t").chmod(0)
        for call in (lambda: directory.write("t/b", [NEW]), lambda: directory.missing(["t/b"]), lambda: directory.names("t/"),
                     lambda: directory.delete(["t/a"]), lambda: directory.read("t/a")):
            with pytest.raises(StoreUnreachable, match="Let the user that workers and master run as"):
                call()

    directory.root.chmod(0o700)
    ended = in_child(as_somebody_else)
    (directory.root / "t").chmod(0o700)
    assert ended == 0


def test_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnreachable, match="could not be opened"):
        open_store(str(tmp_path / "file"))

"""What every checkpoint store keeps, what a topology's checkpoints on it are worth, and what crashes leave behind."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import resource
import signal
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from debian import free_port
from pyarrow import fs
from redis_server import RedisServer

from millrace.errors import CheckpointMissing, CorruptCheckpoint, MillraceError, NotTheAuthor, StoreInUse, StoreUnreachable
from millrace.runtime import checkpoints as checkpoints_module
from millrace.runtime import directory_store, redis_store, store_lock
from millrace.runtime.checkpoint_store import CheckpointStore, open_store
from millrace.runtime.checkpoints import Checkpoints
from millrace.runtime.directory_store import UNFINISHED, UNFINISHED_SECONDS, DirectoryStore
from millrace.runtime.redis_store import FIELD, NAMES_PREFIX, PREFIX, STEP, UNFINISHED_PREFIX, RedisStore
from millrace.runtime.remote_store import RemoteStore
from millrace.state.checkpoint import Manifest, PieceRef, TaskRecord, blob_name, manifest_name, pack

Open = Callable[[], CheckpointStore]
OLD, NEW = b"old" * 30, b"the new content" * 8


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[Any]:
    """A client of an empty server."""
    import redis

    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    client.close()


@pytest.fixture(params=["directory", "remote", "redis"])
def open_another(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Each call is another process's view of the same store."""
    opened: list[CheckpointStore] = []
    if request.param == "redis":
        request.getfixturevalue("redis_client")
        url = request.getfixturevalue("redis_server").url
    makers: dict[str, Open] = {
        "directory": lambda: open_store(str(tmp_path / "store")),
        "remote": lambda: RemoteStore(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "in/it", "test://in/it"),
        "redis": lambda: open_store(url),
    }

    def another() -> CheckpointStore:
        opened.append(makers[request.param]())
        return opened[-1]

    yield another
    for store in opened:
        store.close()


@pytest.fixture
def store(open_another: Open) -> CheckpointStore:
    return open_another()


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


class TestEveryStore:
    def test_nothing_is_there_at_first(self, store: CheckpointStore) -> None:
        assert store.names("") == store.names("t/") == []
        assert store.missing(["t/a", "t/b"]) == {"t/a", "t/b"}
        assert store.missing([]) == set()
        store.delete([])
        store.delete(["t/a", "t/b"])
        with pytest.raises(CheckpointMissing, match="has no t/a"):
            store.read("t/a")

    def test_what_is_written_is_read_by_others(self, open_another: Open) -> None:
        one, other = open_another(), open_another()
        one.write("t/a", [b"one", memoryview(b"-two-")[1:4], b"", bytearray(b"three")])  # type: ignore[list-item]
        assert other.read("t/a") == b"onetwothree"
        assert other.missing(["t/a", "t/b"]) == {"t/b"}
        one.write("t/a", [b"again"])
        assert other.read("t/a") == b"again"

    @pytest.mark.parametrize("parts", [[], [b""], [b"", b""]])
    def test_nothing_can_be_written(self, store: CheckpointStore, parts: list[bytes]) -> None:
        store.write("t/empty", parts)
        assert store.read("t/empty") == store.read("t/empty", 0, 10) == b""
        assert store.names("t/") == ["t/empty"]
        assert store.missing(["t/empty"]) == set()

    @pytest.mark.parametrize("size", [FIELD - 1, FIELD, FIELD + 1, STEP * FIELD, (STEP + 1) * FIELD + 3])
    def test_any_size_and_any_part_of_it(self, store: CheckpointStore, size: int) -> None:
        content = os.urandom(size)
        cuts = [0, 1, size // 3, size - 1, size]
        store.write("t/large", [content[start:end] for start, end in itertools.pairwise(cuts)])
        assert store.read("t/large") == content
        for start in (0, 1, FIELD - 1, FIELD, size - 1, size, size + 10):
            for length in (0, 1, FIELD, FIELD + 1, size, None):
                assert store.read("t/large", start, length) == content[start : None if length is None else start + length]

    def test_names_are_those_that_begin_so(self, store: CheckpointStore) -> None:
        names = ["t/a", "t/ab", "t/b", "t%2A/a", "tt/a", "u/v/w"]
        for name in names:
            store.write(name, [b"x"])
        assert store.names("") == sorted(names)
        assert store.names("t") == ["t%2A/a", "t/a", "t/ab", "t/b", "tt/a"]
        assert store.names("t/a") == ["t/a", "t/ab"]
        assert store.names("u/") == ["u/v/w"]
        assert store.names("t*") == store.names("[t]/") == store.names("t/a/") == []
        store.delete(["t/a", "t/nothing", "nowhere/at/all", "u/v/w"])
        assert store.names("") == ["t%2A/a", "t/ab", "t/b", "tt/a"]

    @pytest.mark.parametrize("name", ["", "/a", "a/", "../a", "a/../b", "a/./b", "a//b", "a\0", f"t/{UNFINISHED}1", "t.lock"])
    def test_no_name_leads_elsewhere(self, store: CheckpointStore, name: str) -> None:
        for call in (lambda: store.write(name, [b"x"]), lambda: store.read(name)):
            with pytest.raises(MillraceError, match="cannot be a name"):
                call()

    def test_names_of_any_topology(self, store: CheckpointStore) -> None:
        topologies = ["plain", "with/slash", "größe-雪" * 30, ".", "..", "a b\n", "*?[x]"]
        names = [blob_name(name, name, 0, 1, 2) for name in topologies]
        for number, name in enumerate(names):
            store.write(name, [str(number).encode()])
        assert [store.read(name) for name in names] == [str(number).encode() for number in range(len(names))]
        assert store.names("") == sorted(names)

    def test_a_reader_finds_one_or_the_other(self, open_another: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(redis_store, "FIELD", 64)
        monkeypatch.setattr(redis_store, "STEP", 2)
        writer, reader = open_another(), open_another()
        contents = [b"a" * 1000, b"b" * 3000, b"c"]
        writer.write("t/a", contents[:1])
        done, seen = threading.Event(), set()

        def write() -> None:
            for turn in range(60):
                writer.write("t/a", [contents[turn % 3]])
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        while not done.is_set():
            seen.add(reader.read("t/a"))
        thread.join()
        assert seen <= set(contents)
        assert reader.names("") == ["t/a"]

    def test_writers_of_one_name_do_not_mix(self, open_another: Open) -> None:
        contents = [bytes([65 + number]) * (1000 + number) for number in range(4)]

        def write(store: CheckpointStore, content: bytes) -> None:
            for _ in range(10):
                store.write("t/a", [content[:500], content[500:]])

        threads = [threading.Thread(target=write, args=(open_another(), content)) for content in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert open_another().read("t/a") in contents


# ---- the checkpoints of a topology ----


def save_wave(checkpoints: Checkpoints, wave: int, groups: Sequence[int] = (0, 1, 2),
              before: Manifest | None = None) -> Manifest:
    """A wave that writes these groups anew and takes over the chains of the others."""
    blob = blob_name("t", "count", 0, 1, wave)
    parts, refs = pack({group: (True, f"{wave}:{group}".encode()) for group in groups}, blob)
    checkpoints.save(blob, parts)
    chains = {**(before.chains("count") if before else {}), **{group: [ref] for group, ref in refs.items()}}
    return Manifest("t", wave, 1, 8, {"count": 1}, [TaskRecord("count", 0, chains)], float(wave))


def commit_waves(checkpoints: Checkpoints, *waves: int) -> list[Manifest]:
    manifests = [save_wave(checkpoints, wave) for wave in waves]
    for manifest in manifests:
        checkpoints.commit(manifest)
    return manifests


def change(store: CheckpointStore, name: str, to: Callable[[bytes], bytes]) -> None:
    store.write(name, [to(store.read(name))])


class TestCheckpoints:
    @pytest.fixture
    def checkpoints(self, store: CheckpointStore) -> Checkpoints:
        return Checkpoints(store, "t")

    def test_none_at_first(self, checkpoints: Checkpoints) -> None:
        assert checkpoints.latest() is None
        assert checkpoints.collect() == 0
        save_wave(checkpoints, 1)
        assert checkpoints.latest() is None
        assert checkpoints.collect() == 0  # it may be under way

    def test_the_newest_is_found(self, checkpoints: Checkpoints, open_another: Open) -> None:
        manifests = commit_waves(checkpoints, 2, 9, 10)
        save_wave(checkpoints, 11)
        assert Checkpoints(open_another(), "t").latest() == manifests[-1]
        assert Checkpoints(open_another(), "u").latest() is None

    def test_one_is_read_by_its_numbers(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        older, _ = commit_waves(checkpoints, 1, 2)
        assert checkpoints.manifest(1, 1) == older
        with pytest.raises(CheckpointMissing):
            checkpoints.manifest(2, 1)
        change(store, manifest_name("t", 1, 1), lambda data: data[:-1])
        with pytest.raises(CorruptCheckpoint):
            checkpoints.manifest(1, 1)

    def test_numbers_go_on_from_whatever_is_there(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        assert checkpoints.newest() == (0, 0)
        commit_waves(checkpoints, 1, 2)
        assert checkpoints.newest() == (1, 2)
        save_wave(checkpoints, 7)  # given up
        store.write(manifest_name("t", 4, 3), [b"damaged"])
        assert checkpoints.newest() == (4, 7)
        assert Checkpoints(store, "u").newest() == (0, 0)

    def test_a_master_that_was_replaced_does_not_outrank_its_successor(self, checkpoints: Checkpoints) -> None:
        (first,) = commit_waves(checkpoints, 1)
        successors = msgspec.structs.replace(first, epoch=2, wave=2)
        checkpoints.commit(successors)
        for wave in (2, 9):  # in the epoch before
            late = save_wave(checkpoints, wave)
            with pytest.raises(NotTheAuthor, match="has a checkpoint of epoch 2, and this is epoch 1"):
                checkpoints.commit(late)
            # It may have looked just before the successor began.
            checkpoints.store.write(manifest_name("t", 1, wave), [late.encode()])
        with pytest.raises(NotTheAuthor):
            checkpoints.collect(epoch=1)
        under_way = blob_name("t", "count", 0, 2, 3)
        checkpoints.save(under_way, [b"x"])
        assert checkpoints.latest() == successors
        checkpoints.collect()
        assert checkpoints.latest() == successors
        assert checkpoints.store.missing([*successors.blobs(), under_way]) == set()

    def test_no_commit_without_the_blobs(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        first = commit_waves(checkpoints, 1)[0]
        second = save_wave(checkpoints, 2, [1], first)
        store.delete(first.blobs())
        with pytest.raises(CheckpointMissing, match=r"wave 2 of 't' cannot be committed: 1 of the blobs.*t/count/0/0*1-0*1\)"):
            checkpoints.commit(second)
        assert manifest_name("t", 1, 2) in store.missing([manifest_name("t", 1, 2)])

    @pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-1] + b"?"])
    def test_a_damaged_manifest_is_left_out(self, checkpoints: Checkpoints, store: CheckpointStore, damage: Any,
                                            caplog: pytest.LogCaptureFixture) -> None:
        older, _ = commit_waves(checkpoints, 1, 2)
        change(store, manifest_name("t", 1, 2), damage)
        with caplog.at_level(logging.WARNING):
            assert checkpoints.latest() == older
        assert "00002.manifest is left out: a manifest" in caplog.text
        change(store, manifest_name("t", 1, 1), damage)
        with pytest.raises(CorruptCheckpoint, match="has 2 checkpoints of 't' and none can be used"):
            checkpoints.latest()

    def test_one_whose_blobs_are_gone_is_left_out(self, checkpoints: Checkpoints, store: CheckpointStore,
                                                  caplog: pytest.LogCaptureFixture) -> None:
        older, newer = commit_waves(checkpoints, 1, 2)
        store.delete(newer.blobs())
        with caplog.at_level(logging.WARNING):
            assert checkpoints.latest() == older
        assert "1 of its blobs are not in the store" in caplog.text

    def test_a_manifest_under_a_wrong_name_is_left_out(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        (older,) = commit_waves(checkpoints, 1)
        store.write(manifest_name("t", 1, 5), [store.read(manifest_name("t", 1, 1))])
        assert checkpoints.latest() == older

    def test_chains_are_read_in_order(self, checkpoints: Checkpoints) -> None:
        first = save_wave(checkpoints, 1, range(6))
        second = save_wave(checkpoints, 2, [1, 4], first)
        refs = [*first.chains("count").values(), *second.chains("count").values()]
        asked = [ref for chain in refs for ref in chain]
        expected = [*(f"1:{group}" for group in range(6)), "1:0", "2:1", "1:2", "1:3", "2:4", "1:5"]
        assert checkpoints.read_chain(asked) == [text.encode() for text in expected]
        assert checkpoints.read_chain(asked[::-1]) == [text.encode() for text in expected[::-1]]
        assert checkpoints.read_chain([]) == []

    def test_neighbours_are_read_together(self, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
        reads: list[tuple[int, int | None]] = []
        read = checkpoints.store.read

        def noted(name: str, offset: int = 0, length: int | None = None) -> bytes:
            reads.append((offset, length))
            return read(name, offset, length)

        monkeypatch.setattr(checkpoints.store, "read", noted)
        chains = save_wave(checkpoints, 1, range(8)).chains("count")  # three bytes each
        checkpoints.read_chain([chains[group][0] for group in (7, 0, 1, 2, 5)])
        assert reads == [(0, 9), (15, 3), (21, 3)]
        reads.clear()
        monkeypatch.setattr(checkpoints_module, "READ_LIMIT", 6)
        checkpoints.read_chain([chains[group][0] for group in range(5)])
        assert reads == [(0, 6), (6, 6), (12, 3)]

    def test_a_changed_blob_is_noticed(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        manifest = save_wave(checkpoints, 1)
        refs = [chain[0] for chain in manifest.chains("count").values()]
        (blob,) = manifest.blobs()
        content = store.read(blob)
        for where in range(len(content)):
            store.write(blob, [content[:where], bytes([content[where] ^ 1]), content[where + 1 :]])
            with pytest.raises(CorruptCheckpoint, match="its bytes have changed"):
                checkpoints.read_chain(refs)
            store.write(blob, [content[:where]])
            with pytest.raises(CorruptCheckpoint, match="not all there"):
                checkpoints.read_chain(refs)
        store.delete([blob])
        with pytest.raises(CheckpointMissing):
            checkpoints.read_chain(refs)

    def test_collecting_keeps_what_is_needed(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        store.write(blob_name("u", "c", 0, 1, 1), [b"another topology's"])
        first = commit_waves(checkpoints, 1)[0]
        save_wave(checkpoints, 2)  # given up
        third = save_wave(checkpoints, 3, [1], first)
        checkpoints.commit(third)
        fourth = save_wave(checkpoints, 4, [1], third)
        checkpoints.commit(fourth)
        save_wave(checkpoints, 5)  # under way
        assert checkpoints.collect() == 2  # the blob of wave 2, the manifest of wave 1
        blobs = [blob_name("t", "count", 0, 1, wave) for wave in (1, 3, 4, 5)]
        assert set(store.names("t/")) == {*blobs, manifest_name("t", 1, 3), manifest_name("t", 1, 4)}
        assert checkpoints.collect(keep=1) == 2  # the manifest of wave 3, and its blob: wave 4 wrote that group anew
        assert checkpoints.latest() == fourth
        refs = [chain[0] for chain in fourth.chains("count").values()]
        assert checkpoints.read_chain(refs) == [b"1:0", b"4:1", b"1:2"]
        assert store.names("u/") == [blob_name("u", "c", 0, 1, 1)]

    def test_a_damaged_one_is_not_counted_as_kept(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        first, second, _ = commit_waves(checkpoints, 1, 2, 3)
        change(store, manifest_name("t", 1, 3), lambda data: data[:-1])
        assert checkpoints.collect() == 0
        assert store.missing(first.blobs() | second.blobs()) == set()
        (fourth,) = commit_waves(checkpoints, 4)
        checkpoints.collect()
        assert set(store.names("t/")) == {*second.blobs(), *fourth.blobs(), manifest_name("t", 1, 2), manifest_name("t", 1, 4)}

    @pytest.mark.parametrize("waves", [1, 4, 9])
    def test_killed_while_it_commits_and_collects(self, open_another: Open, waves: int) -> None:
        """What a process said was committed is there after it was killed in the middle of going on."""
        with killed_after(waves, lambda: commit_for_ever(Checkpoints(open_another(), "t"))) as said:
            checkpoints = Checkpoints(open_another(), "t")
            latest = checkpoints.latest()
            assert latest is not None and latest.wave >= said >= waves
            refs = [chain[0] for chain in latest.chains("count").values()]
            assert all(content.endswith(b":%d" % group) for group, content in enumerate(checkpoints.read_chain(refs)))
            commit_waves(checkpoints, latest.wave + 1)
            checkpoints.collect(keep=1)
            assert len(checkpoints.store.names("t/")) in (2, 3)  # the blob of a wave that had only begun may be beyond it


def commit_for_ever(checkpoints: Checkpoints) -> Iterator[int]:
    before: Manifest | None = None
    wave = 0
    while True:
        wave += 1
        before = save_wave(checkpoints, wave, range(3) if before is None else [wave % 3], before)
        checkpoints.commit(before)
        yield wave
        checkpoints.collect()


@contextlib.contextmanager
def killed_after(count: int, numbers: Callable[[], Iterator[int]]) -> Iterator[int]:
    """Runs it in another process, kills that with -9 once so many numbers have come, and gives the last that came."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for number in numbers():
                os.write(writer, number.to_bytes(8, "big"))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        came = [int.from_bytes(file.read(8), "big") for _ in range(count)]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    yield came[-1]


# ---- a directory: crashes, full disks, no permission ----


def in_child(action: Callable[[], None]) -> int:
    """How a child process that does this ends: minus the signal, 0 if all is well, 1 if it raised."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def left_over(store: DirectoryStore) -> list[Path]:
    return list(store.root.rglob(f"{UNFINISHED}*"))


@pytest.mark.parametrize("before", [None, OLD], ids=["new", "again"])
def test_a_crash_at_any_byte_leaves_what_was(directory: DirectoryStore, before: bytes | None) -> None:
    if before is not None:
        directory.write("t/a", [before])
    for size in range(len(NEW)):

        def write(size: int = size) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel ends the process at exactly this byte of the file
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            directory.write("t/a", [NEW])

        assert in_child(write) == -signal.SIGXFSZ
        assert [path.stat().st_size for path in left_over(directory)] == [size]
        assert directory.names("t/") == ([] if before is None else ["t/a"])
        if before is not None:
            assert directory.read("t/a") == before
        for path in left_over(directory):
            path.unlink()
    directory.write("t/a", [NEW])
    assert directory.read("t/a") == NEW


def test_an_error_at_any_byte_leaves_what_was_and_nothing_else(directory: DirectoryStore) -> None:
    directory.write("t/a", [OLD])
    for size in range(0, len(NEW), 7):

        def write(size: int = size) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            with pytest.raises(StoreUnreachable, match=r"asked to write t/a and cannot.*Make room"):
                directory.write("t/a", [NEW])

        assert in_child(write) == 0
        assert directory.read("t/a") == OLD and left_over(directory) == []


STEPS = [(Path, "mkdir"), (Path, "open"), (directory_store.os, "fsync"), (Path, "replace"), (directory_store.os, "open"),
         (directory_store.os, "close")]


def crash_at(step: int, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends this process at the so-many-th of the steps, before it is done or after."""
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
def test_a_crash_at_any_step_leaves_one_or_the_other(directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch,
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


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("kind", ["directory", "remote"])
def test_old_left_overs_go(tmp_path: Path, kind: str) -> None:
    store = DirectoryStore(tmp_path) if kind == "directory" else RemoteStore(fs.LocalFileSystem(), str(tmp_path), "test://")
    store.write("t/a", [b"x"])
    young, old = tmp_path / "t" / f"{UNFINISHED}1", tmp_path / "t" / f"{UNFINISHED}2"
    for path in (young, old):
        path.write_bytes(b"half")
    ago = old.stat().st_mtime - UNFINISHED_SECONDS - 1
    os.utime(old, (ago, ago))
    assert store.names("t/") == ["t/a"]
    assert young.exists() and not old.exists()


def test_a_directory_that_people_deleted_is_made_again(directory: DirectoryStore) -> None:
    directory.write("t/a", [b"x"])
    (directory.root / "t" / "a").unlink()
    (directory.root / "t").rmdir()
    directory.write("t/a", [b"y"])
    assert directory.read("t/a") == b"y"


def test_a_store_that_is_gone_is_not_empty(directory: DirectoryStore) -> None:
    directory.root.rmdir()
    with pytest.raises(StoreUnreachable, match="mounted or reachable"):
        directory.names("t/")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True, text=True)
    if mount.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mount.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("kind", ["directory", "remote"])
def test_a_full_disk(small_disk: Path, kind: str) -> None:
    store = DirectoryStore(small_disk) if kind == "directory" else RemoteStore(fs.LocalFileSystem(), str(small_disk), "test://")
    store.write("t/a", [OLD])
    for _ in range(3):
        with pytest.raises(StoreUnreachable, match=r"write t/a and cannot.*No space left.*Make room"):
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


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnreachable, match="asked to open and cannot"):
        open_store(str(tmp_path / "file"))


# ---- a directory: locks ----


def test_a_lock_keeps_others_of_the_same_name_out(directory: DirectoryStore) -> None:
    lock = directory.lock("words")
    assert lock is not None
    other = DirectoryStore(directory.root)
    with pytest.raises(StoreInUse, match=rf"'words' was to use .*process {os.getpid()} on .*another --cluster, or with another "
                                         "checkpoint.store"):
        other.lock("words")
    with other.lock("lines") as lines:  # type: ignore[union-attr]
        assert lines is not None
    lock.close()
    lock.close()
    with other.lock("words"), pytest.raises(StoreInUse):  # type: ignore[union-attr]
        directory.lock("words")


def test_a_lock_ends_with_its_process(directory: DirectoryStore) -> None:
    def take() -> None:
        assert directory.lock("words") is not None
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(2):
        assert in_child(take) == -signal.SIGKILL
    with directory.lock("words") as lock:  # type: ignore[union-attr]
        assert lock is not None


@contextlib.contextmanager
def child_that(action: Callable[[], None]) -> Iterator[int]:
    """A forked process that has done this and waits until it is no more needed."""
    ready, told = os.pipe()
    wait, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        action()
        os.write(told, b".")
        os.read(wait, 1)
        os._exit(0)
    os.close(told)
    os.close(wait)
    try:
        assert os.read(ready, 1) == b"."
        yield child
    finally:
        os.close(end)
        os.close(ready)
        os.waitpid(child, 0)


def test_the_process_that_has_the_lock_is_named(directory: DirectoryStore) -> None:
    kept: list[Any] = []
    with (child_that(lambda: kept.append(directory.lock("words"))) as child,
          pytest.raises(StoreInUse, match=f"process {child} on ")):
        directory.lock("words")
    with directory.lock("words") as lock:  # type: ignore[union-attr]
        assert lock is not None


def test_a_closed_lock_is_free_though_a_child_has_its_file_open(directory: DirectoryStore) -> None:
    lock = directory.lock("words")
    assert lock is not None
    with child_that(lambda: None):
        lock.close()
        with directory.lock("words") as again:  # type: ignore[union-attr]
            assert again is not None


@pytest.mark.parametrize("topology", ["with/slash", ".", "..", "größe-雪" * 30, "a b\n"])
def test_locks_are_no_names(directory: DirectoryStore, topology: str) -> None:
    directory.write(blob_name(topology, "count", 0, 1, 1), [b"x"])
    with directory.lock(topology) as lock:  # type: ignore[union-attr]
        assert lock is not None
        assert directory.names("") == [blob_name(topology, "count", 0, 1, 1)]
        assert Checkpoints(directory, topology).newest() == (1, 1)


def test_a_lock_that_cannot_be_had(directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch,
                                   caplog: pytest.LogCaptureFixture) -> None:
    def refuse(number: int) -> Callable[..., None]:
        def flock(descriptor: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))
        return flock

    monkeypatch.setattr(store_lock.fcntl, "flock", refuse(errno.ENOLCK))
    with caplog.at_level(logging.WARNING):
        assert directory.lock("words") is None
    assert "has no locks" in caplog.text
    monkeypatch.setattr(store_lock.fcntl, "flock", refuse(errno.EIO))
    with pytest.raises(StoreUnreachable, match="asked to lock words and cannot"):
        directory.lock("words")


def test_other_stores_have_no_lock(redis_server: RedisServer, redis_client: Any, tmp_path: Path) -> None:
    remote: CheckpointStore = RemoteStore(fs.LocalFileSystem(), str(tmp_path), "test://")
    for store in (remote, open_store(redis_server.url)):
        assert store.lock("words") is None
        store.close()


# ---- urls ----


def test_paths_and_file_urls_are_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for url, root in [("relative", "relative"), (str(tmp_path / "absolute"), "absolute"), ("~/there", "home/there"),
                      (f"file://{tmp_path}/with%20space", "with space"), (f"file://localhost{tmp_path}/here", "here")]:
        store = open_store(url)
        assert isinstance(store, DirectoryStore) and store.root == tmp_path / root and store.root.is_dir()
    with pytest.raises(MillraceError, match=r"three slashes, as in file:///other/path"):
        open_store("file://other/path")


@pytest.mark.parametrize("url", ["ftp://user:secret@host/path", "nonsense://x"])
def test_what_names_no_store(url: str) -> None:
    with pytest.raises(MillraceError, match="names no checkpoint store") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_another_file_system_is_opened_by_pyarrow(tmp_path: Path) -> None:
    store = RemoteStore.at(f"file://{tmp_path}/remote")
    store.write("t/a", [NEW])
    assert (tmp_path / "remote" / "t" / "a").read_bytes() == NEW


def test_object_stores_are_known_by_spark_s_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(RemoteStore, "at", classmethod(lambda cls, url: asked.append(url)))
    for scheme in ("s3", "s3a", "gs", "hdfs", "abfs"):
        open_store(f"{scheme}://bucket/path")
    assert asked == ["s3://bucket/path", "s3://bucket/path", "gs://bucket/path", "hdfs://bucket/path", "abfs://bucket/path"]


# ---- Redis: restarts, flushes, limits ----


@pytest.fixture
def redis(redis_server: RedisServer, redis_client: Any) -> Iterator[RedisStore]:
    store = RedisStore(redis_server.url)
    yield store
    store.close()


def test_no_redis_there() -> None:
    with pytest.raises(StoreUnreachable, match=r"Redis at redis://127\.0\.0\.1:\d+/0.*asked to answer and did not") as caught:
        open_store(f"redis://user:secret@127.0.0.1:{free_port()}/0")
    assert "secret" not in str(caught.value)


def test_a_redis_that_comes_back_empty_is_not_trusted(redis: RedisStore, redis_server: RedisServer) -> None:
    checkpoints = Checkpoints(redis, "t")
    (first,) = commit_waves(checkpoints, 1)
    second = save_wave(checkpoints, 2, [1], first)
    redis_server.stop()
    try:
        for call in (lambda: checkpoints.commit(second), checkpoints.latest, lambda: redis.write("t/a", [NEW]),
                     lambda: redis.delete(["t/a"]), lambda: redis.read("t/a")):
            with pytest.raises(StoreUnreachable, match="See that it runs"):
                call()
    finally:
        redis_server.start()
    with pytest.raises(CheckpointMissing, match="2 of the blobs it needs"):
        checkpoints.commit(second)
    assert checkpoints.latest() is None
    third = save_wave(checkpoints, 3)
    checkpoints.commit(third)
    assert checkpoints.latest() == third


def test_a_redis_that_is_flushed_is_not_trusted(redis: RedisStore, redis_client: Any) -> None:
    checkpoints = Checkpoints(redis, "t")
    manifest = save_wave(checkpoints, 1)
    redis_client.flushall()
    with pytest.raises(CheckpointMissing):
        checkpoints.commit(manifest)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_flush_while_it_is_being_written(redis: RedisStore, redis_client: Any, monkeypatch: pytest.MonkeyPatch,
                                           at: int) -> None:
    fields = redis_store._fields

    def flushing(parts: Any) -> Iterator[dict[str, bytes]]:
        for number, some in enumerate(fields(parts)):
            yield some
            if number == at:
                redis_client.flushall()

    monkeypatch.setattr(redis_store, "FIELD", 64)
    monkeypatch.setattr(redis_store, "STEP", 2)
    monkeypatch.setattr(redis_store, "_fields", flushing)
    with pytest.raises(StoreUnreachable, match=r"lost what was written.*Write it again"):
        redis.write("t/a", [bytes(5 * 64)])
    assert redis.names("") == []


def test_what_is_not_finished_goes_by_itself(redis: RedisStore, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    redis.write("t/a", [OLD])
    monkeypatch.setattr(redis, "_rename", lambda *_: None)  # the writer died before
    redis.write("t/a", [NEW])
    assert redis.read("t/a") == OLD and redis.names("") == ["t/a"]
    (unfinished,) = redis_client.keys(f"{UNFINISHED_PREFIX}*")
    assert 0 < redis_client.ttl(unfinished) <= UNFINISHED_SECONDS
    assert redis_client.ttl(f"{PREFIX}t/a") == -1  # for ever


def test_a_rename_whose_answer_was_lost(redis: RedisStore, redis_client: Any) -> None:
    redis.write("t/a", [NEW])
    id = redis_client.hget(f"{PREFIX}t/a", "id").decode()
    redis._rename(UNFINISHED_PREFIX + id, "t/a", id)  # as the client does when it sends the command again
    assert redis.read("t/a") == NEW
    with pytest.raises(StoreUnreachable, match="lost what was written"):
        redis._rename(f"{UNFINISHED_PREFIX}other", "t/a", "other")


def test_no_value_is_large(redis: RedisStore, redis_client: Any) -> None:
    size = 70 << 20
    redis.write("t/large", [bytes(size)])
    lengths = [redis_client.hstrlen(f"{PREFIX}t/large", number) for number in range(size // FIELD)]
    assert lengths == [FIELD] * (size // FIELD)
    assert redis.read("t/large", size - 10) == bytes(10)
    redis.delete(["t/large"])
    assert redis_client.dbsize() == 0


def test_a_redis_without_room(redis: RedisStore, redis_client: Any) -> None:
    redis.write("t/a", [OLD])
    redis_client.config_set("maxmemory", redis_client.info("memory")["used_memory"] + (2 << 20))
    try:
        with pytest.raises(StoreUnreachable, match=r"asked to write t/a and did not.*Give it more memory"):
            redis.write("t/a", [bytes(40 << 20)])
    finally:
        redis_client.config_set("maxmemory", 0)
    assert redis.read("t/a") == OLD


def test_listing_a_topology_does_not_look_at_other_keys(redis: RedisStore, redis_client: Any) -> None:
    redis_client.mset({f"somebody else's {number}": 1 for number in range(3000)})
    for name in ("t/a/0/1", "t/b", "u/a"):
        redis.write(name, [b"x"])
    redis_client.config_resetstat()
    assert redis.names("t/") == ["t/a/0/1", "t/b"] and redis.names("t/a/") == ["t/a/0/1"] and redis.names("v/") == []
    redis.delete(["t/b"])
    assert redis.names("t/") == ["t/a/0/1"]
    used = redis_client.info("commandstats")
    assert "cmdstat_scan" not in used and "cmdstat_keys" not in used
    assert redis.names("") == ["t/a/0/1", "u/a"]


def test_a_name_is_listed_when_and_only_when_it_can_be_read(redis: RedisStore, redis_client: Any) -> None:
    """Entered and renamed in one step, deleted and taken out in one step: nothing comes between, whatever fails."""
    redis.write("t/a", [OLD])
    redis.write("t/a", [NEW])
    assert redis_client.smembers(f"{NAMES_PREFIX}t") == {b"t/a"}
    with pytest.raises(StoreUnreachable, match="lost what was written"):
        redis._rename(f"{UNFINISHED_PREFIX}gone", "t/b", "gone")
    assert redis.names("t/") == redis.names("t") == ["t/a"]
    redis.write("t/c", [NEW])
    redis.delete(["t/a", "t/nothing", "u/nothing"])
    assert redis.names("t/") == redis.names("t") == ["t/c"]
    redis.delete(["t/c"])
    assert redis_client.dbsize() == 0


def test_what_somebody_else_deleted_is_not_listed(redis: RedisStore, redis_client: Any) -> None:
    checkpoints = Checkpoints(redis, "t")
    older, newer = commit_waves(checkpoints, 1, 2)
    (blob,) = newer.blobs()
    redis_client.delete(f"{PREFIX}{blob}")  # or Redis has evicted it
    assert blob not in redis.names("t/") and checkpoints.latest() == older
    redis.write(blob, [b"again"])
    assert blob in redis.names("t/")


def test_no_room_for_a_name_leaves_what_was(redis: RedisStore, redis_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    redis.write("t/a", [OLD])
    rename = redis._rename

    def full(unfinished: str, name: str, id: str) -> None:
        redis_client.config_set("maxmemory", 1)
        rename(unfinished, name, id)

    monkeypatch.setattr(redis, "_rename", full)
    try:
        for name in ("t/a", "t/b"):
            with pytest.raises(StoreUnreachable, match="Give it more memory"):
                redis.write(name, [NEW])
            redis_client.config_set("maxmemory", 0)
    finally:
        redis_client.config_set("maxmemory", 0)
    assert redis.read("t/a") == OLD and redis.names("t/") == ["t/a"]


def test_other_keys_are_left_alone(redis: RedisStore, redis_client: Any) -> None:
    redis_client.set("t/a", "somebody else's")
    redis_client.set("millrace:other", "ours, and no checkpoint")
    redis.write("t/a", [b"x"])
    assert redis.names("") == ["t/a"]
    redis.delete(["t/a", "other"])
    assert sorted(redis_client.keys("*")) == [b"millrace:other", b"t/a"]


def test_a_reference_to_a_piece_that_never_was(redis: RedisStore) -> None:
    with pytest.raises(CheckpointMissing, match="has no t/b"):
        Checkpoints(redis, "t").read_chain([PieceRef("t/b", 0, 1, 0, True)])

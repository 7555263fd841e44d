"""The contract of every checkpoint store, and the stores that URLs name."""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.errors import CheckpointMissing, MillraceError
from millrace.runtime.checkpoints import redis as redis_store
from millrace.runtime.checkpoints.directory import UNFINISHED, DirectoryStore
from millrace.runtime.checkpoints.redis import FIELD, STEP
from millrace.runtime.checkpoints.remote import RemoteStore
from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from millrace.state.checkpoint import blob_name
from support.suites.saved_waves import NEW, Open


class TestEveryStore:
    def test_a_new_store_is_empty(self, store: CheckpointStore) -> None:
        assert store.names("") == store.names("t/") == []
        assert store.missing(["t/a", "t/b"]) == {"t/a", "t/b"}
        assert store.missing([]) == set()
        store.delete([])
        store.delete(["t/a", "t/b"])
        with pytest.raises(CheckpointMissing, match="has no t/a"):
            store.read("t/a")

    def test_other_processes_read_what_was_written(self, open_another: Open) -> None:
        first, other = open_another(), open_another()
        first.write("t/a", [b"one", memoryview(b"-two-")[1:4], b"", bytearray(b"three")])  # type: ignore[list-item]
        assert other.read("t/a") == b"onetwothree"
        assert other.missing(["t/a", "t/b"]) == {"t/b"}
        first.write("t/a", [b"again"])
        assert other.read("t/a") == b"again"

    @pytest.mark.parametrize("parts", [[], [b""], [b"", b""]])
    def test_an_empty_blob_can_be_written(self, store: CheckpointStore, parts: list[bytes]) -> None:
        store.write("t/empty", parts)
        assert store.read("t/empty") == store.read("t/empty", 0, 10) == b""
        assert store.names("t/") == ["t/empty"]
        assert store.missing(["t/empty"]) == set()

    @pytest.mark.parametrize("size", [FIELD - 1, FIELD, FIELD + 1, STEP * FIELD, (STEP + 1) * FIELD + 3])
    def test_blobs_and_ranges_of_any_size(self, store: CheckpointStore, size: int) -> None:
        content = os.urandom(size)
        cuts = [0, 1, size // 3, size - 1, size]
        store.write("t/large", [content[start:end] for start, end in itertools.pairwise(cuts)])
        assert store.read("t/large") == content
        for start in (0, 1, FIELD - 1, FIELD, size - 1, size, size + 10):
            for length in (0, 1, FIELD, FIELD + 1, size, None):
                assert store.read("t/large", start, length) == content[start : None if length is None else start + length]

    def test_names_are_listed_by_prefix(self, store: CheckpointStore) -> None:
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
    def test_names_cannot_leave_the_store(self, store: CheckpointStore, name: str) -> None:
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

    def test_a_reader_sees_the_old_or_the_new_blob(self, open_another: Open, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_a_guarded_write_needs_the_guard_s_content(self, open_another: Open) -> None:
        first, other = open_another(), open_another()
        assert not first.write_if("t/a", [b"one"], "t/guard", b"me")
        first.write("t/guard", [b"me"])
        assert first.write_if("t/a", [b"one", b"two"], "t/guard", b"me")
        assert other.read("t/a") == b"onetwo"
        other.write("t/guard", [b"you"])
        for name in ("t/a", "t/b"):
            assert not first.write_if(name, [b"three"], "t/guard", b"me")
        assert other.write_if("t/a", [b"four"], "t/guard", b"you")
        assert first.names("") == ["t/a", "t/guard"] and first.read("t/a") == b"four"

    def test_whoever_changes_the_guard_finds_what_was_written_under_it(self, open_another: Open) -> None:
        """A guarded write succeeds, or it is too late for whoever changes the guard; never both."""
        for turn in range(20):
            writer, changer = open_another(), open_another()
            writer.write("t/guard", [b"old"])
            name = f"t/{turn}"
            with ThreadPoolExecutor(1) as writing:
                written = writing.submit(writer.write_if, name, [b"x"], "t/guard", b"old")
                changer.write("t/guard", [b"new"])
                seen = changer.names(name)
            assert seen == [name] or not written.result()

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
def test_invalid_urls(url: str) -> None:
    with pytest.raises(MillraceError, match="names no checkpoint store") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_another_file_system_is_opened_by_pyarrow(tmp_path: Path) -> None:
    store = RemoteStore.at(f"file://{tmp_path}/remote")
    store.write("t/a", [NEW])
    assert (tmp_path / "remote" / "t" / "a").read_bytes() == NEW


def test_object_stores_are_known_by_spark_s_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(RemoteStore, "at", classmethod(lambda cls, url: opened.append(url)))
    for scheme in ("s3", "s3a", "gs", "hdfs", "abfs"):
        open_store(f"{scheme}://bucket/path")
    assert opened == ["s3://bucket/path", "s3://bucket/path", "gs://bucket/path", "hdfs://bucket/path", "abfs://bucket/path"]

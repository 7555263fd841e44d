"""Spark's notes on a batch: digests, and syncs that may fail."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millrace.errors import OffsetsChanged
from millrace.spark.batches.offsets import SparkOffsets

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":%d,"conf":{}}'
FIRST, SECOND = '{"logOffset":1}', '{"offset":2,"timestamp":2000}'


class NoFiles:
    def read(self, place: str) -> bytes | None:
        raise AssertionError("files of this host are read without Spark")


class Remote:
    """Files of another file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, place: str) -> bytes | None:
        path = self._root / place.removeprefix("hdfs:///place/")
        return path.read_bytes() if path.exists() else None


def file_line(name: str, entry: int) -> str:
    return f'{{"path":"file:///in/{name}","timestamp":5,"batchId":{entry}}}'


def note(place: Path, batch: int, *offsets: str, at: int = 1) -> None:
    (place / "offsets").mkdir(parents=True, exist_ok=True)
    (place / "offsets" / str(batch)).write_text("\n".join(["v1", METADATA % at, *offsets]))
    (place / "offsets" / f".{batch}.crc").write_bytes(b"crc")


def list_files(place: Path, name: str, *lines: str) -> None:
    (place / "sources" / "0").mkdir(parents=True, exist_ok=True)
    (place / "sources" / "0" / name).write_text("\n".join(["v1", *lines]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    note(tmp_path, 3, FIRST, SECOND)
    list_files(tmp_path, "1", file_line("a", 1))
    return tmp_path


def digest(place: Path, batch: int = 3) -> str:
    return SparkOffsets(NoFiles(), place.as_uri()).digest(batch)


def test_a_batch_that_is_planned_again_with_the_same_rows_has_the_same_digest(place: Path) -> None:
    before = digest(place)
    note(place, 3, FIRST, SECOND, at=99)
    list_files(place, "2", file_line("b", 2))  # of a later batch
    assert before and digest(place) == before


def test_a_list_of_files_that_spark_has_compacted_has_the_same_digest(place: Path) -> None:
    before = digest(place)
    (place / "sources" / "0" / "1").unlink()
    list_files(place, "1.compact", file_line("z", 0), file_line("a", 1))
    assert digest(place) == before


def test_other_offsets_and_other_files_have_another_digest(place: Path) -> None:
    seen = {digest(place)}
    note(place, 3, FIRST, '{"offset":3,"timestamp":3000}')
    seen.add(digest(place))
    note(place, 3, FIRST, SECOND)
    list_files(place, "1", file_line("a", 1), file_line("b", 1))
    seen.add(digest(place))
    (place / "sources" / "0" / "1").unlink()
    seen.add(digest(place))
    assert len(seen) == 4 and "" not in seen


def test_a_batch_without_notes_has_no_digest(place: Path) -> None:
    assert digest(place, 4) == "" and digest(place / "missing") == ""


def test_sources_that_are_no_files_need_no_json(place: Path) -> None:
    note(place, 4, "-", "17", '[{"a": 1}]')
    assert digest(place, 4) != digest(place)


def test_another_file_system_gives_the_same_digest_and_nothing_is_synced(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = SparkOffsets(Remote(place), "hdfs:///place")
    assert offsets.digest(3) == digest(place) and offsets.digest(4) == ""
    monkeypatch.setattr(os, "fsync", None)
    offsets.make()
    offsets.sync(3, digest(place))


@pytest.fixture
def forced(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths in the order of their syncs; those in BROKEN fail once."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(place))
        if name in BROKEN:
            BROKEN.remove(name)
            raise OSError(5, "Input/output error")
        synced.append(name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    BROKEN.clear()
    return synced


BROKEN: list[str] = []


def test_new_notes_are_synced_with_their_directories_and_only_once(place: Path, forced: list[str]) -> None:
    (place / "metadata").write_text("{}")
    offsets = SparkOffsets(NoFiles(), place.as_uri())
    offsets.sync(3, digest(place))
    assert forced == ["/metadata", "", "/offsets/.3.crc", "/offsets/3", "/offsets", "",
                      "/sources/0/1", "/sources/0", "/sources", ""]
    forced.clear()
    offsets.sync(3, digest(place))
    assert forced == []
    note(place, 4, FIRST, SECOND)
    (place / "offsets" / "3").unlink()  # Spark deletes old ones
    offsets.sync(3, digest(place))
    assert forced == ["/offsets/.4.crc", "/offsets/4", "/offsets", ""]


def test_a_file_whose_sync_has_failed_is_written_anew(place: Path, forced: list[str]) -> None:
    """A second sync of it would succeed and prove nothing."""
    offsets, path = SparkOffsets(NoFiles(), place.as_uri()), place / "offsets" / "3"
    before, content = path.stat().st_ino, path.read_bytes()
    BROKEN.append("/offsets/3")
    with pytest.raises(OSError, match="Input/output error"):
        offsets.sync(3, digest(place))
    forced.clear()
    offsets.sync(3, digest(place))
    assert path.stat().st_ino != before and path.read_bytes() == content
    assert "/offsets/3" not in forced and any(name.startswith("/offsets/.millrace-") for name in forced)
    assert sorted(entry.name for entry in (place / "offsets").iterdir()) == [".3.crc", "3"]


def test_a_file_that_is_written_anew_with_another_content_is_not_committed(place: Path, forced: list[str]) -> None:
    """After a failed sync the kernel may forget what was written."""
    offsets, before = SparkOffsets(NoFiles(), place.as_uri()), digest(place)
    BROKEN.append("/offsets/3")
    with pytest.raises(OSError, match="Input/output error"):
        offsets.sync(3, before)
    note(place, 3, FIRST, '{"offset":1,"timestamp":1000}')
    for _ in range(2):
        with pytest.raises(OffsetsChanged, match=r"Spark's notes on batch 3 in .* not what the batch was run with"):
            offsets.sync(3, before)


@pytest.mark.parametrize("folder", ["/offsets", "/sources/0", "/sources", ""])
def test_entries_of_a_directory_whose_sync_has_failed_are_made_again(place: Path, forced: list[str], folder: str) -> None:
    """A second sync of the directory alone would succeed and prove nothing."""
    offsets, before = SparkOffsets(NoFiles(), place.as_uri()), digest(place)
    listed = sorted(place.rglob("*"))
    files = [path for path in listed if path.is_file() and path.parent == Path(f"{place}{folder}")]
    inodes = [path.stat().st_ino for path in files]
    BROKEN.append(folder)
    with pytest.raises(OSError, match="Input/output error"):
        offsets.sync(3, before)
    forced.clear()
    offsets.sync(3, before)
    made = max(at for at, name in enumerate(forced) if name.startswith(f"{folder}/.millrace-"))
    assert folder in forced[made:], "the directory is synced after its entries have changed"
    assert all(path.stat().st_ino != inode for path, inode in zip(files, inodes, strict=True))
    assert sorted(place.rglob("*")) == listed and digest(place) == before
    forced.clear()
    offsets.sync(3, before)
    assert forced == []


def test_spark_s_notes_are_private(tmp_path: Path) -> None:
    offsets = SparkOffsets(NoFiles(), (tmp_path / ".spark" / "words" / "3-9").as_uri())
    offsets.make()
    modes = [stat.S_IMODE((tmp_path / part).stat().st_mode) for part in (".spark", ".spark/words", ".spark/words/3-9")]
    assert modes == [0o700] * 3

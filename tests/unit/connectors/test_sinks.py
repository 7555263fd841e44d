from __future__ import annotations

import json
import os
import re
import stat

import pyarrow as pa
import pytest
from recording import attach, rows

from millrace.connectors.sinks import Drop, DropArrow, JsonLinesSink
from millrace.errors import MillraceError, RowsLost, TopologyError
from millrace.workloads.audit import RECORD, AuditSink


def written(directory) -> list[dict]:
    return [json.loads(line) for path in sorted(directory.glob("part-*.jsonl")) for line in path.open()]


def test_drop_counts():
    sink, _ = attach(Drop)
    sink.process_rows(rows("a", [[1], [2]]))
    sink.process_rows(rows("a", [[3]]))
    assert sink.count == 3


def test_drop_arrow_counts():
    sink, _ = attach(DropArrow)
    sink.process_arrow(pa.record_batch([pa.array([1, 2, 3])], names=["a"]))
    assert sink.count == 3


def test_rows_are_in_the_file_when_the_call_returns(tmp_path):
    sink, _ = attach(JsonLinesSink, {"path": str(tmp_path / "made" / "here")}, task_index=3)
    sink.process_rows(rows("word count", [["tea", 1], ["fish", 2]]))
    assert written(tmp_path / "made" / "here") == [{"word": "tea", "count": 1}, {"word": "fish", "count": 2}]
    assert [path.name for path in (tmp_path / "made" / "here").iterdir()] == [f"part-3-{os.getpid()}-0.jsonl"]
    sink.process_rows([])
    sink.process_rows(rows("word count", [["tea", 2]]))
    sink.close()
    assert len(written(tmp_path / "made" / "here")) == 3


def test_every_start_has_a_file_of_its_own(tmp_path):
    for word in ("one", "two"):
        sink, _ = attach(JsonLinesSink, {"path": str(tmp_path)})
        sink.process_rows(rows("word", [[word]]))
        sink.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert [row["word"] for row in written(tmp_path)] == ["one", "two"]


def test_after_a_failed_write_a_new_part_begins(tmp_path):
    sink, _ = attach(JsonLinesSink, {"path": str(tmp_path)})

    class Full:
        def write(self, data: memoryview) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    sink._file.write(b'{"word": "to')
    sink._file.close()
    sink._file = Full()
    with pytest.raises(OSError, match="No space"):
        sink.process_rows(rows("word", [["torn"]]))
    sink.process_rows(rows("word", [["whole"]]))
    assert (tmp_path / f"part-0-{os.getpid()}-1.jsonl").read_text() == '{"word":"whole"}\n'


def test_short_writes_are_completed(tmp_path):
    sink, _ = attach(JsonLinesSink, {"path": str(tmp_path)})
    taken = bytearray()

    class Slow:
        def write(self, data: memoryview) -> int:
            taken.extend(data[:3])
            return min(3, len(data))

        def close(self) -> None: ...

    sink._file.close()
    sink._file = Slow()
    sink.process_rows(rows("word", [["tea"], ["fish"]]))
    assert bytes(taken) == b'{"word":"tea"}\n{"word":"fish"}\n'


def test_path_is_needed():
    with pytest.raises(TopologyError, match=r"under-test \(JsonLinesSink\) needs the setting 'path'"):
        attach(JsonLinesSink)


# ---- exactly once; what all two-phase sinks keep is in tests/conformance ----


def staged_sink(directory, task_index=0, epoch=1, sink_cls=JsonLinesSink):
    return attach(sink_cls, {"path": str(directory)}, task_index, exactly_once=True, epoch=epoch)[0]


def test_a_wave_is_one_file_with_task_wave_and_epoch_in_its_name(tmp_path):
    sink = staged_sink(tmp_path, task_index=3, epoch=2)
    sink.process_rows(rows("word", [["tea"]]))
    sink.process_rows([])
    sink.process_rows(rows("word", [["fish"]]))
    [hidden] = tmp_path.iterdir()
    assert hidden.name == ".staged-test+under-test"
    sink.prepare(17)
    sink.commit(17)
    sink.prepare(18)
    sink.commit(18)
    [part] = tmp_path.glob("part-*")
    assert re.fullmatch(r"part-3-w000000000017-2-[0-9a-f]{8}\.jsonl", part.name)
    assert part.read_text() == '{"word":"tea"}\n{"word":"fish"}\n'
    assert [(path.name, path.read_text()) for path in hidden.iterdir()] == [("3-published", "2 17")]


def test_sinks_that_only_encode_are_two_phase_too(tmp_path):
    sink = staged_sink(tmp_path, sink_cls=AuditSink)
    sink.process_rows([(0, position, 0, "word") for position in range(3)])
    assert not list(tmp_path.glob("part-*"))
    sink.prepare(1)
    sink.commit(1)
    [part] = tmp_path.glob("part-*.audit")
    assert part.stat().st_size == 3 * RECORD.itemsize


def test_files_of_many_waves_sort_in_their_order(tmp_path):
    sink = staged_sink(tmp_path)
    for wave in (2, 9, 10, 11, 100):
        sink.process_rows(rows("wave", [[wave]]))
        sink.prepare(wave)
    sink.commit(100)
    assert [row["wave"] for row in written(tmp_path)] == [2, 9, 10, 11, 100]


def test_a_write_that_fails_half_way_leaves_no_half_record(tmp_path, monkeypatch):
    sink = staged_sink(tmp_path)
    sink.process_rows(rows("word", [["first"]]))
    pwrite = os.pwrite
    with monkeypatch.context() as patched:
        def half(fd, data, offset):
            pwrite(fd, bytes(data)[:5], offset)
            raise OSError(28, "No space left on device")

        def broken(fd, length):
            raise OSError(5, "Input/output error")

        patched.setattr(os, "pwrite", half)
        with pytest.raises(OSError, match="No space"):
            sink.process_rows(rows("word", [["torn"]]))
        patched.setattr(os, "ftruncate", broken)
        with pytest.raises(OSError, match="Input/output"):
            sink.process_rows(rows("word", [["torn"]]))
        patched.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, bytes(data)[:3], offset))
        sink.process_rows(rows("word", [["x"]]))
    sink.prepare(1)
    sink.commit(1)
    assert [row["word"] for row in written(tmp_path)] == ["first", "x"]


def test_a_prepared_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda old, new: (calls.append("rename"), rename(old, new)))
    sink = staged_sink(tmp_path)
    sink.process_rows(rows("word", [["tea"]]))
    sink.prepare(1)
    hidden = str(tmp_path / ".staged-test+under-test")
    assert calls == [str(tmp_path.parent), str(tmp_path), f"{hidden}/0-1-open.jsonl", "rename", hidden]
    calls.clear()
    sink.commit(1)
    note = calls.pop(2)
    assert note.startswith(f"{hidden}/0-published-") and calls == ["rename", str(tmp_path), hidden]


def test_directories_that_are_made_are_on_the_disk(tmp_path, monkeypatch):
    forced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (forced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    staged_sink(tmp_path / "made" / "here")
    assert forced == [str(tmp_path), str(tmp_path / "made"), str(tmp_path / "made" / "here")]
    forced.clear()
    staged_sink(tmp_path / "made" / "here", task_index=1)
    assert forced == [str(tmp_path / "made"), str(tmp_path / "made" / "here")], "the one who made them may not have come so far"


def broken(fd):
    raise OSError(5, "Input/output error")


def test_a_file_whose_sync_has_failed_is_never_prepared(tmp_path, monkeypatch):
    """The second sync would succeed, since the kernel reports an error once, and the rows would not be on the disk."""
    sink = staged_sink(tmp_path)
    sink.process_rows(rows("word", [["tea"]]))
    with monkeypatch.context() as patched, pytest.raises(RowsLost, match=r"could not be written to the disk.*roll back"):
        patched.setattr(os, "fsync", broken)
        sink.prepare(1)
    for again in (sink, staged_sink(tmp_path)):  # a new instance of the same epoch does not trust it either
        with pytest.raises(RowsLost):
            again.process_rows(rows("word", [["milk"]]))
        with pytest.raises(RowsLost):
            again.prepare(2)
    after = staged_sink(tmp_path, epoch=2)
    after.recover(0, 0)
    after.process_rows(rows("word", [["tea"], ["milk"]]))
    after.prepare(3)
    after.commit(3)
    assert [row["word"] for row in written(tmp_path)] == ["tea", "milk"]
    assert [path.name for path in (tmp_path / ".staged-test+under-test").iterdir()] == ["0-published"]


def test_a_repeated_commit_renames_again_and_syncs_what_the_failed_one_has_renamed(tmp_path, monkeypatch):
    """The second sync alone would succeed and prove nothing about the first rename."""
    sink = staged_sink(tmp_path)
    sink.process_rows(rows("word", [["tea"]]))
    sink.prepare(1)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="Input/output"):
        patched.setattr(os, "fsync", broken)
        sink.commit(1)
    calls, fsync, rename = [], os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda old, new: (calls.append(("rename", str(old), str(new))), rename(old, new)))
    hidden, [part] = tmp_path / ".staged-test+under-test", tmp_path.glob("part-*")
    sink.commit(1)
    (_, old, staged), back, *synced = calls
    assert old == str(part) and staged.startswith(str(hidden)) and back == ("rename", staged, str(part))
    assert [str(tmp_path), str(hidden)] == [synced[0], synced[-1]]
    assert written(tmp_path) == [{"word": "tea"}] and (hidden / "0-published").read_text() == "1 1"
    count = len(calls)
    sink.commit(1)
    assert len(calls) == count


def test_a_recovery_that_failed_to_publish_publishes_again(tmp_path, monkeypatch):
    first = staged_sink(tmp_path)
    first.process_rows(rows("word", [["tea"]]))
    first.prepare(1)
    second = staged_sink(tmp_path, epoch=2)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="Input/output"):
        patched.setattr(os, "fsync", broken)
        second.recover(1, 1)
    second.recover(1, 1)
    assert written(tmp_path) == [{"word": "tea"}]
    assert (tmp_path / ".staged-test+under-test" / "0-published").read_text() == "1 1"


def test_a_note_that_is_not_on_the_disk_is_not_left_behind(tmp_path, monkeypatch):
    sink, fsync = staged_sink(tmp_path), os.fsync
    sink.process_rows(rows("word", [["tea"]]))
    sink.prepare(1)

    def broken_for_notes(fd):
        if "published" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(5, "Input/output error")
        fsync(fd)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="Input/output"):
        patched.setattr(os, "fsync", broken_for_notes)
        sink.commit(1)
    assert not list((tmp_path / ".staged-test+under-test").iterdir())
    sink.commit(1)
    assert (tmp_path / ".staged-test+under-test" / "0-published").read_text() == "1 1"


def test_staged_rows_are_private_until_they_are_published(tmp_path):
    before = os.umask(0o022)
    try:
        sink = staged_sink(tmp_path / "made" / "here")
        sink.process_rows(rows("word", [["tea"]]))
        sink.prepare(1)
        sink.commit(1)
    finally:
        os.umask(before)
    hidden = tmp_path / "made" / "here" / ".staged-test+under-test"
    [part] = hidden.parent.glob("part-*")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (hidden.parent, hidden, part)] == [0o755, 0o700, 0o644]


def test_a_prepared_file_that_someone_deleted_is_missed(tmp_path):
    sink = staged_sink(tmp_path)
    for wave in (1, 2, 3):
        sink.process_rows(rows("wave", [[wave]]))
        sink.prepare(wave)
    [second] = (tmp_path / ".staged-test+under-test").glob("0-1-2-*")
    second.unlink()
    sink.commit(1)
    for _ in range(2):
        with pytest.raises(MillraceError, match=rf"wave 3 is committed, and files of task 0 prepared.*{second.name}\. Someone"):
            sink.commit(3)
    assert [row["wave"] for row in written(tmp_path)] == [1, 3], "what is there is made visible all the same"


def test_what_is_visible_is_not_missed_when_it_is_taken_away(tmp_path, monkeypatch):
    """A reader may remove the output at once, and a commit that failed after the rename is repeated."""
    sink = staged_sink(tmp_path)
    sink.process_rows(rows("word", [["tea"]]))
    sink.prepare(1)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="Input/output"):
        patched.setattr(os, "fsync", broken)
        sink.commit(1)
    [part] = tmp_path.glob("part-*")
    part.unlink()
    sink.commit(1)
    sink.commit(1)


def test_what_another_incarnation_made_visible_is_not_missed(tmp_path):
    sink = staged_sink(tmp_path)
    sink.process_rows(rows("word", [["tea"]]))
    sink.prepare(1)
    staged_sink(tmp_path, epoch=2).recover(1, 1)
    sink.commit(1)
    assert [row["word"] for row in written(tmp_path)] == ["tea"]


@pytest.mark.parametrize("topology", ["t" * 300, "雪" * 100, "a/b.c" * 60])
def test_long_names_are_shortened_and_stay_apart(tmp_path, topology):
    sinks = []
    for name in (topology, topology + "x"):
        sink = JsonLinesSink()
        sink.topology_name, sink.component_name = name, "c" * 300
        sink.task_index, sink.parallelism, sink.exactly_once, sink.epoch = 0, 1, True, 1
        sink.initialize({"path": str(tmp_path)}, {})
        sink.process_rows(rows("word", [[name]]))
        sink.prepare(1)
        sinks.append(sink)
    assert len(list(tmp_path.iterdir())) == 2
    sinks[0].commit(1)
    assert written(tmp_path) == [{"word": topology}]


def test_other_files_in_the_hidden_directory_are_left_alone(tmp_path):
    other = tmp_path / ".staged-test+under-test" / "notes.jsonl"
    other.parent.mkdir()
    other.write_text("mine")
    sink = staged_sink(tmp_path, epoch=5)
    sink.recover(3, 2)
    assert other.read_text() == "mine"


def test_two_phases_are_for_exactly_once(tmp_path):
    sink, _ = attach(JsonLinesSink, {"path": str(tmp_path)})
    for call in (lambda: sink.prepare(1), lambda: sink.commit(1), lambda: sink.recover(0, 0)):
        with pytest.raises(MillraceError, match="under-test: prepare, commit and recover are for exactly-once topologies"):
            call()


def test_the_note_of_published_waves_never_goes_back(tmp_path, monkeypatch):
    """An overtaken worker publishes late: its file is gone, because the next incarnation has published it and more."""
    late, note = staged_sink(tmp_path), tmp_path / ".staged-test+under-test" / "0-published"
    late.process_rows(rows("word", [["tea"]]))
    late.prepare(1)
    rename = os.rename

    def overtaken(old, new):
        monkeypatch.setattr(os, "rename", rename)
        after = staged_sink(tmp_path, epoch=2)
        after.recover(1, 1)
        after.process_rows(rows("word", [["milk"]]))
        after.prepare(2)
        after.commit(2)
        rename(old, new)

    monkeypatch.setattr(os, "rename", overtaken)
    late.commit(1)
    assert note.read_text() == "2 2"
    assert [row["word"] for row in written(tmp_path)] == ["tea", "milk"]


def test_a_late_file_does_not_lower_the_note(tmp_path):
    late, note = staged_sink(tmp_path), tmp_path / ".staged-test+under-test" / "0-published"
    late.process_rows(rows("word", [["tea"]]))
    late.prepare(1)
    note.write_text("2 2")
    late.commit(1)
    assert note.read_text() == "2 2" and written(tmp_path) == [{"word": "tea"}]

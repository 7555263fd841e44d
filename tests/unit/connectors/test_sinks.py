from __future__ import annotations

import json
import os

import pyarrow as pa
import pytest
from recording import attach, rows

from millrace.connectors.sinks import Drop, DropArrow, JsonLinesSink
from millrace.errors import TopologyError


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

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording import attach, drain

from millrace.connectors import files
from millrace.connectors.files import ArrowFileSpout, FileSpout
from millrace.errors import TopologyError


def lines(emits) -> list[str]:
    """The emitted lines, one by one or in batches."""
    return [line for emitted in emits for line in (emitted.values if isinstance(emitted.values, tuple) else
                                                   emitted.values.column("line").to_pylist())]


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_of_one_file_with_rising_positions(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\r\n\nf\xc3\xbcnf\nbad \xff\nno end")
    spout, recorder = attach(FileSpout, {"path": str(tmp_path / "a.txt"), "burst": 2})
    emits = drain(spout, recorder)
    assert lines(emits) == ["one", "two", "", "fünf", "bad �", "no end"]
    assert [emitted.tup_id for emitted in emits] == list(range(6))
    assert spout.exhausted


def test_files_are_dealt_out_in_order_of_name(tmp_path):
    for name in "dacbe":
        (tmp_path / f"{name}.log").write_text(f"{name}1\n{name}2\n")
    (tmp_path / "other.txt").write_text("no\n")
    shares = [lines(drain(*attach(FileSpout, {"path": str(tmp_path / "*.log")}, index, 2))) for index in range(2)]
    assert shares == [["a1", "a2", "c1", "c2", "e1", "e2"], ["b1", "b2", "d1", "d2"]]


def test_empty_files_and_idle_tasks(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text("x\n" if name == "c" else "")
    spout, recorder = attach(FileSpout, {"path": str(tmp_path / "*")})
    assert lines(drain(spout, recorder)) == ["x"]
    idle, recorder = attach(FileSpout, {"path": str(tmp_path / "*")}, 3, 4)
    assert drain(idle, recorder) == []
    assert idle.exhausted


TEXT = st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=9)


@given(texts=st.lists(st.lists(TEXT, max_size=12), min_size=1, max_size=4),
       block=st.integers(1, 40), target=st.integers(0, 60), read_first=st.booleans())
def test_seek_continues_at_that_line_with_any_block_size(tmp_path_factory, texts, block, target, read_first):
    directory = tmp_path_factory.mktemp("seek")
    for number, text in enumerate(texts):
        (directory / f"{number}").write_text("".join(f"{line}\n" for line in text), newline="")
    truth = [line for text in texts for line in text]
    target = min(target, len(truth))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", block)
        patch.setattr(files, "INDEX_EVERY", 2 * block)
        spout, recorder = attach(FileSpout, {"path": str(directory / "*")})
        if read_first:  # then the index is there
            assert lines(drain(spout, recorder)) == truth
        spout.seek(target)
        emits = drain(spout, recorder)
    assert lines(emits) == truth[target:]
    assert [emitted.tup_id for emitted in emits] == list(range(target, len(truth)))


@given(texts=st.lists(st.lists(TEXT, max_size=12), min_size=1, max_size=4), block=st.integers(1, 40),
       batch=st.integers(1, 8), other_batch=st.integers(1, 8), stop=st.integers(0, 60))
def test_batches_continue_after_any_batch_with_any_sizes(tmp_path_factory, texts, block, batch, other_batch, stop):
    directory = tmp_path_factory.mktemp("batches")
    for number, text in enumerate(texts):
        (directory / f"{number}").write_text("".join(f"{line}\n" for line in text), newline="")
    truth = [line for text in texts for line in text]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "ARROW_BLOCK", block)
        spout, recorder = attach(ArrowFileSpout, {"path": str(directory / "*"), "batch": batch})
        emits = drain(spout, recorder)
        assert lines(emits) == truth
        assert [emitted.tup_id for emitted in emits] == [sum(each.values.num_rows for each in emits[:number])
                                                         for number in range(len(emits))]
        assert all(emitted.values.num_rows <= batch for emitted in emits)
        assert spout.exhausted
        for emitted in emits[:stop]:
            spout.ack(emitted.tup_id)
        position = spout.position()
        assert position == len(lines(emits[:stop]))
        other, recorder = attach(ArrowFileSpout, {"path": str(directory / "*"), "batch": other_batch})
        other.seek(position)
        assert lines(drain(other, recorder)) == truth[position:]
        rows, recorder = attach(FileSpout, {"path": str(directory / "*")})
        rows.seek(position)
        assert lines(drain(rows, recorder)) == truth[position:]


def test_batches_have_the_lines_that_rows_have(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\r\n\nf\xc3\xbcnf\nbad \xff\nodd\rline\r\r\nno end\r")
    (tmp_path / "b.txt").write_bytes(b"\n\nmore")
    truth = lines(drain(*attach(FileSpout, {"path": str(tmp_path / "*")})))
    assert lines(drain(*attach(ArrowFileSpout, {"path": str(tmp_path / "*")}))) == truth
    assert len(truth) == 10


def test_a_failed_batch_is_sent_again(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    spout, recorder = attach(ArrowFileSpout, {"path": str(tmp_path / "a"), "batch": 2})
    first, second = drain(spout, recorder)
    spout.ack(second.tup_id)
    spout.fail(first.tup_id)
    again = recorder.emits[-1]
    assert (again.tup_id, lines([again])) == (0, ["one", "two"])
    assert spout.position() == 0
    spout.ack(first.tup_id)
    assert spout.position() == 3


def test_seek_past_the_end_is_reported(tmp_path):
    (tmp_path / "a").write_text("one\n")
    spout, _ = attach(FileSpout, {"path": str(tmp_path / "a")})
    with pytest.raises(TopologyError, match=r"cannot resume at line 5: .* has 1 lines"):
        spout.seek(5)


def follower(path: Path, **attributes):
    clock = FakeClock()
    spout, recorder = attach(FileSpout, {"path": str(path), "follow": True}, clock=clock, **attributes)

    def later():
        clock.now += 1
        emits = drain(spout, recorder)
        assert not spout.exhausted
        return lines(emits)

    return spout, later


def test_follow_waits_for_whole_lines_and_for_new_files(tmp_path):
    _, later = follower(tmp_path / "*.log")
    assert later() == []
    first = tmp_path / "1.log"
    first.write_text("one\ntw")
    assert later() == ["one"]
    with first.open("a") as file:
        file.write("o\nthree")
    assert later() == ["two"]
    (tmp_path / "2.log").write_text("four\n")
    assert later() == ["three", "four"]


def test_follow_leaves_out_a_file_that_sorts_earlier(tmp_path, caplog):
    (tmp_path / "2.log").write_text("two\n")
    _, later = follower(tmp_path / "*.log")
    assert later() == ["two"]
    (tmp_path / "1.log").write_text("one\n")
    with caplog.at_level(logging.WARNING):
        assert later() == []
    assert "1.log" in caplog.text


def test_a_failed_line_is_sent_again(tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n")
    spout, recorder = attach(FileSpout, {"path": str(tmp_path / "a")})
    drain(spout, recorder)
    spout.fail(1)
    assert lines(recorder.take()) == ["two"]
    assert spout.position() == 0


def test_clear_errors(tmp_path):
    with pytest.raises(TopologyError, match="is a directory"):
        attach(FileSpout, {"path": str(tmp_path)})
    with pytest.raises(TopologyError, match="no file matches"):
        attach(FileSpout, {"path": str(tmp_path / "*.none")})
    with pytest.raises(TopologyError, match="'follow' must be true or false"):
        attach(FileSpout, {"path": str(tmp_path / "*"), "follow": "yes"})


def test_a_line_that_cannot_be_emitted_takes_its_position_with_it(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    spout, recorder = attach(FileSpout, {"path": str(tmp_path / "a.txt"), "burst": 1})
    with monkeypatch.context() as patch:
        patch.setattr(spout._handle, "emit", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            spout.next_tuple()
    assert [(emitted.values[0], emitted.tup_id) for emitted in drain(spout, recorder)] == [("two", 1), ("three", 2)]


def test_lag_counts_lines_that_are_read_and_estimates_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 40)
    for name in "abc":
        (tmp_path / name).write_text("".join(f"line {number:02}\n" for number in range(50)))
    spout, recorder = attach(FileSpout, {"path": str(tmp_path / "*"), "burst": 3})
    assert spout.lag() is None, "nothing is read yet, so the length of a line is not known"
    spout.next_tuple()
    assert spout.lag() == 147
    drain(spout, recorder)
    assert spout.lag() == 0


def test_lag_of_a_file_that_grows(tmp_path):
    path, clock = tmp_path / "a", FakeClock()
    spout, recorder = attach(FileSpout, {"path": str(tmp_path / "*"), "follow": True}, clock=clock)
    assert spout.lag() == 0
    path.write_text("one\ntwo\n")
    clock.now += 1
    drain(spout, recorder, calls=2)
    assert spout.lag() == 0
    with path.open("a") as file:
        file.write("six\nten\n")
    assert spout.lag() == 2
    path.unlink()  # it is still open
    assert spout.lag() == 2

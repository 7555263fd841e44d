from __future__ import annotations

import os

import pytest
from recording import attach, drain, rows, tuples

from millrace.workloads.audit import RECORD, Audited, AuditResult, AuditSink, NumberedLines, SplitNumbered, audit

FIELDS = "task position index word"


def words_of(positions=50, parallelism=2, **config):
    """All words of a stream of `positions` lines for each of the spout's tasks."""
    split, recorder = attach(SplitNumbered)
    for index in range(parallelism):
        config = {"limit": positions * parallelism, **config}
        for emitted in drain(*attach(NumberedLines, config, index, parallelism)):
            split.process(*tuples("task position line", [emitted.values]))
    return recorder.values()


def write(directory, words, task_index=0):
    sink, _ = attach(AuditSink, {"path": str(directory)}, task_index)
    sink.process_rows(rows(FIELDS, words))
    sink.close()
    return directory / f"part-{task_index}-{os.getpid()}-0.audit"


EXPECTED = {0: 50, 1: 50}


def test_all_there(tmp_path):
    words = words_of(seed=9, words=500, zipf=1.0)
    write(tmp_path, words[::2])
    write(tmp_path, words[1::2], task_index=1)
    result = audit(tmp_path, EXPECTED, seed=9, words=500, zipf=1.0)
    assert result == AuditResult(tuples_in=1000, tuples_out=1000, lost=0, repeated=0, wrong=0)
    assert result.exact


def test_lost_repeated_wrong_and_beyond_are_told_apart(tmp_path):
    words = words_of()
    del words[17], words[500]
    words += [words[3]] * 3
    words[4] = (*words[4][:3], "another")  # a wrong record, so the right one counts as lost
    words += [(7, 0, 0, "unknown"), (0, 3, 10, "unknown")]
    words += [word for word in words_of(positions=51) if word[0] == 0 and word[1] == 50]
    write(tmp_path, words)
    result = audit(tmp_path, EXPECTED)
    assert result == AuditResult(tuples_in=1000, tuples_out=1013, lost=3, repeated=3, wrong=3, beyond=10)
    assert not result.complete


def test_repeats_are_complete_but_not_exact(tmp_path):
    words = words_of()
    write(tmp_path, words + words[:10])
    result = audit(tmp_path, EXPECTED)
    assert (result.repeated, result.complete, result.exact) == (10, True, False)


@pytest.mark.parametrize("cut", [1, 8, RECORD.itemsize - 1])
def test_a_torn_record_at_the_end_is_left_out(tmp_path, cut):
    path = write(tmp_path, words_of())
    os.truncate(path, path.stat().st_size - cut)
    result = audit(tmp_path, EXPECTED)
    assert (result.tuples_out, result.lost, result.wrong, result.torn_bytes) == (999, 1, 0, RECORD.itemsize - cut)


def test_nothing_there(tmp_path):
    assert audit(tmp_path, EXPECTED) == AuditResult(tuples_in=1000, tuples_out=0, lost=1000, repeated=0, wrong=0)


def test_the_wrong_seed_is_noticed(tmp_path):
    write(tmp_path, words_of())
    assert audit(tmp_path, EXPECTED, seed=2).wrong > 900


def test_a_task_that_was_expected_to_send_nothing_still_counts_as_parallelism(tmp_path):
    write(tmp_path, [word for word in words_of() if word[0] == 1])
    assert audit(tmp_path, {0: 0, 1: 50}).exact
    assert audit(tmp_path, {1: 50}, parallelism=2).exact


def test_words_per_line_beyond_the_lines(tmp_path):
    with pytest.raises(ValueError, match="have 10 words"):
        audit(tmp_path, EXPECTED, words_per_line=11)


def test_topology_has_a_place_to_write():
    assert Audited.config["path"].endswith("millrace-audit")

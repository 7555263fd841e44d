from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from recording import attach, drain, tuples

from millrace.state.packing import pack_value, unpack_value
from millrace.workloads.wordcount import (
    TABLE_LINES,
    Count,
    CountArrow,
    Lines,
    LinesArrow,
    Split,
    SplitArrow,
    TallyArrow,
    TallyArrowCount,
    WordCount,
    WordCountArrow,
    ZipfWordCount,
    expected_counts,
    table_words,
    vocabulary,
)


def test_vocabulary_has_different_words_and_is_the_same_for_a_seed():
    words = vocabulary(5000, seed=3)
    assert len(set(words)) == 5000
    assert words == vocabulary(5000, seed=3)
    assert words != vocabulary(5000, seed=4)
    assert all(word.isascii() and word.isalpha() for word in words)


def test_zipf_makes_the_first_word_the_most_frequent():
    uniform = Counter(word for line in table_words(1, 100) for word in line)
    zipf = Counter(word for line in table_words(1, 100, zipf=1.0) for word in line)
    assert max(uniform.values()) < 2 * min(uniform.values())
    (first, most), = zipf.most_common(1)
    assert first == vocabulary(100, 1)[0]
    assert most == pytest.approx(40960 / sum(1 / rank for rank in range(1, 101)), rel=0.1)


def count_words(config, parallelism):
    counts: Counter[str] = Counter()
    for index in range(parallelism):
        for emitted in drain(*attach(Lines, config, index, parallelism)):
            counts.update(emitted.values[0].split())
    return counts


@pytest.mark.parametrize("parallelism", [1, 3])
def test_expected_counts_are_those_of_the_stream(parallelism):
    lines = TABLE_LINES + 500
    config = {"limit": lines, "seed": 5, "words": 300, "zipf": 0.8}
    assert count_words(config, parallelism) == expected_counts(5, lines, words=300, zipf=0.8)


def test_expected_counts_of_no_lines():
    assert expected_counts(1, 0) == {}
    assert sum(expected_counts(1, 3 * TABLE_LINES + 1).values()) == 10 * (3 * TABLE_LINES + 1)


def test_split_and_count():
    split, recorder = attach(Split)
    split.process(*tuples("line", [["tea fish tea"]]))
    assert recorder.values() == [("tea",), ("fish",), ("tea",)]
    count, counted = attach(Count)
    for tup in tuples("word", recorder.values()):
        count.process(tup)
    assert counted.values() == [("tea", 1), ("fish", 1), ("tea", 2)]
    assert count.counts == {"tea": 2, "fish": 1}


def run_arrow(config, parallelism=1, counter=CountArrow):
    count, counted = attach(counter)
    for index in range(parallelism):
        for batch in drain(*attach(LinesArrow, config, index, parallelism)):
            split, words = attach(SplitArrow)
            split.process_arrow(batch.values)
            count.process_arrow(words.emits[0].values)
    return count, counted.values()


@pytest.mark.parametrize("config", [
    {"limit": 4500, "seed": 2, "words": 300},  # few words: looked up among the known
    {"limit": 4500, "seed": 2, "words": 9000, "batch": 100},  # many words: by the batch's own dictionary
    {"limit": 9001, "seed": 2, "words": 9000, "batch": 4500},  # a batch longer than the table
])
@pytest.mark.parametrize("counter", [CountArrow, TallyArrow])
def test_arrow_counts_are_the_expected_ones(config, counter):
    for parallelism in (1, 2):
        count, updates = run_arrow(config, parallelism, counter)
        expected = expected_counts(2, config["limit"], words=config["words"])
        assert count.counts == expected
        last = {word: n for batch in updates for word, n in zip(*batch.to_pydict().values(), strict=True)}
        assert last == expected


@pytest.mark.parametrize("counter", [CountArrow, TallyArrow])
def test_arrow_updates_name_each_word_of_the_batch_once(counter):
    count, recorder = attach(counter)
    for words in (["a", "b", "a"], ["b"], [], ["c", "a"]):
        count.process_arrow(pa.record_batch([pa.array(words, pa.string())], names=["word"]))
    assert [dict(zip(*batch.to_pydict().values(), strict=True)) for batch in recorder.values()] == [
        {"a": 2, "b": 1}, {"b": 2}, {}, {"a": 3, "c": 1}]
    assert [batch.schema.types for batch in recorder.values()] == [[pa.string(), pa.int64()]] * 4


@pytest.mark.parametrize("batches", [(["a", "b", "a"], ["c", "a"]), ([], [])])
def test_arrow_counts_continue_from_their_snapshot(batches):
    count, _ = attach(CountArrow)
    for words in batches:
        resumed, _ = attach(CountArrow)
        resumed.restore(unpack_value(pack_value(count.snapshot())))
        assert resumed.counts == count.counts
        for each in (count, resumed):
            each.process_arrow(pa.record_batch([pa.array(words, pa.string())], names=["word"]))
        assert resumed.counts == count.counts


def test_topologies():
    assert {spec.name: spec.par for spec in WordCount.specs} == {"lines": 2, "split": 2, "count": 2, "drop": 1}
    for topology in (WordCountArrow, TallyArrowCount):
        assert [spec.name for spec in topology.specs] == ["lines", "split", "count", "drop"]
    assert ZipfWordCount.config == {"zipf": 1.0}

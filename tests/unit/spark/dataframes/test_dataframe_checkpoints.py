"""Spark's checkpoints of DataFrame spouts: their directories and owners."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.config import DATAFRAME_CHECKPOINT
from millrace.errors import MillraceError, TopologyError
from millrace.model.graph import ComponentDef, TopologyGraph
from millrace.runtime.checkpoints.directory import DirectoryStore
from millrace.spark.dataframes.dataframe_checkpoints import Runs, claim_checkpoint, configured_checkpoint, new_run


def begin(runs: Runs, run: str, batches: int = 1) -> Path:
    """Write the files that Spark writes when it reads this many micro-batches."""
    place = runs.place(run)
    (place / "offsets").mkdir(parents=True)
    for batch in range(batches):
        (place / "offsets" / str(batch)).write_text("v1")
        (place / "offsets" / f".{batch}.crc").write_bytes(b"")
    return place


def test_the_last_run_is_known_and_the_one_before_it_is_kept(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path), "words", "lines")
    assert runs.last() is None
    places = [begin(runs, run, batches=11) for run in ("9", "10", "11")]
    last = runs.last()
    assert last is not None and (last.run, last.batch, last.place) == ("11", 10, places[2])
    assert last.at == (places[2] / "offsets" / "10").stat().st_mtime
    runs.forget_others("11")
    assert [place.exists() for place in places] == [False, True, True]


def test_a_run_that_has_read_nothing_is_not_the_last(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path), "words", "lines")
    begin(runs, "1", batches=0)
    assert runs.last() is None
    begin(runs, "2")
    begin(runs, "3", batches=0)
    last = runs.last()
    assert last is not None and last.run == "2"


def test_a_resumed_run_is_kept_whatever_came_after_it(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path), "words", "lines")
    places = [begin(runs, run) for run in ("1", "2", "3")]
    runs.forget_others("1")
    assert [place.exists() for place in places] == [True, False, True]


def test_no_run_has_the_name_of_another() -> None:
    first, second = new_run(), new_run()
    assert int(first) < int(second)


def test_every_spout_has_its_own_directory(tmp_path: Path) -> None:
    places = {Runs(str(tmp_path), topology, component).place("1")
              for topology in ("a", "a/b", "ä") for component in ("x", "../x")}
    assert len(places) == 6
    assert all(place.resolve().is_relative_to(tmp_path) for place in places)


def test_a_checkpoint_is_not_listed_as_a_blob_of_the_topology(tmp_path: Path) -> None:
    (begin(Runs(str(tmp_path), "words", "lines"), "1") / "offsets" / "0").write_text("v1")
    assert DirectoryStore(tmp_path).names("words/") == []


def test_a_store_that_is_not_a_directory_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"redis://here is not one: set topology\.dataframe\.checkpoint"):
        Runs("redis://here", "words", "lines")


def configured(for_all: str | None, for_component: str | None) -> str:
    config = {DATAFRAME_CHECKPOINT.key: for_component} if for_component else {}
    component = ComponentDef("lines", "spout", "m:S", 1, config, (), (), False, "next_tuple", dataframe=True)
    graph = TopologyGraph("words", (component,), {DATAFRAME_CHECKPOINT.key: for_all} if for_all else {})
    return configured_checkpoint(graph, component)


def test_a_directory_for_the_topology_has_one_below_it_for_each_spout() -> None:
    assert configured(None, None) == ""
    assert configured(None, "/own/") == "/own/"
    assert configured("/common/", None) == "/common/lines"
    assert configured("/common", "/own") == "/own"


def test_another_spout_s_checkpoint_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "there"
    claim_checkpoint(place, "words", "lines")
    claim_checkpoint(place, "words", "lines")
    with pytest.raises(TopologyError, match=r"belongs to words/lines, not to others/lines"):
        claim_checkpoint(place, "others", "lines")


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(MillraceError, match=r"cannot be the checkpoint of 'lines' of 'words'.*Not a directory"):
        claim_checkpoint(tmp_path / "file" / "below", "words", "lines")

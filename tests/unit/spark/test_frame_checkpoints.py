"""Where Spark's checkpoint of a frame spout is, and whose."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from millrace.config import FRAME_CHECKPOINT
from millrace.errors import MillraceError, TopologyError
from millrace.model.graph import ComponentDef, TopologyGraph
from millrace.runtime.directory_store import DirectoryStore
from millrace.spark.frames import claim_checkpoint, default_checkpoint, given_checkpoint


def run(store: Path, resume: bool, topology: str = "words", component: str = "lines") -> Path:
    """The place for a run, which uses it."""
    url = urlsplit(default_checkpoint(str(store), topology, component, resume))
    assert url.scheme == "file"
    place = Path(unquote(url.path))
    (place / "offsets").mkdir(parents=True, exist_ok=True)
    return place


def test_a_new_run_begins_anew_and_the_last_one_can_be_resumed(tmp_path: Path) -> None:
    first = run(tmp_path, resume=False)
    assert run(tmp_path, resume=True) == first
    second = run(tmp_path, resume=False)
    assert second != first and first.exists()
    assert run(tmp_path, resume=True) == second
    third = run(tmp_path, resume=False)
    assert not first.exists() and second.exists() and third not in (first, second)


def test_there_is_nothing_to_resume_at_first(tmp_path: Path) -> None:
    assert run(tmp_path, resume=True) == run(tmp_path, resume=True)


def test_every_spout_has_its_own(tmp_path: Path) -> None:
    places = {run(tmp_path, False, topology, component) for topology in ("a", "a/b", "ä") for component in ("x", "../x")}
    assert len(places) == 6
    assert all(place.is_relative_to(tmp_path) for place in places)


def test_it_is_no_blob_of_the_topology(tmp_path: Path) -> None:
    (run(tmp_path, resume=False) / "offsets" / "0").write_text("v1")
    assert DirectoryStore(tmp_path).names("words/") == []


def test_a_store_that_is_no_directory_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"redis://here is none: set topology\.frame\.checkpoint"):
        default_checkpoint("redis://here", "words", "lines", False)


def given(common: str | None, own: str | None) -> str:
    config = {FRAME_CHECKPOINT.key: own} if own else {}
    component = ComponentDef("lines", "spout", "m:S", 1, config, (), (), False, "next_tuple", frame=True)
    return given_checkpoint(TopologyGraph("words", (component,), {FRAME_CHECKPOINT.key: common} if common else {}), component)


def test_that_of_the_topology_has_one_for_each_spout() -> None:
    assert given(None, None) == ""
    assert given(None, "/own/") == "/own/"
    assert given("/common/", None) == "/common/lines"
    assert given("/common", "/own") == "/own"


def test_another_spout_s_checkpoint_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "there"
    claim_checkpoint(place, "words", "lines")
    claim_checkpoint(place, "words", "lines")
    with pytest.raises(TopologyError, match=r"is that of words/lines, and not of others/lines"):
        claim_checkpoint(place, "others", "lines")


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(MillraceError, match=r"cannot be the checkpoint of 'lines' of 'words'.*Not a directory"):
        claim_checkpoint(tmp_path / "file" / "below", "words", "lines")
